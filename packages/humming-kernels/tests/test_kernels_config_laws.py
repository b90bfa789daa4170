"""The laws of the three configs: the layer fixes the bytes, the computation the numbers, the tuning speed alone.

Run by pytest.
Assumes base/config.cuh as the other half of every initialiser: its structs and enums are parsed here.
"""

import re

import attrs
import pytest
from humming_format.number import number
from humming_kernels import emit
from humming_kernels.arch import ARCHS, find_arch
from humming_kernels.components import DECODERS, ENUMERATORS, ZERO_POINT_ENUMERATORS
from humming_kernels.compose import compose
from humming_kernels.config import ComputeConfig, LayerConfig, Pipeline, ScalePlace, TuningConfig
from humming_kernels.headers import header_text, reached_headers
from humming_kernels.launch import shared_bytes
from humming_kernels.packed_layout import PackedLayout
from humming_kernels.rules import check

from tests.support.kernel_cases import MULTISTAGE, SPECIALIZED, WEIGHTS, layer_of, many_tunings
from tests.support.nvrtc_direct import DirectNvrtc

HOPPER = find_arch("sm_90a")
CONFIG_TEXT = re.sub(r"//[^\n]*", "", header_text("humming/base/config.cuh"))


def cuda_struct(name: str) -> dict[str, str]:
    """Field -> type of a struct of base/config.cuh, in order."""
    body = re.search(rf"struct {name} {{(.*?)}};", CONFIG_TEXT, re.DOTALL)
    assert body, name
    fields = re.findall(r"(\w+) (\w+);", body[1])
    assert len(fields) == body[1].count(";")
    return {field: kind for kind, field in fields}


def cuda_enum(name: str) -> list[str]:
    """Enumerators of an enum of base/config.cuh."""
    body = re.search(rf"enum class {name} : int {{(.*?)}};", CONFIG_TEXT, re.DOTALL)
    assert body, name
    return re.findall(r"k\w+", body[1])


def emitted(text: str) -> dict[str, str]:
    """Field -> value of an initialiser, in order."""
    return dict(re.findall(r"\.(\w+) = ([^,}]+)", text))


INITIALISERS = {
    "LayerConfig": emit.layer_initialiser(layer_of("u4g128z", bias=True)),
    "ComputeConfig": emit.compute_initialiser(ComputeConfig(activation="f16")),
    "TuningConfig": emit.tuning_initialiser(MULTISTAGE),
    "TargetConfig": emit.target_initialiser(HOPPER),
}


@pytest.mark.parametrize("struct", sorted(INITIALISERS))
def test_initialisers_name_every_field_in_order(struct):
    """A field that one side lacks would be zero without a word: C++ allows an initialiser to leave fields out."""
    text = INITIALISERS[struct]
    assert re.fullmatch(rf"constexpr {struct} k\w+ = {{.*}};", text)
    fields, values = cuda_struct(struct), emitted(text)
    assert list(values) == list(fields)
    for field, kind in fields.items():
        if kind == "bool":
            assert values[field] in ("true", "false")
        elif kind == "int":
            assert re.fullmatch(r"\d+", values[field])
        else:
            prefix, enumerator = values[field].split("::")
            assert prefix == kind and enumerator in cuda_enum(kind)


def test_every_value_of_a_python_enum_has_its_enumerator():
    assert [place.value for place in ScalePlace] == cuda_enum("ScalePlace")
    assert [pipeline.value for pipeline in Pipeline] == cuda_enum("Pipeline")
    assert list(ZERO_POINT_ENUMERATORS.values()) == cuda_enum("ZeroPoint")
    assert list(ENUMERATORS.values()) == cuda_enum("Number")
    assert set(DECODERS) <= set(ENUMERATORS)
    for name in ENUMERATORS:
        number(name)  # every row of the table is a number of humming_format


def test_configs_are_frozen_and_keyword_only():
    for config in (LayerConfig, ComputeConfig, TuningConfig):
        fields = attrs.fields(config)
        assert all(field.kw_only for field in fields)
        made = {
            LayerConfig: layer_of("u4g128"),
            ComputeConfig: ComputeConfig(activation="f16"),
            TuningConfig: MULTISTAGE,
        }
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(made[config], fields[0].name, None)
        assert hash(made[config]) == hash(attrs.evolve(made[config]))


