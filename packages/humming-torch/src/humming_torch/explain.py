"""Which kernel a layer runs for which number of tokens, why, what it should cost and what was measured.

Called by `humming explain`.
Assumes nothing of a GPU: everything follows from the layer, the target and rows that others have measured.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import attrs
from humming_format.text import format_weight
from humming_kernels.arch import DeviceFacts
from humming_kernels.compose import KernelSource
from humming_kernels.config import ComputeConfig, LayerConfig, Pipeline, TuningConfig
from humming_kernels.heuristic import sm90
from humming_kernels.launch import LaunchShape

from humming_torch.checks import K_STEP
from humming_torch.measured import Measured
from humming_torch.packed_weight import packed_shapes
from humming_torch.plan import range_sources

OVERVIEW = (1, 16, 64, 256, 1024, 4096)
"""Numbers of tokens that are looked at where none is asked for."""


@attrs.frozen(kw_only=True)
class Figures:
    """Speeds of a device, from measurements: what a kernel costs that only reads, and that only multiplies."""

    read_start_us: float
    read_bytes_per_us: float
    multiply_flop_per_us: float
    source: str


FIGURES: dict[tuple[str, int], Figures] = {
    # A line through the read floors of the committed H200 rows, 5 to 242 MB, cold dirty L2; dense bf16 and f16.
    ("sm_90a", 132): Figures(
        read_start_us=5.2, read_bytes_per_us=4.0e6, multiply_flop_per_us=795e6, source="measured on an H200"
    ),
}
"""By target and multiprocessors; a device that is not here has no floors."""


@attrs.frozen(kw_only=True)
class Range:
    """The kernel for first_m to last_m tokens."""

    first_m: int
    last_m: int
    source: KernelSource

    @property
    def tuning(self) -> TuningConfig:
        """Its tuning."""
        return self.source.recipe.tuning

    @property
    def split(self) -> str:
        """How tiles are shared among blocks, in words."""
        tuning = self.tuning
        if tuning.cluster_k > 1:
            return f"cluster of {tuning.cluster_k}"
        if not tuning.is_split:
            return "whole"
        return f"{tuning.split_k} blocks a tile" if tuning.split_k else "Stream-K"

    @property
    def tile(self) -> str:
        """Features x tokens x k of one stage."""
        return f"{self.tuning.block_n}x{self.tuning.block_m}x{self.tuning.stage_k}"


@attrs.frozen(kw_only=True)
class Point:
    """One number of tokens. Times are in microseconds; None where nothing is known of the device."""

    m: int
    range: Range
    launch: LaunchShape
    tiles: int
    why: str
    expected_us: float | None
    read_floor_us: float | None
    matrix_floor_us: float | None
    measured: tuple[Measured, ...]

    @property
    def limit_us(self) -> float | None:
        """The larger of the two floors."""
        if self.read_floor_us is None or self.matrix_floor_us is None:
            return None
        return max(self.read_floor_us, self.matrix_floor_us)


@attrs.frozen(kw_only=True)
class Explanation:
    """All of it. `stored_bytes` are those of the packed weight, padding included."""

    layer: LayerConfig
    compute: ComputeConfig
    facts: DeviceFacts
    figures: Figures | None
    stored_bytes: int
    ranges: tuple[Range, ...]
    points: tuple[Point, ...]
    measured: tuple[Measured, ...]

    @property
    def title(self) -> str:
        """Layer, activations and device in one line."""
        return (
            f"{self.layer.n} x {self.layer.k} {format_weight(self.layer.weight)}, {self.compute.activation} "
            f"activations, on {self.facts.arch.name} with {self.facts.multiprocessors} multiprocessors"
        )

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "layer": {
                "n": self.layer.n,
                "k": self.layer.k,
                "format": format_weight(self.layer.weight),
                "bias": self.layer.bias,
                "stored_bytes": self.stored_bytes,
            },
            "activation": self.compute.activation,
            "output": self.compute.output,
            "target": self.facts.arch.name,
            "multiprocessors": self.facts.multiprocessors,
            "figures": None if self.figures is None else attrs.asdict(self.figures),
            "ranges": [_range_document(each) for each in self.ranges],
            "points": [_point_document(each) for each in self.points],
            "measured": [attrs.asdict(each) for each in self.measured],
        }


def explain(
    layer: LayerConfig,
    compute: ComputeConfig,
    facts: DeviceFacts,
    tokens: Sequence[int],
    max_m: int,
    measured: Sequence[Measured] = (),
) -> Explanation:
    """Explain a layer on a device for 1 to `max_m` tokens, and look closer at each of `tokens`.

    Raises UnsupportedError, with every reason, where no kernel serves the layer.
    """
    found = range_sources(layer, compute, facts, max(max_m, *tokens, 1))
    figures = FIGURES.get((facts.arch.name, facts.multiprocessors))
    stored = sum(
        math.prod(entry[0]) * entry[1].itemsize
        for entry in packed_shapes(layer.weight, layer.n, layer.k).values()
        if entry is not None
    )
    firsts = [1, *(entry.last_m + 1 for entry in found)]
    ranges = tuple(
        Range(first_m=first, last_m=entry.last_m, source=entry.source)
        for first, entry in zip(firsts, found, strict=False)
    )
    points = tuple(
        _point(layer, compute, facts, figures, stored, next(r for r in ranges if m <= r.last_m), m, measured)
        for m in tokens
    )
    return Explanation(
        layer=layer,
        compute=compute,
        facts=facts,
        figures=figures,
        stored_bytes=stored,
        ranges=ranges,
        points=points,
        measured=tuple(measured),
    )


def expected_us(layer: LayerConfig, tuning: TuningConfig, facts: DeviceFacts, m: int) -> float | None:
    """What the target's cost model says of a launch; None where it has none for such a kernel."""
    if not facts.arch.has("wgmma"):
        return None
    if tuning.pipeline is Pipeline.WARP_SPECIALIZED:
        return sm90.wgmma_cost(layer, tuning, facts, m)
    return sm90.few_tokens_cost(layer, tuning, facts, m) if m <= sm90.FEW_TOKENS else None


