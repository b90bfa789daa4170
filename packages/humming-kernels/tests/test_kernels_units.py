"""Every unit that the support rules list compiles for every target: no spill, no serialised wgmma, within the block.

Run by pytest: a few units per target in the ordinary session, all of them with `-m nvrtc` (minutes; nox runs that once
for each CUDA version). Assumes NVRTC; what the installed one does not know is skipped by name.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from humming_format.text import parse_weight
from humming_format.zero_point import ZeroPointKind
from humming_kernels.arch import ARCHS, find_arch
from humming_kernels.compose import KernelSource, compose
from humming_kernels.config import ComputeConfig
from humming_kernels.headers import reached_headers
from humming_kernels.rules import check_layer

from tests.support.kernel_cases import MULTIPROCESSORS, NUMBERS, WEIGHTS, heuristic_sources, layer_of, many_tunings
from tests.support.nvrtc_direct import DirectNvrtc, NvrtcRefusedError

TARGETS = [arch.name for arch in ARCHS]
LARGE, SMALL, RAGGED = (8192, 8192), (576, 1536), (130, 232)
FAMILIES = [(number, zero) for number, zeros in NUMBERS.items() for zero in zeros]
REGISTER_FILE = 65536


def problems(nvrtc: DirectNvrtc, source: KernelSource, *, may_spill: bool) -> list[str]:
    """What is wrong with a unit, one sentence each."""
    try:
        built = nvrtc.build(source.unit_text, source.headers, source.target)
    except NvrtcRefusedError as error:
        return [f"{source.symbol} does not compile: {str(error)[:400]}"]
    arch, found = find_arch(source.target), []
    if (built.spill_bytes or built.stack_bytes) and not may_spill:
        found.append(f"spills {built.spill_bytes} bytes, stack {built.stack_bytes} bytes")
    if built.serialised:
        found.append(f"serialised: {built.serialised[0]}")
    if built.registers == 0:
        found.append("ptxas reported no registers")
    if built.registers * source.recipe.threads > REGISTER_FILE:
        found.append(f"{built.registers} registers x {source.recipe.threads} threads do not fit")
    if built.static_shared_bytes:  # the limit is on the sum, and the recipe knows of the dynamic part alone
        found.append(f"{built.static_shared_bytes} bytes of static shared memory")
    if source.recipe.shared_bytes > arch.shared_memory:
        found.append(f"{source.recipe.shared_bytes} bytes of shared memory")
    return [f"{source.symbol} for {source.target}: {what}" for what in found]


def nothing_wrong(nvrtc: DirectNvrtc, sources: Iterable[KernelSource], *, may_spill: bool = False) -> int:
    """Fails with every problem of every unit; returns how many units there were."""
    found, count = [], 0
    for source in sources:
        found += problems(nvrtc, source, may_spill=may_spill)
        count += 1
    if found:
        pytest.fail(f"{len(found)} problems in {count} units:\n" + "\n".join(found), pytrace=False)
    return count


def skip_unknown(nvrtc: DirectNvrtc, target: str) -> None:
    if not nvrtc.knows(target):
        pytest.skip(f"NVRTC {nvrtc.version[0]}.{nvrtc.version[1]} does not know {target}")


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_units_of_every_target(nvrtc: DirectNvrtc, target):
    """Every third unit of one weight, and the first of two others; the weights take turns over the targets."""
    skip_unknown(nvrtc, target)
    arch, turn = find_arch(target), TARGETS.index(target)
    main = list(heuristic_sources(("u4g128", "e0m3g128:bf16")[turn % 2], arch, shapes=(LARGE,)))
    others = [("u4g32z", "u8c:f32"), ("e2m1g32:bf16", "u4g32m"), ("u8g64", "u4cz")][turn % 3]
    few = [next(heuristic_sources(weight, arch, shapes=(SMALL,))) for weight in others]
    assert nothing_wrong(nvrtc, [*main[turn % 3 :: 4], *few]) >= 4


@pytest.mark.nvrtc
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("number", "zero"), FAMILIES, ids=["".join(family) for family in FAMILIES])
@pytest.mark.parametrize("target", TARGETS)
def test_every_unit_of_the_support_table(nvrtc: DirectNvrtc, target, number, zero):
    """All groups, scales and activations of a number, for a large layer on the target's largest device."""
    skip_unknown(nvrtc, target)
    arch = find_arch(target)
    weights = [weight for weight in WEIGHTS if family_of(weight) == (number, zero)]
    served = [weight for weight in weights if listed(weight, target)]
    units = (
        source
        for weight in served
        for source in heuristic_sources(weight, arch, shapes=(LARGE,), multiprocessors=max(MULTIPROCESSORS[target]))
    )
    assert nothing_wrong(nvrtc, units) >= len(served) > 0


