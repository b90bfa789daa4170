"""What the heuristics share: the bounds of M, and how a few kernels are chosen to serve all of them.
Called by the other modules of this folder.
Assumes costs in microseconds, comparable within one layer and device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from ..arch import Arch, DeviceFacts
from ..config import ComputeConfig, LayerConfig, TuningConfig
from ..errors import UnsupportedConfigError
from ..rules import check

M_BOUNDS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
"""Ranges of M end at these; what serves the last one serves all larger M."""

MOST_KERNELS = 10
"""Compiled kernels of one layer over all M."""


def deepest(
    layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig, arch: Arch, stages: Iterable[int]
) -> TuningConfig | None:
    """The tuning with the first of these numbers of stages that runs on the target, None if none does."""
    for count in stages:
        candidate = attrs.evolve(tuning, stages=count)
        if not check(layer, compute, candidate, arch):
            return candidate
    return None


def kernel_of(tuning: TuningConfig) -> TuningConfig:
    """The tuning less what only the launch looks at: two tunings with the same kernel are compiled once."""
    return attrs.evolve(tuning, split_k=2 if tuning.is_split else 1)


def few_kernels(
    layer: LayerConfig,
    device: DeviceFacts,
    candidates: Callable[[int], Sequence[tuple[float, TuningConfig]]],
    bounds: Sequence[int] = M_BOUNDS,
) -> tuple[tuple[int, TuningConfig], ...]:
    """(bound, tuning) for each bound of M, from at most MOST_KERNELS kernels.

    `candidates(m)` gives (cost, tuning). Begins with the best of every bound and takes away, one after the other, the
    kernel whose loss costs least, in the sum over all bounds of cost / best cost.
    """
    options: list[dict[TuningConfig, tuple[float, TuningConfig]]] = []
    for m in bounds:
        by_kernel: dict[TuningConfig, tuple[float, TuningConfig]] = {}
        for cost, tuning in candidates(m):
            kernel = kernel_of(tuning)
            if kernel not in by_kernel or cost < by_kernel[kernel][0]:
                by_kernel[kernel] = (cost, tuning)
        if not by_kernel:
            raise UnsupportedConfigError(
                (f"no tuning fits {m} tokens of {layer} on {device.arch.name}; please report it",)
            )
        options.append(by_kernel)
    best = [min(by_kernel.values(), key=lambda option: option[0])[0] for by_kernel in options]
    kept = list(dict.fromkeys(min(o, key=lambda kernel: o[kernel][0]) for o in options))

    def loss(kernels: Sequence[TuningConfig]) -> float:
        total = 0.0
        for by_kernel, lowest in zip(options, best, strict=True):
            total += min((by_kernel[kernel][0] for kernel in kernels if kernel in by_kernel), default=1e9) / lowest
        return total

    while len(kept) > MOST_KERNELS:
        dropped = min(kept, key=lambda kernel: loss([other for other in kept if other != kernel]))
        kept.remove(dropped)
    # What was taken away early may be missed in the end: exchange kernels while that helps.
    pool = list(dict.fromkeys(kernel for by_kernel in options for kernel in by_kernel))
    lowest_loss = loss(kept)
    for place in range(len(kept)):
        for kernel in pool:
            swapped = [*kept[:place], kernel, *kept[place + 1 :]]
            if kernel not in kept and loss(swapped) < lowest_loss - 1e-9:
                kept, lowest_loss = swapped, loss(swapped)
    return tuple(
        (m, min((by_kernel[kernel] for kernel in kept if kernel in by_kernel), key=lambda option: option[0])[1])
        for m, by_kernel in zip(bounds, options, strict=True)
    )
