"""The argument block against the CUDA struct, and the recipe's sizes against the CUDA shape.

Run by pytest.
Assumes base/arguments.cuh: its fields are parsed here, and NVRTC compares the offsets by static assertions.
"""

import re
import struct

import attrs
import pytest
from humming_kernels.arch import find_arch
from humming_kernels.compose import compose
from humming_kernels.config import ComputeConfig, ScalePlace
from humming_kernels.headers import header_text, reached_headers
from humming_kernels.launch import (
    ARGUMENT_FIELDS,
    ARGUMENT_OFFSETS,
    ARGUMENTS,
    TENSOR_MAP_BYTES,
    TENSOR_MAP_OFFSET,
    pack_arguments,
    recipe,
    shared_bytes,
    stage_bytes,
    stage_groups,
)

from tests.support.kernel_cases import MULTISTAGE, SPECIALIZED, layer_of
from tests.support.nvrtc_direct import DirectNvrtc, NvrtcRefusedError

KINDS = {"i32": "i", "i64": "q"}


def cuda_fields() -> list[tuple[str, str]]:
    """(name, struct code) of every field of DenseArguments."""
    text = re.sub(r"//[^\n]*", "", header_text("humming/base/arguments.cuh"))
    body = re.search(r"struct DenseArguments {(.*?)};", text, re.DOTALL)
    assert body
    fields = re.findall(r"([\w ]+?)(\*?) (\w+);", body[1])
    assert len(fields) == body[1].count(";")
    return [(name, "Q" if star else KINDS[kind.split()[-1]]) for kind, star, name in fields]


def offset_unit(offsets: dict[str, int]) -> str:
    asserts = [
        f'static_assert(offset_of(DenseArguments, {name}) == {offset}, "{name}");' for name, offset in offsets.items()
    ]
    return "\n".join(
        [
            "#include <humming/base/arguments.cuh>",
            # NVRTC has no offsetof; this is what its front end makes of it in system headers.
            "#define offset_of(type, field) __INTADDR__(&((type*)0)->field)",
            "using namespace humming::base;",
            *asserts,
            f"static_assert(sizeof(DenseArguments) == {ARGUMENTS.size});",
            # Parameters of a kernel are laid out like the fields of a struct.
            "struct Parameters { DenseArguments arguments; TensorMap activation_map; };",
            f"static_assert(offset_of(Parameters, activation_map) == {TENSOR_MAP_OFFSET});",
            f"static_assert(sizeof(TensorMap) == {TENSOR_MAP_BYTES} && alignof(TensorMap) == 64);",
        ]
    )


def test_fields_are_those_of_the_cuda_struct():
    assert list(ARGUMENT_FIELDS) == cuda_fields()


def test_offsets_are_those_of_the_compiler(nvrtc: DirectNvrtc):
    unit = offset_unit(ARGUMENT_OFFSETS)
    nvrtc.build(unit, reached_headers(unit), "sm_90a")


def test_a_wrong_offset_would_be_found(nvrtc: DirectNvrtc):
    unit = offset_unit({**ARGUMENT_OFFSETS, "m": ARGUMENT_OFFSETS["m"] + 4})
    with pytest.raises(NvrtcRefusedError, match=r"static assertion failed.*\bm\b"):
        nvrtc.build(unit, reached_headers(unit), "sm_90a")


def test_parameters_of_a_compiled_kernel_lie_where_the_recipe_says(nvrtc: DirectNvrtc):
    """The PTX of a unit with a tensor map: two parameters, of these sizes and this alignment."""
    source = compose(layer_of("u4g128"), ComputeConfig(activation="bf16"), SPECIALIZED, find_arch("sm_90a"))
    ptx = nvrtc.ptx(source.unit_text, source.headers, source.target)
    parameters = re.findall(r"\.param \.align (\d+) \.b8 \w+\[(\d+)\]", ptx)
    assert [tuple(map(int, found)) for found in parameters] == [(8, ARGUMENTS.size), (64, TENSOR_MAP_BYTES)]
    assert -(-ARGUMENTS.size // 64) * 64 == TENSOR_MAP_OFFSET


def test_pack_arguments_places_every_field():
    values = {name: index + 1 for index, (name, _) in enumerate(ARGUMENT_FIELDS)}
    block = pack_arguments(**values)
    assert len(block) == ARGUMENTS.size
    for name, code in ARGUMENT_FIELDS:
        assert struct.unpack_from("<" + code, block, ARGUMENT_OFFSETS[name]) == (values[name],)
    assert pack_arguments() == bytes(ARGUMENTS.size)
    assert pack_arguments(activation=2**64 - 1)[:8] == b"\xff" * 8


def test_unknown_arguments_are_named():
    with pytest.raises(TypeError, match="'no_such_field'"):
        pack_arguments(no_such_field=1)


@pytest.mark.parametrize(
    ("weight", "tuning", "bytes_of_parts"),
    [
        # weights 64 x 128 x 4 / 8, activations 16 x 128 x 2, one line of 64 f16 scales
        ("u4g128", MULTISTAGE, 4096 + 4096 + 128),
        # and one line of 64 bytes; padded to a multiple of 128
        ("u4g128z", MULTISTAGE, 4096 + 4096 + 128 + 64),
        # four groups of 32 in a stage: four lines of scales and four of f16 minima
        ("u4g32m", attrs.evolve(MULTISTAGE, scale_place=ScalePlace.OPERAND), 4096 + 4096 + 4 * (128 + 128)),
        ("u8c", attrs.evolve(MULTISTAGE, scale_place=ScalePlace.EPILOGUE), 8192 + 4096),
        # 128 x 128 weights, 64 x 128 activations, two strips
        ("u4g128", SPECIALIZED, 8192 + 16384 + 2 * 128),
    ],
)
def test_bytes_of_a_stage(weight, tuning, bytes_of_parts):
    alignment = 1024 if tuning is SPECIALIZED else 128
    assert stage_bytes(layer_of(weight), tuning) == -(-bytes_of_parts // alignment) * alignment


def test_shared_bytes_hold_the_rings_and_the_final_sum():
    layer = layer_of("u4g128")
    stage = stage_bytes(layer, MULTISTAGE)
    assert shared_bytes(layer, MULTISTAGE) == 4 * 2 * stage  # four groups of warps with two stages each
    narrow = attrs.evolve(MULTISTAGE, block_n=16, block_m=8, stage_k=64, warps_k=16)
    assert shared_bytes(layer, narrow) >= 16 * 8 * (16 + 4) * 4  # one token tile of every group of warps
    specialized = 4 * stage_bytes(layer, SPECIALIZED)
    assert shared_bytes(layer, SPECIALIZED) == specialized + 16 * 4 + 16
    cluster = attrs.evolve(SPECIALIZED, cluster_k=2)
    assert shared_bytes(layer, cluster) == specialized + 128 * 64 * 4 // 2 + 16 * 4 + 16


def test_scale_groups_of_a_stage():
    assert [stage_groups(layer_of(weight), MULTISTAGE) for weight in ("u4c", "u4g32", "u4g128", "u4g256")] == [
        1,
        4,
        1,
        1,
    ]


def test_recipes_say_how_tokens_are_read():
    layer = layer_of("u4g128")
    assert recipe(layer, MULTISTAGE).tensor_box is None
    assert recipe(layer, SPECIALIZED).tensor_box == (64, SPECIALIZED.block_m)
    assert (recipe(layer, MULTISTAGE).threads, recipe(layer, SPECIALIZED).threads) == (128, 384)
