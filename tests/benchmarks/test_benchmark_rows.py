"""Committed benchmark rows are rows: every key there, every error inside its bound.

Called by pytest; needs no GPU.
Assumes benchmarks/results/<gpu>/<bench>.jsonl.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.rows import RESULTS, newest, read_rows, row_faults

ROW = {
    "bench": "dense",
    "gpu": "NVIDIA H200",
    "driver": "580.159.03",
    "cuda": "13.0",
    "torch": "2.11.0",
    "commit": "0123456789ab",
    "date": "2026-11-29T20:00:00+00:00",
    "m": 16,
    "n": 8192,
    "k": 8192,
    "weight": "u4",
    "scale": "g128 bf16",
    "activation": "bf16",
    "kernel": "dense",
    "config": {"block_n": 64},
    "median_us": 15.2,
    "min_us": 14.9,
    "floor_us": 13.7,
    "limit_us": 13.7,
    "peers": {"cublas_bf16": 44.2},
    "accumulation": "precise",
    "relative_error": 0.0023,
    "bound": 0.004,
}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*.jsonl")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_committed_rows_are_valid(path: Path) -> None:
    rows = read_rows(path)
    assert rows, "an empty file claims nothing and should go"
    faults = [f"line {number}: {fault}" for number, row in enumerate(rows, 1) for fault in row_faults(row)]
    faults += [
        f"line {number}: bench is {row['bench']}, the file is {path.name}"
        for number, row in enumerate(rows, 1)
        if row["bench"] != path.stem
    ]
    assert not faults, "\n".join(faults)


def test_good_row_has_no_faults() -> None:
    assert row_faults(ROW) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"relative_error": 0.005}, "above its bound"),
        ({"relative_error": float("nan")}, "finite"),
        ({"median_us": "15"}, "wrong type"),
        ({"m": True}, "wrong type"),
        ({"floor_us": -1.0}, "negative"),
        ({"peers": {"cublas_bf16": 0}}, "positive"),
        ({"peers": {"cublas_bf16": None}}, "positive"),
        ({"bench": "dnese"}, "wanted one of"),
    ],
)
def test_faults_are_named(change: dict[str, object], fault: str) -> None:
    assert any(fault in line for line in row_faults({**ROW, **change}))


@pytest.mark.parametrize("key", sorted(set(ROW) - {"bench"}))
def test_missing_key_is_named(key: str) -> None:
    row = {name: value for name, value in ROW.items() if name != key}
    assert f"{key} is missing" in row_faults(row)


def test_newest_row_of_a_point_counts() -> None:
    older = {**ROW, "date": "2026-11-28T20:00:00+00:00", "median_us": 20.0}
    other = {**ROW, "m": 1}
    assert newest([ROW, older, other]) == [ROW, other]


def test_report_renders_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dense.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (ROW, {**ROW, "m": 1, "peers": {}}, {"bench": "dense"})))
    assert report.main([str(path)]) == 0
    captured = capsys.readouterr()
    assert "not a row" in captured.err
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in captured.out.splitlines() if "|" in line]
    assert [line[0] for line in lines[2:]] == ["1", "16"]
    sixteen = dict(zip(lines[0], lines[3], strict=True))
    assert sixteen["x floor"] == "1.11"
    assert sixteen["/ cublas_bf16"] == "0.34"
    assert dict(zip(lines[0], lines[2], strict=True))["/ cublas_bf16"] == "-"