@pytest.mark.nvrtc
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS)
def test_every_unit_of_other_shapes_and_devices(nvrtc: DirectNvrtc, target):
    """Small and ragged layers, and all devices of a target, make the heuristics take other tiles."""
    skip_unknown(nvrtc, target)
    weights = ("u4g128", "u8g32z", "e2m1g32:bf16", "u4g32m", "e0m3c:f32")
    units = {
        source.unit_text: source
        for weight in weights
        for source in heuristic_sources(weight, find_arch(target), shapes=(SMALL, RAGGED, (28672, 8192), (1024, 14336)))
    }
    assert nothing_wrong(nvrtc, units.values()) > 20


@pytest.mark.nvrtc
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("weight", ["u4g128", "u8g32z", "e0m3g64:bf16", "u4cm", "e2m1c:f32"])
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
def test_accepted_tunings_compile(nvrtc: DirectNvrtc, target, weight):
    """A tuning that the rules accept compiles and fits, also where no heuristic offers it: tuners walk here.

    Some spill, since rules only estimate registers; a tuner measures that they are slow.
    """
    skip_unknown(nvrtc, target)
    arch, layer = find_arch(target), layer_of(weight, bias=True)
    compute = ComputeConfig(activation="f16" if target == "sm_75" else "bf16", output="f32")
    if check_layer(layer, compute, arch):
        pytest.skip(f"{weight} is not served on {target}")
    tunings = list(many_tunings(layer, compute, arch))
    units = (compose(layer, compute, tuning, arch) for tuning in tunings[::7])
    assert nothing_wrong(nvrtc, units, may_spill=True) > 20


def test_a_spill_would_be_found(nvrtc: DirectNvrtc):
    """A kernel bounded to few registers that holds many values: the log's spills are read."""
    body = "".join(f"float v{i} = in[{i} * 999 + threadIdx.x];" for i in range(200))
    total = " + ".join(f"v{i} * out[{i}]" for i in range(200))
    unit = f"""extern "C" __global__ void __launch_bounds__(1024, 2) kernel(const volatile float* in, float* out) {{
      {body}
      __syncthreads();
      out[threadIdx.x] = {total};
    }}"""
    assert nvrtc.build(unit, {}, "sm_80").spill_bytes > 0


def test_a_serialised_wgmma_would_be_found(nvrtc: DirectNvrtc):
    """A sum that is read while its wgmma is in flight makes ptxas wait, and say so."""
    unit = """
#include <humming/arch/sm90/warpgroup.cuh>
#include <humming/arch/sm90/wgmma_m64n8k16_f16.cuh>
extern "C" __global__ void __launch_bounds__(128) kernel(float* out, unsigned long long descriptor) {
  using namespace humming::arch::sm90;
  unsigned a[4] = {threadIdx.x, 0, 0, 0};
  float d[1][4] = {};
  for (int i = 0; i < 4; ++i) {
    wgmma_fence();
    wgmma_k16(d, a, descriptor + i);
    wgmma_commit();
    d[0][0] += 1.0f;
    wgmma_wait<0>();
  }
  out[threadIdx.x] = d[0][0];
}"""
    assert nvrtc.build(unit, reached_headers(unit), "sm_90a").serialised


def family_of(weight: str) -> tuple[str, str]:
    """(number, zero point) of a spelling of WEIGHTS; the zero point is "", "z" or "m"."""
    kinds = {ZeroPointKind.INTEGER: "z", ZeroPointKind.MINIMUM: "m"}
    parsed = parse_weight(weight)
    return parsed.number.name, kinds.get(parsed.zero_point.kind, "")


def listed(weight: str, target: str) -> bool:
    """Whether the rules list the weight for the target with any activation."""
    return any(
        not check_layer(layer_of(weight), ComputeConfig(activation=activation), find_arch(target))
        for activation in ("f16", "bf16")
    )


def test_families_cover_every_weight():
    assert sorted(FAMILIES) == sorted(set(map(family_of, WEIGHTS)))
