"""Tunings of the portable mma.sync kernel, for targets without a pipeline of their own.
Called through humming_kernels.heuristic; sm90 takes its kernels for few tokens from here too.
Assumes of the device only its number of multiprocessors and its shared memory: an order of preference, not a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from ..arch import DeviceFacts
from ..config import ComputeConfig, LayerConfig, ScalePlace, TuningConfig
from ..rules import check, scale_places, stage_sizes
from ._common import M_BOUNDS, few_kernels

_STAGES = (4, 3, 2)
_BASE = TuningConfig(
    block_n=64, block_m=8, stage_k=64, warps_n=1, warps_m=1, warps_k=8, stages=2, scale_place=ScalePlace.EPILOGUE
)


def table(layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts) -> tuple[tuple[int, TuningConfig], ...]:
    """(bound, tuning) for every bound of M."""

    def candidates(m: int) -> Sequence[tuple[float, TuningConfig]]:
        return [(1.0, tuning) for tuning in itertools.islice(preferred(layer, compute, device, m), 1)]

    return few_kernels(layer, device, candidates, M_BOUNDS)


def preferred(layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts, m: int) -> Iterator[TuningConfig]:
    """Tunings for m tokens that run on the device, the preferred one first."""
    exact, cheap = scale_places(layer, compute)[0], scale_places(layer, compute)[-1]
    places = (exact, cheap) if m <= 32 else (cheap, exact)
    for shape in _shapes(layer, device, m):
        sizes = sorted(stage_sizes(layer.group_k), key=lambda size: (size != shape.stage_k, size))
        for stage_k, stages, place in itertools.product(sizes, _STAGES, dict.fromkeys(places)):
            tuning = attrs.evolve(shape, stage_k=stage_k, stages=stages, scale_place=place)
            if not check(layer, compute, tuning, device.arch):
                yield tuning


def rows_that_fill(n: int, multiprocessors: int) -> int:
    """The height of a block that leaves the busiest multiprocessor the fewest rows; the tallest among equals."""
    return min((64, 32, 16), key=lambda rows: (-(-n // rows // multiprocessors) * rows, -rows))


def _shapes(layer: LayerConfig, device: DeviceFacts, m: int) -> Iterator[TuningConfig]:
    if m <= 32:
        # Few tokens: one warp per group, every warp all rows, k split over the warps; weights are read once.
        block_n = rows_that_fill(layer.n, device.multiprocessors)
        block_m = next(bound for bound in (8, 16, 32) if m <= bound)
        for warps_k in (16, 8, 4, 2) if m <= 16 else (8, 4, 2):
            stage_k = 128 if m <= 8 and layer.k >= 4 * 128 * warps_k else 64
            yield attrs.evolve(
                _BASE, block_n=block_n, block_m=block_m, stage_k=stage_k, warps_k=warps_k, evict_first=True
            )
    elif m <= 64:
        for warps_k in (4, 2):
            yield attrs.evolve(_BASE, block_m=64, warps_n=2, warps_k=warps_k, evict_first=True, split_k=0)
    else:
        tall = attrs.evolve(_BASE, block_n=256, block_m=64, warps_n=4, warps_k=2, raster_m=8)
        square = attrs.evolve(_BASE, block_n=128, block_m=128, warps_n=2, warps_m=2, warps_k=1, raster_m=8)
        shapes = (tall, square) if m <= 256 else (square, tall)
        for shape in shapes:
            tiles = -(-layer.n // shape.block_n) * -(-m // shape.block_m)
            yield attrs.evolve(shape, split_k=1 if tiles >= 0.75 * device.multiprocessors else 0)
        yield attrs.evolve(_BASE, block_n=128, block_m=64, warps_n=4, warps_k=1, raster_m=8)
    yield attrs.evolve(_BASE, block_m=min(-(-m // 8) * 8, 32), warps_n=2, warps_k=2, raster_m=8)
    yield attrs.evolve(_BASE, block_m=min(-(-m // 8) * 8, 16), warps_n=2, warps_k=1, raster_m=8)
