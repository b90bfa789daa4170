"""TuningConfig: what changes speed alone.
Called by heuristics, tuners, the rules and the composer.
Assumes 16-bit operands; any TuningConfig that rules.check accepts gives the same result within rounding."""

from __future__ import annotations

import enum

import attrs


class ScalePlace(enum.Enum):
    """Where the weight scale is multiplied. The value is the name of the enumerator in base/config.cuh."""

    EPILOGUE = "kEpilogue"  # channel scale, once per output, f32
    ACCUMULATOR = "kAccumulator"  # group scale, f32, on the partial sums of each group: exact operands
    OPERAND = "kOperand"  # group scale on the decoded operand, which is rounded to its type


class Pipeline(enum.Enum):
    """Who copies and who multiplies. The value is the name of the enumerator in base/config.cuh."""

    MULTISTAGE = "kMultistage"  # the same warps do both, mma.sync
    WARP_SPECIALIZED = "kWarpSpecialized"  # up to four warps copy for pairs of warpgroups, wgmma


@attrs.frozen(kw_only=True)
class TuningConfig:
    """Tile, warps, pipeline and schedule of a dense kernel.

    A block computes `block_n` features x `block_m` tokens. Its warps form `warps_k` groups that split k among them; a
    group of `warps_n` x `warps_m` warps owns a ring of `stages` stages of `stage_k` along k.
    """

    block_n: int
    block_m: int
    stage_k: int
    warps_n: int
    warps_m: int
    warps_k: int
    stages: int
    scale_place: ScalePlace
    raster_m: int = 1  # token tiles walked before the next feature tile
    evict_first: bool = False  # weights are read once: L2 drops them first
    split_k: int = 1  # blocks that share a tile; 0 deals all work evenly to the multiprocessors (Stream-K)
    blocks_per_multiprocessor: int = 1
    pipeline: Pipeline = Pipeline.MULTISTAGE
    cluster_k: int = 1  # 2: a tile's k is halved by the two blocks of a cluster, which exchange their sums

    @property
    def is_split(self) -> bool:
        """Whether tiles are split along k among blocks, which then add their sums through a workspace."""
        return self.split_k != 1

    @property
    def threads(self) -> int:
        """Threads of a block, the warpgroup that copies included."""
        copying = 128 if self.pipeline is Pipeline.WARP_SPECIALIZED else 0
        return 32 * self.warps_n * self.warps_m * self.warps_k + copying
