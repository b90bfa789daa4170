"""How a composed kernel is launched: threads, shared memory, grid, workspace and the packed argument block.
Called by humming_torch, which holds the pointers and the stream; everything here is plain data.
Assumes the struct of base/arguments.cuh and the sizes of base/shape.cuh, which static assertions of a unit compare."""

from __future__ import annotations

import struct

import attrs

from .config import LayerConfig, Pipeline, ScalePlace, TuningConfig
from .errors import KernelError
from .packed_layout import ATOM_ROWS, BRICK_K, BRICK_ROWS

ARGUMENT_FIELDS: tuple[tuple[str, str], ...] = (
    ("activation", "Q"),
    ("weight", "Q"),
    ("weight_scale", "Q"),
    ("zero_point", "Q"),
    ("bias", "Q"),
    ("output", "Q"),
    ("workspace", "Q"),
    ("counters", "Q"),
    ("activation_stride", "q"),
    ("output_stride", "q"),
    ("m", "i"),
    ("n", "i"),
    ("k", "i"),
    ("units_per_tile", "i"),
    ("units_per_block", "i"),
    ("reserved", "i"),
)
"""Name and struct code of every field of DenseArguments, in order."""

ARGUMENTS = struct.Struct("<" + "".join(code for _, code in ARGUMENT_FIELDS))
"""The packed parameter block; 8-byte fields come first, so there is no padding."""

ARGUMENT_OFFSETS: dict[str, int] = {
    name: struct.calcsize("<" + "".join(code for _, code in ARGUMENT_FIELDS[:index]))
    for index, (name, _) in enumerate(ARGUMENT_FIELDS)
}
"""Byte offset of every field, for patching a prepared block in place."""


LARGEST_M = 2**30
"""Tokens of one launch: counts are 32-bit integers, and rounding them up to tiles must not overflow."""

TENSOR_MAP_OFFSET = 128
"""Where the tensor map begins in the argument block of kernels that take one: the next multiple of its 64 bytes."""

TENSOR_MAP_BYTES = 128
TENSOR_BOX_K = 64  # 128 bytes of 16-bit values


def pack_arguments(**values: int) -> bytes:
    """The argument block with these fields; fields that are not named are zero."""
    unknown = values.keys() - ARGUMENT_OFFSETS.keys()
    if unknown:
        raise TypeError(f"unknown kernel arguments {sorted(unknown)}; wanted some of {list(ARGUMENT_OFFSETS)}")
    return ARGUMENTS.pack(*(values.get(name, 0) for name, _ in ARGUMENT_FIELDS))


@attrs.frozen(kw_only=True)
class LaunchShape:
    """One launch of a kernel for a number of tokens. Bytes are what must be allocated, counters zeroed once."""

    grid: int
    units_per_tile: int
    units_per_block: int
    workspace_bytes: int
    counter_bytes: int


