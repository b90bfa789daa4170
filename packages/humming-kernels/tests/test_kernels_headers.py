"""Header texts by name: files of the package, generated wgmma headers, and the closure of includes.

Run by pytest.
Assumes the package's own include folder; what PTX says of wgmma is restated here.
"""

import re
from importlib import resources

import pytest
from humming_kernels.errors import KernelError
from humming_kernels.headers import header_text, reached_headers
from humming_kernels.wgmma_header import wgmma_header_name, wgmma_header_text

from tests.support.nvrtc_direct import DirectNvrtc


def packaged_names() -> list[str]:
    root = resources.files("humming_kernels").joinpath("include")
    folders, names = [(root, "")], []
    while folders:
        folder, prefix = folders.pop()
        for entry in folder.iterdir():
            if entry.is_dir():
                folders.append((entry, f"{prefix}{entry.name}/"))
            else:
                names.append(prefix + entry.name)
    return sorted(names)


def test_every_packaged_header_is_found_by_its_include_name():
    names = packaged_names()
    assert len(names) > 30
    for name in names:
        assert header_text(name).startswith("// "), name


def test_includes_of_every_header_resolve():
    for name in packaged_names():
        reached = reached_headers(f"#include <{name}>\n")
        assert name in reached and list(reached) == sorted(reached)
        for text in reached.values():
            assert set(re.findall(r"#include <(humming/[^>]+)>", text)) <= set(reached)


@pytest.mark.parametrize(
    "name",
    [
        "humming/base/absent.cuh",
        "base/config.cuh",
        "humming/base",
        "",
        "humming/arch/sm90/wgmma_m64n12k16_f16.cuh",  # no multiple of 8
        "humming/arch/sm90/wgmma_m64n264k16_f16.cuh",  # past 256
        "humming/arch/sm90/wgmma_m64n0k16_f16.cuh",
        "humming/arch/sm90/wgmma_m64n64k16_e4m3.cuh",  # no such header yet
        "humming/arch/sm90/wgmma_m64n64k16_f16.cuh.bak",
    ],
)
def test_an_unknown_header_is_named(name):
    with pytest.raises(KernelError, match=re.escape(f"got {name!r}")):
        header_text(name)


def test_an_unknown_include_is_named():
    with pytest.raises(KernelError, match="humming/nowhere"):
        reached_headers("#include <humming/nowhere/file.cuh>\n")


def test_includes_of_others_are_left_alone():
    assert (
        reached_headers('#include <cuda_fp16.h>\n#include "humming/base/types.cuh"\n// #include <humming/x.cuh>\n')
        == {}
    )


@pytest.mark.parametrize("number", ["f16", "bf16"])
@pytest.mark.parametrize("tokens", range(8, 257, 8))
def test_wgmma_headers_name_every_register_once(tokens, number):
    """m64nNk16 has N / 2 f32 sums per lane, four registers of A and a descriptor of B."""
    name = wgmma_header_name(tokens, number)
    text = header_text(name)
    assert f"wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.{number}.{number} " in text
    instruction = "".join(re.findall(r'"([^"]*)"', text[text.index("wgmma.mma_async.sync") - 1 : text.index(': "+f"')]))
    assert [int(found) for found in re.findall(r"%(\d+)", instruction)] == list(range(tokens // 2 + 5))
    assert instruction.count("{") == instruction.count("}") - 1 == 2  # the scope opened before
    every_sum = [(tile, index) for tile in range(tokens // 8) for index in range(4)]
    product, wait = text.split("wgmma_wait_sums")
    for function in (product, wait):
        sums = re.findall(r'"\+f"\(d\[(\d+)\]\[(\d+)\]\)', function)
        assert [(int(tile), int(index)) for tile, index in sums] == every_sum
    assert re.findall(r'"r"\(a\[(\d)\]\)', text) == ["0", "1", "2", "3"] and text.count('"l"(tokens)') == 1
    assert "wgmma.wait_group.sync.aligned 0;" in wait


def test_other_names_are_no_wgmma_headers():
    assert wgmma_header_text("humming/base/types.cuh") is None


@pytest.mark.parametrize("number", ["f16", "bf16"])
def test_generated_headers_compile(nvrtc: DirectNvrtc, number):
    """The smallest, a middle and the largest shape in one unit; they overload on the shape of their sums."""
    shapes = (8, 48, 256)
    uses = [
        f"""
  {{
    float d[{tokens // 8}][4] = {{}};
    wgmma_fence();
    wgmma_k16(d, a, descriptor);
    wgmma_commit();
    wgmma_wait<0>();
    for (int i = 0; i < {tokens // 2}; ++i) out[i * 128 + threadIdx.x] += (&d[0][0])[i];
  }}"""
        for tokens in shapes
    ]
    unit = "\n".join(
        [
            "#include <humming/arch/sm90/warpgroup.cuh>",
            *(f"#include <{wgmma_header_name(tokens, number)}>" for tokens in shapes),
            'extern "C" __global__ void __launch_bounds__(128) kernel(float* out, unsigned long long descriptor) {',
            "  using namespace humming::arch::sm90;",
            "  unsigned a[4] = {threadIdx.x, 0, 0, 0};",
            *uses,
            "}",
        ]
    )
    built = nvrtc.build(unit, reached_headers(unit), "sm_90a")
    assert (built.spill_bytes, built.serialised) == (0, ())
