"""Tuning sweeps: many TuningConfigs for each M, compiled side by side first, then raced in two rounds.

Called by `python -m benchmarks.dense --sweep`.
Assumes that rules.check refuses what cannot run; a config that gives a wrong result is reported and left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from typing import Any

import attrs
import torch
from humming_kernels.config import ComputeConfig, LayerConfig, TuningConfig
from humming_kernels.rules import check

from benchmarks.read_floor import readers
from benchmarks.timing import time_interleaved
from tests.support.direct_launch import BoundKernel, DirectKernel, compile_all, compose_direct, device_facts
from tests.support.error_bounds import Reference
from tests.support.layers import compute_config, layer_config, make_linear, packed_tensors, place_of, tuning_for
from tests.support.weight_cases import TORCH_DTYPES, make_activation, make_case

FIRST_REPEATS = 5
FINALISTS = 12
SHOWN = 5

BLOCK_N = (16, 32, 64, 128, 256)
BLOCK_M = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
STAGE_K = (64, 128, 256)
WARPS = (1, 2, 4, 8, 16)
STAGES = (2, 3, 4, 5, 6, 8)


def candidates(layer: LayerConfig, compute: ComputeConfig, start: TuningConfig, m: int, limit: int) -> list[TuningConfig]:
    """Valid configs near the sizes that suit m, thinned evenly to at most `limit`; `start` is always the first."""
    fitting = [size for size in BLOCK_M if size < 2 * max(m, 8) or size == 8]
    useful = fitting[-3:] if m > 8 else fitting[:1]
    found = [tuning for tuning in grid(start, useful) if not check(layer, compute, tuning, device_facts().arch)]
    if len(found) > limit:
        found = [found[index * len(found) // limit] for index in range(limit)]
    return [start, *(tuning for tuning in found if tuning != start)]


def grid(start: TuningConfig, token_tiles: list[int]) -> Iterator[TuningConfig]:
    places = type(start.scale_place)
    for block_n, block_m, stage_k, warps_n, warps_m, warps_k, stages, place, evict in itertools.product(
        BLOCK_N, token_tiles, STAGE_K, WARPS, (1, 2, 4), WARPS, STAGES, places, (True, False)
    ):
        if 4 <= warps_n * warps_m * warps_k <= 16:
            yield attrs.evolve(
                start,
                block_n=block_n,
                block_m=block_m,
                stage_k=stage_k,
                warps_n=warps_n,
                warps_m=warps_m,
                warps_k=warps_k,
                stages=stages,
                scale_place=place,
                evict_first=evict,
            )


def run(options: argparse.Namespace) -> int:
    for text in options.formats:
        for n, k in options.shapes:
            for activation in options.activation:
                sweep_layer(text, n, k, activation, options)
    return 0


def sweep_layer(text: str, n: int, k: int, activation: str, options: argparse.Namespace) -> None:
    facts, dtype = device_facts(), TORCH_DTYPES[activation]
    layer, compute = layer_config(text, n, k), compute_config(activation)
    case = make_case(text, n, k)
    tensors = packed_tensors(make_linear(case, dtype, max_m=1))
    wanted = {
        m: candidates(layer, compute, tuning_for(layer, compute, facts, m), m, options.limit) for m in options.m
    }
    distinct = list(dict.fromkeys(tuning for tunings in wanted.values() for tuning in tunings))
    print(f"{text} {n}x{k} {activation}: compiling {len(distinct)} kernels", flush=True)
    cubins = dict(zip(distinct, compile_all([compose_direct(layer, compute, t, facts) for t in distinct]), strict=True))

    for m, tunings in wanted.items():
        rows = make_activation(m, k, dtype, seed=m)
        output = torch.empty((m, n), dtype=dtype, device="cuda")
        calls: dict[TuningConfig, BoundKernel] = {}
        references: dict[str, Reference] = {}
        for tuning in tunings:
            call = DirectKernel(layer, compute, tuning, facts, cubins[tuning]).bind(tensors, rows, output)
            output.fill_(float("nan"))
            call()
            place = place_of(tuning)
            reference = references.setdefault(place, Reference(case, rows, place))
            error, bound = reference.error(output, slice(0, m)), reference.bound(slice(0, m))
            if error <= bound:
                calls[tuning] = call
            else:
                print(f"  wrong: M={m} {document(tuning)}: error {error:.2e}, bound {bound:.2e}", flush=True)
        report_best(text, n, k, activation, m, tunings[0], calls, case.stored_bytes, options)


def report_best(
    text: str,
    n: int,
    k: int,
    activation: str,
    m: int,
    start: TuningConfig,
    calls: dict[TuningConfig, BoundKernel],
    stored_bytes: float,
    options: argparse.Namespace,
) -> None:
    named = {document(tuning): call for tuning, call in calls.items()}
    if not named:
        print(f"  M={m}: no config gives the right result", flush=True)
        return
    first = time_interleaved(named, FIRST_REPEATS)
    best = sorted(named, key=lambda name: first[name].median_us)[:FINALISTS]
    final = {name: named[name] for name in dict.fromkeys([*best, document(start)]) if name in named}
    floors = readers(stored_bytes)
    timings = time_interleaved({**final, **floors}, options.repeats)
    floor = min(timings[name].median_us for name in floors)
    order = sorted(final, key=lambda name: timings[name].median_us)
    chosen = timings.get(document(start))
    print(
        f"  M={m}: floor {floor:.1f}, heuristic {'wrong' if chosen is None else f'{chosen.median_us:.1f}'}, "
        f"{len(named)} configs",
        flush=True,
    )
    for name in order[:SHOWN]:
        print(f"    {timings[name].median_us:7.1f}  {name}", flush=True)
    path = options.rows.with_name("sweep.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        for name in order:
            line: dict[str, Any] = {"format": text, "n": n, "k": k, "activation": activation, "m": m}
            line |= {"config": json.loads(name), "median_us": timings[name].median_us, "floor_us": floor}
            stream.write(json.dumps(line) + "\n")


def document(tuning: TuningConfig) -> str:
    """A TuningConfig as one line of JSON, what --config takes."""
    values = attrs.asdict(tuning, recurse=False)
    return json.dumps({name: getattr(value, "value", value) for name, value in values.items()})
