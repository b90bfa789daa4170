"""What each block of a dense launch does, restated in Python from the meaning of the schedules.

Called by the tests of humming-kernels, which compare it with the CUDA text as well.
Assumes a LaunchShape that LaunchRecipe.plan made for the same problem.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from humming_kernels.config import Pipeline, TuningConfig
from humming_kernels.launch import LaunchShape


@attrs.frozen
class Segment:
    """What a block does of one tile; `stages` may be zero or less: the block only arrives."""

    tile: int
    tile_n: int
    tile_m: int
    first_stage: int
    stages: int
    whole: bool


@attrs.frozen(kw_only=True)
class ScheduleModel:
    """One launch: the tuning, its shape, and the problem."""

    tuning: TuningConfig
    shape: LaunchShape
    m: int
    n: int
    k: int

    @property
    def tiles_n(self) -> int:
        return -(-self.n // self.tuning.block_n)

    @property
    def tiles_m(self) -> int:
        return -(-self.m // self.tuning.block_m)

    @property
    def tiles(self) -> int:
        return self.tiles_n * self.tiles_m

    @property
    def stages(self) -> int:
        """Pipeline stages of all of k."""
        return -(-self.k // self.tuning.stage_k)

    def place(self, tile: int) -> tuple[int, int]:
        """(tile_n, tile_m): bands of raster_m token tiles, inside a band token tiles first."""
        band, in_band = divmod(tile, self.tuning.raster_m * self.tiles_n)
        height = min(self.tuning.raster_m, self.tiles_m - band * self.tuning.raster_m)
        return in_band // height, band * self.tuning.raster_m + in_band % height

    def block(self, index: int) -> Iterator[Segment]:
        """The segments of one block, in order."""
        if self.tuning.is_split:
            yield from self._stream_k(index)
        elif self.tuning.cluster_k == 2:
            half = (self.stages + 1) // 2
            first, count = ((0, half), (half, self.stages - half))[index % 2]
            yield Segment(index // 2, *self.place(index // 2), first, count, False)
        elif self.tuning.pipeline is Pipeline.WARP_SPECIALIZED:
            for tile in range(index, self.tiles, self.shape.grid):
                yield Segment(tile, *self.place(tile), 0, self.stages, True)
        else:
            yield Segment(index, *self.place(index), 0, self.stages, True)

    def _stream_k(self, index: int) -> Iterator[Segment]:
        per_tile, per_block = self.shape.units_per_tile, self.shape.units_per_block
        position, end = index * per_block, min((index + 1) * per_block, self.tiles * per_tile)
        while position < end:
            tile, first = divmod(position, per_tile)
            units = min(end - position, per_tile - first)
            stages = min(units, self.stages - first)
            yield Segment(tile, *self.place(tile), first, stages, units == per_tile)
            position += units

    def first_block(self, tile: int) -> int:
        return tile * self.shape.units_per_tile // self.shape.units_per_block

    def contributors(self, tile: int) -> int:
        last = ((tile + 1) * self.shape.units_per_tile - 1) // self.shape.units_per_block
        return last - self.first_block(tile) + 1

    def workspace_slot(self, tile: int, block: int) -> int:
        """Slot 0 of a block is the tile that it continues, slot 1 the one that it begins."""
        continues = block * self.shape.units_per_block > tile * self.shape.units_per_tile
        return 2 * block + (0 if continues else 1)
