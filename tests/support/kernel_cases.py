"""Layers, computations and tunings that the tests of humming-kernels walk.

Called by packages/humming-kernels/tests and benchmarks.sass.
Assumes humming_format and humming_kernels alone: no torch, no CUDA.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs
from humming_format.text import parse_weight
from humming_kernels.arch import Arch, DeviceFacts
from humming_kernels.compose import KernelSource, compose
from humming_kernels.config import ComputeConfig, LayerConfig, Pipeline, ScalePlace, TuningConfig
from humming_kernels.heuristic import ranges
from humming_kernels.rules import check, check_layer

NUMBERS = {"u4": ("", "z", "m"), "u8": ("", "z", "m"), "e0m3": ("",), "e2m1": ("",)}
"""Weight number -> the zero points that go with it, as humming_format spells them."""

GROUPS = ("g16", "g32", "g64", "g128", "g192", "g256", "c")
SCALES = ("f16", "bf16", "f32")

WEIGHTS: tuple[str, ...] = tuple(
    f"{number}{group}{zero}:{scale}"
    for number, zeros in NUMBERS.items()
    for group, zero, scale in itertools.product(GROUPS, zeros, SCALES)
    if scale != "f32" or (group == "c" and zero != "m")
)
"""Every spelling of a weight that the rules serve on some target; tests check that none is missing."""

MULTIPROCESSORS = {
    "sm_75": (40, 72),  # T4, Quadro RTX 8000
    "sm_80": (108,),
    "sm_86": (46, 84),  # GeForce RTX 3070, A40
    "sm_87": (16,),
    "sm_89": (58, 142),  # L4, L40S
    "sm_90a": (78, 114, 132),  # H20, H100 PCIe, H100 SXM
    "sm_100a": (148,),
    "sm_103a": (160,),
    "sm_120a": (36, 170),
    "sm_121a": (48,),
}
"""Target -> multiprocessors of devices that have it; two sizes where products differ widely."""

MULTISTAGE = TuningConfig(
    block_n=64,
    block_m=16,
    stage_k=128,
    warps_n=1,
    warps_m=1,
    warps_k=4,
    stages=2,
    scale_place=ScalePlace.ACCUMULATOR,
)
SPECIALIZED = TuningConfig(
    block_n=128,
    block_m=64,
    stage_k=128,
    warps_n=8,
    warps_m=1,
    warps_k=1,
    stages=4,
    scale_place=ScalePlace.OPERAND,
    pipeline=Pipeline.WARP_SPECIALIZED,
)
"""Two plain tunings that the rules accept for u4g128, the second for sm_90a alone."""


def layer_of(weight: str, n: int = 4096, k: int = 4096, *, bias: bool = False) -> LayerConfig:
    return LayerConfig(n=n, k=k, weight=parse_weight(weight), bias=bias)


def served(weight: str, activation: str, arch: Arch, output: str | None = None) -> bool:
    """Whether the rules list this weight and activation for the target."""
    return not check_layer(layer_of(weight), ComputeConfig(activation=activation, output=output), arch)


def choices(layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts, max_m: int = 8192) -> list[TuningConfig]:
    """The distinct tunings that the heuristic takes for 1 to max_m tokens."""
    return list(dict.fromkeys(tuning for _, _, tuning in ranges(layer, compute, device, max_m)))


def heuristic_sources(
    weight: str, arch: Arch, *, shapes: tuple[tuple[int, int], ...], multiprocessors: int | None = None
) -> Iterator[KernelSource]:
    """Every different unit that the heuristic offers for a weight on a target, with f16 and bf16 activations.

    multiprocessors: of the one device that is asked about; None asks about all of MULTIPROCESSORS.
    """
    seen = set()
    devices = MULTIPROCESSORS[arch.name] if multiprocessors is None else (multiprocessors,)
    for activation, count, (n, k) in itertools.product(("f16", "bf16"), devices, shapes):
        layer, compute = layer_of(weight, n, k), ComputeConfig(activation=activation)
        if check_layer(layer, compute, arch):
            continue
        for tuning in choices(layer, compute, DeviceFacts(arch=arch, multiprocessors=count)):
            source = compose(layer, compute, tuning, arch)
            if source.unit_text not in seen:
                seen.add(source.unit_text)
                yield source


def many_tunings(layer: LayerConfig, compute: ComputeConfig, arch: Arch) -> Iterator[TuningConfig]:
    """Tunings over the whole space that the rules accept, each field away from the heuristic's own values as well."""
    for block_n, block_m, stage_k, (warps_n, warps_m, warps_k), stages, place in itertools.product(
        (16, 32, 64, 128),
        (8, 16, 48, 128),
        (64, 128, 192),
        ((1, 1, 8), (2, 1, 2), (2, 2, 1), (4, 2, 1)),
        (2, 5),
        ScalePlace,
    ):
        base = TuningConfig(
            block_n=block_n,
            block_m=block_m,
            stage_k=stage_k,
            warps_n=warps_n,
            warps_m=warps_m,
            warps_k=warps_k,
            stages=stages,
            scale_place=place,
        )
        for tuning in (base, attrs.evolve(base, split_k=0, raster_m=4, evict_first=True)):
            if not check(layer, compute, tuning, arch):
                yield tuning
    for block_m, stage_k, stages, place, (split_k, cluster_k, warps_k) in itertools.product(
        (8, 16, 64, 128, 256), (64, 128), (2, 3, 6), ScalePlace, ((1, 1, 1), (0, 1, 1), (3, 1, 1), (1, 2, 1), (1, 2, 2))
    ):
        tuning = attrs.evolve(
            SPECIALIZED,
            block_m=block_m,
            stage_k=stage_k,
            stages=stages,
            scale_place=place,
            split_k=split_k,
            cluster_k=cluster_k,
            warps_k=warps_k,
        )
        if not check(layer, compute, tuning, arch):
            yield tuning
