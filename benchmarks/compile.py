"""What compiling costs: one kernel with an empty cache, then every kernel of a layer on all cores.

Run as `python -m benchmarks.compile`; needs no GPU.
Assumes a target that the installed NVRTC knows; every measurement begins with a new, empty cache folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from humming_compile.request import CompileRequest
from humming_compile.service import CompileService
from humming_compile.settings import Settings
from humming_kernels.arch import DeviceFacts, find_arch
from humming_kernels.compose import KernelSource, compose
from humming_kernels.heuristic import choose, ranges

from benchmarks.report import render
from benchmarks.rows import append_row, environment, row_faults
from tests.support.layers import compute_config, layer_config

MULTIPROCESSORS = {"sm_90a": 132}
LARGEST_M = 4096


def request(source: KernelSource) -> CompileRequest:
    return CompileRequest(
        unit_text=source.unit_text,
        headers=source.headers,
        target=source.target,
        options=source.options,
        name=source.symbol,
    )


def compile_cold(sources: Sequence[KernelSource], workers: int) -> dict[str, Any]:
    """Wall and CPU seconds of compiling all sources with nothing cached and the workers not yet started."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        with CompileService(Settings(cache_folder=Path(folder), workers=workers)) as service:
            artifacts = service.compile_many([request(source) for source in sources])
            wall = time.perf_counter() - begin
    if any(artifact.origin != "compiled" for artifact in artifacts):
        raise RuntimeError("something was cached, so nothing was measured")
    return {
        "cpu_s": round(sum(artifact.cpu_seconds for artifact in artifacts), 3),
        "wall_s": round(wall, 3),
        "kernels": len(artifacts),
        "cores": workers,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--format", default="u4g128:bf16")
    parser.add_argument("--activation", default="bf16")
    parser.add_argument("--shape", default="8192x8192")
    parser.add_argument("--m", default="1,64,4096", help="one kernel is compiled alone for each of these")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", type=Path, default=Path(os.environ.get("OUT", "out")) / "compile.jsonl")
    options = parser.parse_args(arguments)
    n, k = map(int, options.shape.split("x"))
    layer, compute = layer_config(options.format, n, k), compute_config(options.activation)
    device = DeviceFacts(arch=find_arch(options.target), multiprocessors=MULTIPROCESSORS.get(options.target, 100))
    common = environment("compile", os.environ.get("HUMMING_COMMIT"))
    weight, _, scale_number = options.format.partition(":")
    common |= {
        "target": options.target,
        "weight": weight,
        "scale": scale_number or "f16",
        "activation": options.activation,
    }

    def source(tuning: Any) -> KernelSource:
        return compose(layer, compute, tuning, device.arch)

    rows = []
    for m in map(int, options.m.split(",")):
        rows.append({**common, "m": m, **compile_cold([source(choose(layer, compute, device, m))], 1)})
    layer_sources = {}
    for _, _, tuning in ranges(layer, compute, device, LARGEST_M):
        composed = source(tuning)
        layer_sources[composed.unit_text] = composed
    rows.append({**common, "m": f"1 to {LARGEST_M}", **compile_cold(list(layer_sources.values()), options.workers)})
    for row in rows:
        faults = row_faults(row)
        if faults:
            print(f"not a row: {'; '.join(faults)}", file=sys.stderr)
            return 1
        append_row(options.rows, row)
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
