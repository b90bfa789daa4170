"""Renders committed or fresh rows as tables: microseconds and ratios to the floor, the limit and every peer.

Run as `python -m benchmarks.report [FILE ...] [--all]`; without FILE it takes everything under benchmarks/results.
Assumes rows as benchmarks/rows.py describes them; needs the standard library alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS, newest, read_rows, row_faults

Row = dict[str, Any]


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(2, *(len(line[column]) for line in [header, *lines])) for column in range(len(header))]
    rendered = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [header, *lines]
    ]
    rendered.insert(1, "| " + " | ".join("-" * (width - 1) + ":" for width in widths) + " |")
    return "\n".join(rendered)


def dense_tables(rows: Sequence[Row]) -> list[str]:
    def layer(row: Row) -> tuple[Any, ...]:
        return row["gpu"], row["n"], row["k"], row["weight"], row["scale"], row["activation"]

    parts = []
    for (gpu, n, k, weight, scale, activation), group in groupby(sorted(rows, key=layer), key=layer):
        points = sorted(group, key=lambda row: row["m"])
        peers = sorted({name for row in points for name in row["peers"]})
        header = ["M", "us", "min", "floor", "limit", "x floor", "x limit", *peers, *(f"/ {p}" for p in peers), "error"]
        lines = []
        for row in points:
            median = row["median_us"]
            times = [row["peers"].get(name) for name in peers]
            lines.append(
                [
                    str(row["m"]),
                    *(f"{row[key]:.1f}" for key in ("median_us", "min_us", "floor_us", "limit_us")),
                    f"{median / row['floor_us']:.2f}",
                    f"{median / row['limit_us']:.2f}",
                    *("-" if time is None else f"{time:.1f}" for time in times),
                    *("-" if time is None else f"{median / time:.2f}" for time in times),
                    f"{row['relative_error']:.1e}",
                ]
            )
        parts.append(f"{weight} {scale}, {activation}, N = {n}, K = {k} on {gpu}\n\n{table(header, lines)}")
    return parts


def plain_table(rows: Sequence[Row]) -> str:
    skip = {"bench", "gpu", "driver", "cuda", "torch", "commit", "date", "config", "kernel"}
    header = [key for key in rows[0] if key not in skip]
    return table(header, [[shown(row.get(key, "-")) for key in header] for row in rows])


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(item)}" for key, item in value.items())
    return str(value)


def render(rows: Sequence[Row]) -> str:
    parts = []
    for bench in ("dense", "compile", "launch"):
        chosen = [row for row in rows if row["bench"] == bench]
        if chosen:
            parts += dense_tables(chosen) if bench == "dense" else [plain_table(chosen)]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--all", action="store_true", help="also rows that a newer row of the same point replaces")
    options = parser.parse_args(arguments)
    files = options.files or sorted(RESULTS.glob("*/*.jsonl"))
    rows: list[Row] = []
    for path in files:
        for number, row in enumerate(read_rows(path), 1):
            faults = row_faults(row)
            if faults:
                print(f"{path}:{number}: not a row: {'; '.join(faults)}", file=sys.stderr)
            else:
                rows.append(row)
    if not rows:
        print("no rows", file=sys.stderr)
        return 1
    print(render(rows if options.all else newest(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
