"""Hopper: a cost model of the machine chooses between mma.sync for few tokens and the wgmma kernel for more.
Called through humming_kernels.heuristic; the comments give the measurements that each figure comes from.
Assumes the rates of an H200 for every Hopper part; of the device only the number of multiprocessors is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from ..arch import DeviceFacts
from ..config import ComputeConfig, LayerConfig, Pipeline, ScalePlace, TuningConfig
from ..rules import scale_places, stage_sizes
from . import mma_sync
from ._common import M_BOUNDS, deepest, few_kernels

# Microseconds of an H200, int4 group 128, bf16, cold dirty L2 (docs/hopper.md has the measurements).
_LAUNCH = 5.3  # an empty pair of events (2.8), prologue, first loads, last stores
_HBM_BYTES = 4.2e6  # per microsecond, all multiprocessors
_L2_BYTES = 7.6e6  # per microsecond, all multiprocessors

_L2_SIZE = 60e6  # bytes

_STAGE_K = 128
_TOKEN_STAGE = 0.0052  # tensor cores: one token x 128 features x 128 k
# A stage of 128 x 128 weights of 4 bits with hardly any tokens, and what each token adds while decode and multiply
# alternate; by the number of pairs of warpgroups.
_DECODE = {1: (0.28, 0.0021), 2: (0.24, 0.0017)}
_CLUSTER = (1.8, 0.012)  # exchange through the cluster: constant, per token of the tile
_WORKSPACE = (3.8, 0.034)  # through the workspace, two blocks
_WORKSPACE_BLOCK = 0.004  # per token of the tile for each block more
_EPILOGUE_TOKEN = 0.004  # store of a tile, per token

FEW_TOKENS = 16  # up to here mma.sync was the faster one (docs/hopper.md)
_SMALL_WEIGHT = {8: 1.9e-5, 16: 2.25e-5}  # mma.sync kernel: per weight of the busiest multiprocessor, by token tile

_TILES = (16, 32, 48, 64, 96, 128, 192, 256)
_SPLITS = (2, 3, 4, 6, 8, 12)


def table(layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts) -> tuple[tuple[int, TuningConfig], ...]:
    """(bound, tuning) for every bound of M."""
    if ScalePlace.ACCUMULATOR in scale_places(layer, compute)[-1:]:
        return mma_sync.table(layer, compute, device)  # this scale must not touch the operand

    wgmma = list(_wgmma_tunings(layer, compute, device))

    def candidates(m: int) -> list[tuple[float, TuningConfig]]:
        if m <= FEW_TOKENS:
            few = itertools.islice(mma_sync.preferred(layer, compute, device, m), 1)
            return [(few_tokens_cost(layer, tuning, device, m), tuning) for tuning in few]
        return [
            (wgmma_cost(layer, tuning, device, m), tuning)
            for tuning in wgmma
            if tuning.block_m < m + 64 and _is_worth_sharing(layer, tuning, device, m)
        ]

    return few_kernels(layer, device, candidates, M_BOUNDS)


def _is_worth_sharing(layer: LayerConfig, tuning: TuningConfig, device: DeviceFacts, m: int) -> bool:
    """Whether a tile may be shared by blocks: not where whole tiles fill the device anyway."""
    tiles = -(-layer.n // tuning.block_n) * -(-m // tuning.block_m)
    if tuning.split_k == 0:
        return tiles < 4 * device.multiprocessors
    return tiles < device.multiprocessors or (tuning.split_k == 1 and tuning.cluster_k == 1)


def wgmma_cost(layer: LayerConfig, tuning: TuningConfig, device: DeviceFacts, m: int) -> float:
    """Expected microseconds of the wgmma kernel for m tokens."""
    bits = layer.weight.number.bits
    stages = -(-layer.k // tuning.stage_k)
    tiles_n, tiles_m = -(-layer.n // tuning.block_n), -(-m // tuning.block_m)
    tiles = tiles_n * tiles_m
    scale = tuning.stage_k / _STAGE_K
    decode = _DECODE[tuning.warps_k][0] * (1.0 if bits <= 4 else 1.2) + _DECODE[tuning.warps_k][1] * tuning.block_m
    stage = scale * max(decode, _TOKEN_STAGE * tuning.block_m)
    if tuning.cluster_k == 2:
        waves = -(-tiles // max(1, device.multiprocessors // 2))
        blocks, length = 2 * tiles, waves * -(-stages // 2) * stage
        length += waves * (_CLUSTER[0] + _CLUSTER[1] * tuning.block_m)
    elif tuning.is_split:
        blocks = tiles * tuning.split_k if tuning.split_k else device.multiprocessors
        if tuning.split_k:
            waves = -(-blocks // device.multiprocessors)
            length = waves * -(-stages // tuning.split_k) * stage
            sharing = tuning.split_k
        else:
            length = -(-tiles * stages // device.multiprocessors) * stage
            sharing = max(2, -(-device.multiprocessors // tiles))
        length += _WORKSPACE[0] + (_WORKSPACE[1] + _WORKSPACE_BLOCK * (sharing - 2)) * tuning.block_m
    else:
        waves = -(-tiles // device.multiprocessors)
        blocks, length = tiles, waves * (stages * stage + _EPILOGUE_TOKEN * tuning.block_m)
    weight_bytes = layer.n * layer.k * bits / 8
    token_bytes = tiles_n * m * layer.k * 2
    memory = max(weight_bytes / _HBM_BYTES, (weight_bytes * tiles_m + token_bytes) / _L2_BYTES)
    if tuning.split_k == 0 and tiles > device.multiprocessors and 2 * m * layer.k > _L2_SIZE / 2:
        memory = max(memory, token_bytes / _HBM_BYTES)  # runs of tiles of their own: nobody shares tokens in L2
    busy = min(1.0, blocks / device.multiprocessors)
    return _LAUNCH + max(length, memory / max(busy, 0.25))


def few_tokens_cost(layer: LayerConfig, tuning: TuningConfig, device: DeviceFacts, m: int) -> float:
    """Expected microseconds of the mma.sync kernel for up to 16 tokens."""
    blocks = -(-layer.n // tuning.block_n)
    weights = -(-blocks // device.multiprocessors) * tuning.block_n * layer.k
    per_weight = _SMALL_WEIGHT[8 if m <= 8 else 16] * (1.0 if layer.weight.number.bits <= 4 else 1.45)
    weight_bytes = layer.n * layer.k * layer.weight.number.bits / 8
    return _LAUNCH + max(weights * per_weight, weight_bytes / _HBM_BYTES)


def _wgmma_tunings(layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts) -> Iterator[TuningConfig]:
    place = scale_places(layer, compute)[-1]
    sizes = [size for size in (128, 64) if size in stage_sizes(layer.group_k)]
    for block_m in _TILES:
        base = TuningConfig(
            block_n=128,
            block_m=block_m,
            stage_k=0,
            warps_n=8,
            warps_m=1,
            warps_k=1,
            stages=0,
            scale_place=place,
            raster_m=1 if block_m < 128 else 4,
            evict_first=block_m < 128,
            pipeline=Pipeline.WARP_SPECIALIZED,
        )
        sharings = [(1, 1), *((split, 1) for split in _SPLITS), (0, 1)]
        if block_m % 16 == 0 and block_m <= 128:
            sharings.append((1, 2))
        for split_k, cluster_k in sharings:
            pairs = 2 if cluster_k == 2 and block_m <= 64 else 1
            for stage_k in sizes:
                shape = attrs.evolve(base, stage_k=stage_k, split_k=split_k, cluster_k=cluster_k, warps_k=pairs)
                tuning = deepest(layer, compute, shape, device.arch, (8, 6, 5, 4) if pairs == 2 else (6, 5, 4, 3))
                if tuning is not None:
                    yield tuning
                    break