def test_no_field_stands_in_two_configs():
    names = [field.name for config in (LayerConfig, ComputeConfig, TuningConfig) for field in attrs.fields(config)]
    assert len(names) == len(set(names))


def test_every_field_of_a_tuning_changes_the_unit_or_the_launch():
    """A field that changes neither does nothing; one that changes the layer's initialiser would change the bytes."""
    layer, compute = layer_of("u4g128"), ComputeConfig(activation="bf16")
    changed = {
        "block_n": 128,
        "block_m": 32,
        "stage_k": 64,
        "warps_n": 2,
        "warps_m": 2,
        "warps_k": 2,
        "stages": 3,
        "scale_place": ScalePlace.OPERAND,
        "raster_m": 2,
        "evict_first": True,
        "split_k": 2,
        "blocks_per_multiprocessor": 2,
    }
    special = {
        "pipeline": (MULTISTAGE, SPECIALIZED),
        "cluster_k": (SPECIALIZED, attrs.evolve(SPECIALIZED, cluster_k=2)),
    }
    assert {field.name for field in attrs.fields(TuningConfig)} == {*changed, *special}
    pairs = [(MULTISTAGE, attrs.evolve(MULTISTAGE, **{name: value})) for name, value in changed.items()]
    layer_line = emit.layer_initialiser(layer)
    for before, after in (*pairs, *special.values()):
        old, new = (compose(layer, compute, tuning, HOPPER) for tuning in (before, after))
        assert (old.unit_text, old.recipe) != (new.unit_text, new.recipe)
        assert layer_line in old.unit_text and layer_line in new.unit_text


@pytest.mark.parametrize("weight", ["u4g128", "u8g32z", "u4cm", "e2m1c:f32"])
def test_tunings_accept_the_same_bytes(nvrtc: DirectNvrtc, weight):
    """The bricks and lines that a kernel reads have the packer's size, whatever the tuning; proved by the compiler.

    The order inside a brick is that of mma_sync_tile for all of them: PackedLayout takes no tuning.
    """
    layer, compute = layer_of(weight), ComputeConfig(activation="bf16")
    tunings = list(many_tunings(layer, compute, HOPPER))[::4]
    assert len(tunings) > 20
    layout = PackedLayout(layer.weight.number.bits)
    lines = [
        "#include <humming/base/shape.cuh>",
        "using namespace humming::base;",
        emit.layer_initialiser(layer),
    ]
    for index, tuning in enumerate(tunings):
        name = f"kTuning{index}"
        lines += [
            emit.tuning_initialiser(tuning).replace("kTuning ", f"{name} "),
            f"using Shape{index} = Shape<kLayer, {name}>;",
            f"static_assert(Shape{index}::kBrickBytes == {4 * layout.words_per_brick});",
            f"static_assert(Shape{index}::kThreads == {tuning.threads});",
            f"static_assert(Shape{index}::kSharedBytes == {shared_bytes(layer, tuning)});",
        ]
    unit = "\n".join(lines)
    nvrtc.build(unit, reached_headers(unit), "sm_90a")


def test_the_layer_initialiser_is_that_of_the_format():
    """Same format, same stored order: n and k stay out of the unit, and so do computation and tuning."""
    for weight in WEIGHTS:
        layer = layer_of(weight)
        texts = {emit.layer_initialiser(attrs.evolve(layer, n=n, k=k)) for n, k in ((64, 64), (130, 232), (9, 40000))}
        assert len(texts) == 1


def test_accepted_tunings_differ_in_every_field():
    """many_tunings, on which other tests stand, is wide: it holds several values of each field."""
    layer, compute = layer_of("u4g128"), ComputeConfig(activation="bf16")
    tunings = list(many_tunings(layer, compute, HOPPER))
    assert all(check(layer, compute, tuning, HOPPER) == () for tuning in tunings)
    for field in attrs.fields(TuningConfig):
        if field.name != "blocks_per_multiprocessor":
            assert len({getattr(tuning, field.name) for tuning in tunings}) > 1, field.name


def test_arches_emit_their_number():
    assert [emitted(emit.target_initialiser(arch))["arch"] for arch in ARCHS] == [str(arch.number) for arch in ARCHS]
