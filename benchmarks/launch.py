"""What one call of a layer costs on the CPU: allocating its output, and into a given one, beside torch.mm.

Run as `python -m benchmarks.launch`.
Assumes a CUDA device; the GPU is kept busy meanwhile, so that only the enqueueing is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.dense import described
from benchmarks.report import render
from benchmarks.rows import append_row, environment, row_faults
from benchmarks.timing import enqueue_us
from tests.support.error_bounds import Reference
from tests.support.layers import make_linear, scale_place
from tests.support.weight_cases import TORCH_DTYPES, make_activation, make_case


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", default="u4g128:bf16")
    parser.add_argument("--activation", default="bf16")
    parser.add_argument("--shape", default="1024x1024")
    parser.add_argument("--m", default="1,64")
    parser.add_argument("--rows", type=Path, default=Path(os.environ.get("OUT", "out")) / "launch.jsonl")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("needs a CUDA device, torch sees none", file=sys.stderr)
        return 2
    n, k = map(int, options.shape.split("x"))
    dtype = TORCH_DTYPES[options.activation]
    tokens = [int(part) for part in options.m.split(",")]
    case = make_case(options.format, n, k)
    linear = make_linear(case, dtype, max_m=max(tokens))
    weight = case.exact().to(dtype).t()
    common = environment("launch", os.environ.get("HUMMING_COMMIT"))
    rows, status = [], 0
    for m in tokens:
        activation = make_activation(m, k, dtype)
        output = torch.full((m, n), float("nan"), dtype=dtype, device="cuda")
        linear.forward_into(activation, output)
        reference = Reference(case, activation, scale_place(case, options.activation, m))
        measured = {
            "allocating": (partial(linear.module, activation), partial(torch.mm, activation, weight)),
            "out=": (
                partial(linear.forward_into, activation, output),
                partial(torch.mm, activation, weight, out=output),
            ),
        }
        checked = {
            "relative_error": reference.error(output, slice(0, m)),
            "bound": reference.bound(slice(0, m)),
        }
        for call, (ours, vendor) in measured.items():
            with torch.no_grad():
                row = {
                    **common,
                    "m": m,
                    "n": n,
                    "k": k,
                    **described(case, options.activation),
                    "call": call,
                    "us_per_call": round(enqueue_us(ours), 2),
                    "peers": {"torch_mm": round(enqueue_us(vendor), 2)},
                    **checked,
                }
            faults = row_faults(row)
            if faults:
                status = 1
                print(f"not a row: {call} M={m}: {'; '.join(faults)}", file=sys.stderr)
                continue
            rows.append(row)
            append_row(options.rows, row)
    print(render(rows))
    return status


if __name__ == "__main__":
    sys.exit(main())
