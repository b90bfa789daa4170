"""Tunings of the portable mma.sync kernel, chosen by tokens, shape and device.
Called through humming_kernels.heuristic.
Assumes the rates of the device only through its number of multiprocessors and its shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from ..arch import DeviceFacts
from ..config import ComputeConfig, LayerConfig, ScalePlace, TuningConfig
from ..errors import UnsupportedConfigError
from ..rules import check, check_layer, scale_places, stage_sizes

M_BOUNDS = (8, 16, 32, 64, 128, 256)
"""Ranges of M end at these; above the last one, one kernel serves every M."""


def choose(layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts, m: int) -> TuningConfig:
    """The tuning for m tokens. Raises UnsupportedConfigError where no kernel serves the layer."""
    reasons = check_layer(layer, compute, device.arch)
    if reasons:
        raise UnsupportedConfigError(reasons)
    bound = next((bound for bound in M_BOUNDS if m <= bound), 0)
    for tuning in _candidates(layer, compute, device, bound):
        if not check(layer, compute, tuning, device.arch):
            return tuning
    raise UnsupportedConfigError((f"no tuning fits {layer} on {device.arch.name}; please report it",))


def ranges(
    layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts, max_m: int
) -> tuple[tuple[int, int, TuningConfig], ...]:
    """(first M, last M, tuning) for M from 1 to max_m; neighbours with the same tuning are one range."""
    found: list[tuple[int, int, TuningConfig]] = []
    first = 1
    for bound in (*M_BOUNDS, max_m):
        last = min(bound, max_m)
        if last < first:
            continue
        tuning = choose(layer, compute, device, last)
        if found and found[-1][2] == tuning:
            found[-1] = (found[-1][0], last, tuning)
        else:
            found.append((first, last, tuning))
        first = last + 1
    return tuple(found)


def _candidates(layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts, bound: int) -> Iterator[TuningConfig]:
    """Tunings for M up to `bound` (0: any), the preferred one first, ever smaller ones after it."""
    exact, cheap = scale_places(layer, compute)[0], scale_places(layer, compute)[-1]
    for shape in _shapes(layer, device, bound):
        for stage_k, stages, place in itertools.product(
            _by_preference(stage_sizes(layer.group_k), 128 if bound and bound <= 8 else 64),
            range(4, 1, -1),
            dict.fromkeys((exact, cheap)) if bound and bound <= 32 else dict.fromkeys((cheap, exact)),
        ):
            yield attrs.evolve(shape, stage_k=stage_k, stages=stages, scale_place=place)


def _by_preference(sizes: tuple[int, ...], preferred: int) -> list[int]:
    return sorted(sizes, key=lambda size: (size != preferred, size))


def _shapes(layer: LayerConfig, device: DeviceFacts, bound: int) -> Iterator[TuningConfig]:
    base = TuningConfig(
        block_n=64, block_m=8, stage_k=64, warps_n=1, warps_m=1, warps_k=8, stages=2, scale_place=ScalePlace.EPILOGUE
    )
    if bound and bound <= 32:
        # Few tokens: one warp per group, every warp all rows, k split over the warps; weights are read once.
        block_n = _rows_that_fill(layer.n, device.multiprocessors)
        for warps_k in (16, 8, 4, 2) if bound <= 16 else (8, 4, 2):
            yield attrs.evolve(base, block_n=block_n, block_m=bound, warps_k=warps_k, evict_first=True)
    elif bound == 64:
        yield attrs.evolve(base, block_m=64, warps_n=2, warps_k=4, evict_first=True, split_k=0)
        yield attrs.evolve(base, block_m=64, warps_n=2, warps_k=2, evict_first=True, split_k=0)
    else:
        yield attrs.evolve(
            base, block_n=128, block_m=128, warps_n=4, warps_m=2, warps_k=1, raster_m=8, split_k=1 if bound == 0 else 0
        )
    yield attrs.evolve(base, block_m=min(bound or 64, 64), warps_n=2, warps_m=1, warps_k=2, raster_m=8)
    yield attrs.evolve(base, block_m=min(bound or 32, 32), warps_n=2, warps_m=1, warps_k=1, raster_m=8)


def _rows_that_fill(n: int, multiprocessors: int) -> int:
    """The tallest block of which there is at least one for most multiprocessors."""
    for rows in (64, 32):
        if -(-n // rows) >= 0.75 * multiprocessors:
            return rows
    return 16