def _point(
    layer: LayerConfig,
    compute: ComputeConfig,
    facts: DeviceFacts,
    figures: Figures | None,
    stored_bytes: int,
    chosen: Range,
    m: int,
    measured: Sequence[Measured],
) -> Point:
    aligned_k = -(-layer.k // K_STEP) * K_STEP
    launch = chosen.source.recipe.plan(m, layer.n, aligned_k, facts.multiprocessors)
    tuning = chosen.tuning
    tiles = -(-layer.n // tuning.block_n) * -(-m // tuning.block_m)
    expected = expected_us(layer, tuning, facts, m)
    return Point(
        m=m,
        range=chosen,
        launch=launch,
        tiles=tiles,
        why=_why(tuning, facts, tiles, launch.grid, modelled=expected is not None),
        expected_us=expected,
        read_floor_us=None if figures is None else figures.read_start_us + stored_bytes / figures.read_bytes_per_us,
        matrix_floor_us=None if figures is None else 2 * m * layer.n * layer.k / figures.multiply_flop_per_us,
        measured=tuple(each for each in measured if each.m == m),
    )


def _why(tuning: TuningConfig, facts: DeviceFacts, tiles: int, grid: int, *, modelled: bool) -> str:
    """The choice in words: what the kernel does, how the work meets the device, and who decided."""
    if tuning.pipeline is Pipeline.WARP_SPECIALIZED:
        kind = "wgmma, decoded weights in registers, tokens by tensor maps"
    elif tuning.warps_n * tuning.warps_m == 1:
        kind = f"mma.sync, k split over {tuning.warps_k} groups of warps, weights read once"
    else:
        kind = "mma.sync, the same warps copy and multiply"
    spread = f"{tiles} tiles on {facts.multiprocessors} multiprocessors"
    if grid > tiles:
        spread += f", shared by {grid} blocks since whole ones would leave multiprocessors idle"
    elif grid < tiles and tuning.is_split:
        spread += f", dealt evenly to {grid} blocks"
    elif grid < tiles:
        spread += f", walked by {grid} blocks that stay"
    if not modelled:
        by = "first in an order of preference, without a cost model"
    elif tuning.pipeline is Pipeline.WARP_SPECIALIZED:
        by = "least expected time among the layer's kernels"
    else:
        by = f"such kernels were fastest up to {sm90.FEW_TOKENS} tokens in all measurements"
    return f"{kind}; {spread}; {by}"


def _range_document(each: Range) -> dict[str, Any]:
    return {
        "first_m": each.first_m,
        "last_m": each.last_m,
        "symbol": each.source.symbol,
        "tile": each.tile,
        "split": each.split,
        "threads": each.source.recipe.threads,
        "shared_bytes": each.source.recipe.shared_bytes,
        "tuning": attrs.asdict(
            each.tuning,
            value_serializer=lambda _, __, value: value.name.lower() if isinstance(value, enum.Enum) else value,
        ),
    }


def _point_document(point: Point) -> dict[str, Any]:
    return {
        "m": point.m,
        "symbol": point.range.source.symbol,
        "tiles": point.tiles,
        "blocks": point.launch.grid,
        "workspace_bytes": point.launch.workspace_bytes,
        "why": point.why,
        "expected_us": point.expected_us,
        "read_floor_us": point.read_floor_us,
        "matrix_floor_us": point.matrix_floor_us,
        "limit_us": point.limit_us,
        "measured": [attrs.asdict(each) for each in point.measured],
    }
