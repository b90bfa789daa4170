"""Dense layers: one call of our layer against the read floor, the matrix floor and peers, as timing.py measures.

Run as `python -m benchmarks.dense`; `--sweep` compares many TuningConfigs instead (benchmarks/sweep.py).
Assumes a CUDA device; rows go to --rows, one for each (format, shape, activation, M), each with its error checked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from humming_kernels.compose import compose

from benchmarks import sweep
from benchmarks.peers import cublas, upstream
from benchmarks.read_floor import readers
from benchmarks.report import render
from benchmarks.rows import append_row, environment, row_faults
from benchmarks.timing import REPEATS, time_interleaved
from tests.support.direct_launch import compile_all, device_facts, forced_call, heuristic_sources
from tests.support.error_bounds import Reference
from tests.support.layers import LayerUnderTest, compute_config, layer_config, make_linear, tuning_of
from tests.support.tunings import place_of, tuning_document, tuning_from_document
from tests.support.weight_cases import TORCH_DTYPES, WeightCase, make_activation, make_case

# The rate of the vendor's bf16 product on an H200; f16 runs at the same rate.
MATRIX_FLOPS = 795e12
SHAPES = ((8192, 8192), (4096, 14336))
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
QUICK_TOKENS = (1, 16, 64, 256)
FORMATS = ("u4g128:bf16",)
PEERS = ("cublas", "upstream")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=",".join(f"{n}x{k}" for n, k in SHAPES), help="NxK,NxK,...")
    parser.add_argument("--m", default=None, help="token counts, comma separated")
    parser.add_argument("--formats", default=",".join(FORMATS), help="weight formats, as humming_format writes them")
    parser.add_argument("--activation", default="bf16", help="bf16, f16 or both, comma separated")
    parser.add_argument("--peers", default=",".join(PEERS), help="cublas, upstream, or none")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--quick", action="store_true", help="one shape, four token counts")
    parser.add_argument("--config", default=None, help="TuningConfig fields as JSON: force this kernel")
    parser.add_argument("--sweep", action="store_true", help="try many TuningConfigs for each M and print the best")
    parser.add_argument("--limit", type=int, default=160, help="configs of the first round of a sweep")
    parser.add_argument("--rows", type=Path, default=Path(os.environ.get("OUT", "out")) / "dense.jsonl")
    options = parser.parse_args(arguments)
    options.m = numbers(options.m) if options.m else (QUICK_TOKENS if options.quick else TOKENS)
    options.shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
    if options.quick:
        options.shapes = options.shapes[:1]
    options.formats = options.formats.split(",")
    options.activation = options.activation.split(",")
    options.peers = [] if options.peers == "none" else options.peers.split(",")
    return options


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


class Layer:
    """One weight with everything that is measured on it."""

    def __init__(self, text: str, n: int, k: int, activation: str, options: argparse.Namespace) -> None:
        self.facts = device_facts()
        self.case: WeightCase = make_case(text, n, k)
        self.activation = activation
        self.dtype = TORCH_DTYPES[activation]
        self.layer, self.compute = layer_config(text, n, k), compute_config(activation)
        self.linear: LayerUnderTest = make_linear(self.case, self.dtype, max_m=max(options.m))
        self.forced = tuning_from_document(json.loads(options.config)) if options.config else None
        self.readers = readers(self.case.stored_bytes)
        self.real: torch.Tensor | None = None
        self.upstream: torch.nn.Module | None = None
        if "cublas" in options.peers:
            self.real = self.case.exact().to(self.dtype)
        if "upstream" in options.peers:
            self.upstream = self.make_upstream()

    def make_upstream(self) -> torch.nn.Module | None:
        reason = "not on the path" if not upstream.is_present() else upstream.unsupported(self.case)
        if reason:
            print(f"peer upstream: {reason}", flush=True)
            return None
        try:
            return upstream.checked_layer(self.case, self.dtype)
        except (RuntimeError, ValueError, TypeError, KeyError, ImportError, AssertionError, OSError) as error:
            print(f"peer upstream failed: {type(error).__name__}: {error}", flush=True)
            return None

    def measure(self, m: int, repeats: int) -> dict[str, Any]:
        """One row without the keys of the environment."""
        n, k = self.case.n, self.case.k
        rows = make_activation(m, k, self.dtype, seed=m)
        tuning = self.forced or tuning_of(self.case, self.activation, m)
        source = compose(self.layer, self.compute, tuning, self.facts.arch)
        output = torch.full((m, n), float("nan"), dtype=self.dtype, device="cuda")
        call: Callable[[], object] = partial(self.linear.forward_into, rows, output)
        if self.forced:
            call = forced_call(self.layer, self.compute, tuning, self.linear.packed, rows, output)
        candidates: dict[str, Callable[[], object]] = {"humming": call, **self.readers}
        other = torch.empty_like(output)
        if self.real is not None:
            candidates[f"cublas_{self.activation}"] = cublas.matmul(self.real, rows, other)
        if self.upstream is not None:
            candidates["upstream"] = upstream.matmul(self.upstream, rows, other)
        timings = time_interleaved(candidates, repeats)

        output.fill_(float("nan"))
        call()
        reference = Reference(self.case, rows, place_of(tuning))
        ours = timings.pop("humming")
        floor = min((timings.pop(name) for name in self.readers), key=lambda timing: timing.median_us)
        return {
            "m": m,
            "n": n,
            "k": k,
            **described(self.case, self.activation),
            "kernel": source.symbol,
            "config": tuning_document(tuning),
            "median_us": round(ours.median_us, 2),
            "min_us": round(ours.min_us, 2),
            "floor_us": round(floor.median_us, 2),
            "limit_us": round(max(floor.median_us, 2 * m * n * k / MATRIX_FLOPS * 1e6), 2),
            "peers": {name: round(timing.median_us, 2) for name, timing in timings.items()},
            "accumulation": "precise",
            "relative_error": reference.error(output, slice(0, m)),
            "bound": reference.bound(slice(0, m)),
        }


def described(case: WeightCase, activation: str) -> dict[str, str]:
    """The format in the words of a row: weight "u4" or "u4 zero point", scale "g128 bf16" or "channel f32"."""
    weight_format = case.weight_format
    stored = {"INTEGER": " zero point", "MINIMUM": " minimum"}.get(weight_format.zero_point.kind.name, "")
    group = weight_format.scale.group_k
    return {
        "weight": weight_format.number.name + stored,
        "scale": f"{f'g{group}' if group else 'channel'} {weight_format.scale.number.name}",
        "activation": activation,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if not torch.cuda.is_available():
        print("needs a CUDA device, torch sees none", file=sys.stderr)
        return 2
    if options.sweep:
        return sweep.run(options)
    everything = [
        (text, n, k, activation)
        for text in options.formats
        for n, k in options.shapes
        for activation in options.activation
    ]
    if not options.config:
        compile_all(
            heuristic_sources(
                [(layer_config(text, n, k), compute_config(activation)) for text, n, k, activation in everything],
                max(options.m),
                device_facts(),
            )
        )
    common = environment("dense", os.environ.get("HUMMING_COMMIT"))
    rows, wrong = [], 0
    for text, n, k, activation in everything:
        layer = Layer(text, n, k, activation, options)
        for m in options.m:
            row = {**common, **layer.measure(m, options.repeats)}
            faults = row_faults(row)
            if faults:
                wrong += 1
                print(f"not a row: {text} {n}x{k} {activation} M={m}: {'; '.join(faults)}", flush=True)
                continue
            rows.append(row)
            append_row(options.rows, row)
            print(
                f"{text} {n}x{k} {activation} M={m}: {row['median_us']} us, floor {row['floor_us']}, {row['peers']}",
                flush=True,
            )
    print(render(rows))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