@attrs.frozen(kw_only=True)
class LaunchRecipe:
    """What every launch of one kernel has in common, and the grid as a function of the problem."""

    tuning: TuningConfig
    threads: int
    shared_bytes: int
    tensor_box: tuple[int, int] | None = None
    """(k, tokens) of the boxes in which a tensor map reads the activations, with the 128-byte swizzle; the map is the
    second parameter, at TENSOR_MAP_OFFSET of the argument block. None: the kernel takes no tensor map."""

    def largest(self, first_m: int, last_m: int, n: int, k: int, multiprocessors: int) -> tuple[int, int]:
        """(workspace bytes, counter bytes) that suffice for every number of tokens from first_m to last_m.

        Neither grows steadily with m, so each count of token tiles is looked at.
        """
        block_m = self.tuning.block_m
        tiles = range(-(-first_m // block_m), -(-last_m // block_m) + 1)
        shapes = [self.plan(count * block_m, n, k, multiprocessors) for count in tiles]
        return max(shape.workspace_bytes for shape in shapes), max(shape.counter_bytes for shape in shapes)

    def plan(self, m: int, n: int, k: int, multiprocessors: int) -> LaunchShape:
        """The launch for m > 0 tokens of an [n, k] weight on a device with that many multiprocessors.

        Raises KernelError where tokens or work units do not fit 31 bits.
        """
        if not 0 < m <= LARGEST_M:
            raise KernelError(
                f"a launch takes 1 to {LARGEST_M} tokens; got {m}, so split more tokens over several calls"
            )
        tuning = self.tuning
        stages = -(-k // tuning.stage_k)
        tiles = -(-n // tuning.block_n) * -(-m // tuning.block_m)
        if not tuning.is_split:
            units_per_block = units_per_tile = stages
        elif tuning.split_k:
            # Evenly: every tile has split_k blocks, the last of which may find less work.
            split = min(tuning.split_k, max(1, stages // tuning.warps_k))
            units_per_block = -(-stages // split)
            units_per_tile = units_per_block * split
        else:
            blocks = multiprocessors * tuning.blocks_per_multiprocessor
            units_per_tile = _round_up(stages, tuning.warps_k)
            even = _round_up(-(-tiles * units_per_tile // blocks), tuning.warps_k)
            units_per_block = min(even, units_per_tile * tiles)
        if tiles * max(units_per_tile, tuning.cluster_k) >= 2**31:
            raise KernelError(
                f"a launch has at most 2^31 - 1 work units; {m} tokens of a {n} x {k} weight make "
                f"{tiles * units_per_tile}, so split the tokens over several calls"
            )
        grid = -(-tiles * units_per_tile // units_per_block)
        if tuning.cluster_k > 1:
            grid = tuning.cluster_k * tiles
        elif tuning.pipeline is Pipeline.WARP_SPECIALIZED and not tuning.is_split:
            grid = min(tiles, multiprocessors)  # blocks stay and take every grid-th tile
        is_split = units_per_block % units_per_tile != 0
        return LaunchShape(
            grid=grid,
            units_per_tile=units_per_tile,
            units_per_block=units_per_block,
            workspace_bytes=2 * grid * tuning.block_n * tuning.block_m * 4 if is_split else 0,
            counter_bytes=tiles * 4 if is_split else 0,
        )


def recipe(layer: LayerConfig, tuning: TuningConfig) -> LaunchRecipe:
    """The launch recipe of a layer's kernel with this tuning."""
    specialized = tuning.pipeline is Pipeline.WARP_SPECIALIZED
    return LaunchRecipe(
        tuning=tuning,
        threads=tuning.threads,
        shared_bytes=shared_bytes(layer, tuning),
        tensor_box=(TENSOR_BOX_K, tuning.block_m) if specialized else None,
    )


def stage_bytes(layer: LayerConfig, tuning: TuningConfig) -> int:
    """Shared memory of one pipeline stage of one group of warps, as base/shape.cuh computes it."""
    bits = layer.weight.number.bits
    weights = tuning.block_n // ATOM_ROWS * (tuning.stage_k // BRICK_K) * 128 * bits
    activations = tuning.block_m * tuning.stage_k * 2
    lines = -(-tuning.block_n // BRICK_ROWS) * stage_groups(layer, tuning)
    scales = 2 * BRICK_ROWS * lines if tuning.scale_place is not ScalePlace.EPILOGUE else 0
    zero_bytes = {"integer": 1, "minimum": 2}.get(layer.weight.zero_point.kind.value, 0)
    alignment = 1024 if tuning.pipeline is Pipeline.WARP_SPECIALIZED else 128
    return _round_up(weights + activations + scales + zero_bytes * BRICK_ROWS * lines, alignment)


def stage_groups(layer: LayerConfig, tuning: TuningConfig) -> int:
    """Scale groups that one stage touches."""
    return 1 if layer.group_k is None else max(1, tuning.stage_k // layer.group_k)


def shared_bytes(layer: LayerConfig, tuning: TuningConfig) -> int:
    """Dynamic shared memory of a block: the rings of all groups of warps, or the slices of the final sum."""
    ring = tuning.stages * stage_bytes(layer, tuning)
    if tuning.pipeline is Pipeline.WARP_SPECIALIZED:
        exchange = tuning.block_n * tuning.block_m * 4 // 2 if tuning.cluster_k > 1 else 0
        return ring + exchange + 16 * tuning.stages + 16  # a full and an empty barrier for each stage, one flag
    rings = tuning.warps_k * ring
    tiles = tuning.block_m // 8 // tuning.warps_m
    per_tile = tuning.warps_k * tuning.warps_m * 8 * (tuning.block_n + 4) * 4
    slice_tiles = next((count for count in range(tiles, 1, -1) if tiles % count == 0 and count * per_tile <= rings), 1)
    return max(rings, slice_tiles * per_tile) + (16 if tuning.is_split else 0)  # blocks that share tiles have a flag


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
