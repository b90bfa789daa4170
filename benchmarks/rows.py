"""Rows: one JSON line per measured point, the only form in which a speed is claimed.

Called by the scripts here, by report.py and by the test of the committed rows.
Assumes nothing beyond the standard library (torch only inside `environment`).
"""

from __future__ import annotations

import datetime
import json
import math
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

COMMON_KEYS = {
    "bench": str,
    "gpu": str,
    "driver": str,
    "cuda": str,
    "torch": str,
    "commit": str,
    "date": str,
}
BENCH_KEYS: dict[str, dict[str, Any]] = {
    "dense": {
        "m": int,
        "n": int,
        "k": int,
        "weight": str,
        "scale": str,
        "activation": str,
        "kernel": str,
        "config": dict,
        "median_us": (int, float),
        "min_us": (int, float),
        "floor_us": (int, float),
        "limit_us": (int, float),
        "peers": dict,
        "accumulation": str,
        "relative_error": (int, float),
        "bound": (int, float),
    },
    "compile": {
        "target": str,
        "weight": str,
        "scale": str,
        "activation": str,
        "cpu_s": (int, float),
        "wall_s": (int, float),
        "kernels": int,
        "cores": int,
    },
    "launch": {
        "m": int,
        "n": int,
        "k": int,
        "weight": str,
        "scale": str,
        "activation": str,
        "call": str,
        "us_per_call": (int, float),
        "peers": dict,
        "relative_error": (int, float),
        "bound": (int, float),
    },
}
# Two rows that agree on these are measurements of the same point; the newest counts.
POINT_KEYS: dict[str, tuple[str, ...]] = {
    "dense": ("gpu", "m", "n", "k", "weight", "scale", "activation", "accumulation"),
    "compile": ("gpu", "target", "m", "weight", "scale", "activation", "cores"),
    "launch": ("gpu", "m", "n", "k", "weight", "scale", "activation", "call"),
}


def row_faults(row: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a row, in words; empty when it may be committed."""
    bench = row.get("bench")
    if bench not in BENCH_KEYS:
        return [f"bench is {bench!r}, wanted one of {', '.join(sorted(BENCH_KEYS))}"]
    faults = []
    for key, kind in {**COMMON_KEYS, **BENCH_KEYS[bench]}.items():
        if key not in row:
            faults.append(f"{key} is missing")
            continue
        value = row[key]
        if isinstance(value, bool) or not isinstance(value, kind):
            faults.append(f"{key} is {value!r}, of the wrong type")
        elif isinstance(value, (int, float)) and not math.isfinite(value):
            faults.append(f"{key} is {value!r}, wanted a finite number")
        elif isinstance(value, (int, float)) and value < 0:
            faults.append(f"{key} is {value!r}, wanted no negative number")
    for name, value in (row.get("peers") or {}).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            faults.append(f"peer {name} is {value!r}, wanted a positive number of microseconds")
    if not faults and "bound" in row and row["relative_error"] > row["bound"]:
        faults.append(f"relative_error {row['relative_error']} is above its bound {row['bound']}")
    return faults


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def newest(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of every point, in the order in which the points first appear."""
    chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        point = (row["bench"], *(row.get(key) for key in POINT_KEYS[row["bench"]]))
        if point not in chosen or row["date"] >= chosen[point]["date"]:
            chosen[point] = row
    return list(chosen.values())


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def environment(bench: str, commit: str | None = None) -> dict[str, Any]:
    """The keys that every row begins with: which question, which machine, which code, when."""
    import torch

    gpu, driver = "none", "none"
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
        driver = first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]) or "unknown"
    return {
        "bench": bench,
        "gpu": gpu,
        "driver": driver,
        "cuda": torch.version.cuda or "none",
        "torch": torch.__version__,
        "commit": commit or first_line(["git", "rev-parse", "--short=12", "HEAD"]) or "unknown",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else ""
