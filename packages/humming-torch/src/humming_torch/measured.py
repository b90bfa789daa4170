"""Measured rows of dense layers: JSON lines that the benchmarks write, found by layer.

Called by explain.py.
Assumes the keys that the repository's benchmarks state (m, n, k, weight, scale, activation, median_us, peers, ...).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from humming_format.weight import WeightFormat
from humming_format.zero_point import ZeroPointKind

from humming_torch.errors import HummingTorchError

_STORED = {ZeroPointKind.INTEGER: " zero point", ZeroPointKind.MINIMUM: " minimum"}


@attrs.frozen(kw_only=True)
class Measured:
    """One measured point. Times are medians in microseconds; `peers` were timed in the same process."""

    gpu: str
    m: int
    kernel: str
    median_us: float
    floor_us: float
    limit_us: float
    peers: Mapping[str, float]
    commit: str
    date: str


def row_words(weight_format: WeightFormat) -> tuple[str, str]:
    """How rows describe a format: weight "u4" or "u4 zero point", scale "g128 bf16" or "channel f32"."""
    scale = weight_format.scale
    weight = weight_format.number.name + _STORED.get(weight_format.zero_point.kind, "")
    if scale is None:
        return weight, ""
    return weight, f"{f'g{scale.group_k}' if scale.group_k else 'channel'} {scale.number.name}"


def measured_rows(folder: Path, weight_format: WeightFormat, n: int, k: int, activation: str) -> tuple[Measured, ...]:
    """The newest row of every (GPU, M) for this layer under `folder`, by GPU and M; none where there is no folder.

    Raises HummingTorchError, naming file and line, for a row that cannot be read.
    """
    weight, scale = row_words(weight_format)
    wanted = {"bench": "dense", "n": n, "k": k, "weight": weight, "scale": scale, "activation": activation}
    newest: dict[tuple[str, int], Measured] = {}
    for place, row in _rows(folder):
        if any(row.get(name) != value for name, value in wanted.items()):
            continue
        try:
            found = Measured(**{field.name: row[field.name] for field in attrs.fields(Measured)})
        except KeyError as error:
            raise HummingTorchError(f"{place}: a row without {error.args[0]}") from error
        key = found.gpu, found.m
        if key not in newest or found.date >= newest[key].date:
            newest[key] = found
    return tuple(newest[key] for key in sorted(newest))


def _rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(folder.glob("**/*.jsonl")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise HummingTorchError(f"{file}, line {number}, is not JSON", got=line[:40]) from error
            if isinstance(row, dict):
                yield f"{file}, line {number}", row
