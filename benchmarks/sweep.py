"""Tuning sweeps: for each M a random sample of valid TuningConfigs, then the neighbours of the best ones.

Called by `python -m benchmarks.dense --sweep`.
Assumes that rules.check refuses what cannot run; a config that gives a wrong result is reported and left out.

Every round composes its configs, compiles them side by side on all cores, checks each result against float64 and
races all of them briefly. The best of all rounds then race properly, beside the read floor and the heuristic's choice.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from humming_compile.errors import HummingCompileError
from humming_kernels.arch import Arch
from humming_kernels.compose import compose
from humming_kernels.config import ComputeConfig, LayerConfig, Pipeline, TuningConfig
from humming_kernels.rules import check, scale_places
from humming_torch.errors import HummingTorchError
from humming_torch.pack import pack

from benchmarks.read_floor import readers
from benchmarks.timing import time_interleaved
from tests.support.direct_launch import compile_all, device_facts, forced_call
from tests.support.error_bounds import Reference
from tests.support.layers import canonical, compute_config, layer_config, tuning_of
from tests.support.tunings import place_of, tuning_document
from tests.support.weight_cases import TORCH_DTYPES, make_activation, make_case

FIRST_REPEATS = 7
PARENTS = 3
ROUNDS_OF_NEIGHBOURS = 2
FINALISTS = 12
SHOWN = 5

# Values of each field, for few, some and many tokens.
FEW = {
    "block_n": (16, 32, 64, 128),
    "stage_k": (64, 128, 192),
    "warps_n": (1, 2, 4),
    "warps_m": (1,),
    "warps_k": (2, 4, 8, 16),
    "stages": (2, 3, 4, 6),
    "raster_m": (1,),
    "evict_first": (True, False),
    "split_k": (0, 1, 2, 4),
    "cluster_k": (1,),
    "blocks_per_multiprocessor": (1, 2),
}
SOME = {
    "block_n": (32, 64, 128, 256),
    "stage_k": (64, 128),
    "warps_n": (1, 2, 4, 8),
    "warps_m": (1, 2, 4),
    "warps_k": (1, 2, 4),
    "stages": (2, 3, 4, 6),
    "raster_m": (1, 8),
    "evict_first": (True, False),
    "split_k": (0, 1, 2, 4),
    "cluster_k": (1,),
    "blocks_per_multiprocessor": (1, 2),
}
MANY = {
    **SOME,
    "block_n": (64, 128, 256),
    "warps_k": (1, 2),
    "raster_m": (1, 4, 8, 16, 32),
    "evict_first": (False,),
    "split_k": (0, 1),
}
# The two warpgroups of this pipeline and what they share are fixed.
SPECIALIZED = {
    "block_n": (128,),
    "stage_k": (64, 128),
    "warps_n": (8,),
    "warps_m": (1,),
    "warps_k": (1, 2),
    "stages": (2, 3, 4, 5, 6, 8, 10, 12),
    "raster_m": (1, 2, 4, 8, 16, 32),
    "evict_first": (True, False),
    "split_k": (0, 1, 2, 3, 4),
    "cluster_k": (1, 2),
    "blocks_per_multiprocessor": (1,),
}

Fields = dict[str, tuple[Any, ...]]


def multistage_fields(m: int) -> Fields:
    if m <= 32:
        return {**FEW, "block_m": tuple(size for size in (8, 16, 32) if size >= m)[:1]}
    if m <= 256:
        return {**SOME, "block_m": tuple(size for size in (32, 64, 96, 128, 192, 256) if size < 2 * m)}
    return {**MANY, "block_m": (64, 96, 128, 192, 256)}


def specialized_fields(m: int) -> Fields:
    sizes = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
    return {**SPECIALIZED, "block_m": tuple(size for size in sizes if size == 8 or m / 4 <= size < 2 * m)[-5:]}


class Space:
    """The valid configs for one layer and M: one set of fields for each pipeline that the target has."""

    def __init__(self, layer: LayerConfig, compute: ComputeConfig, arch: Arch, m: int, start: TuningConfig) -> None:
        self.layer, self.compute, self.arch, self.start = layer, compute, arch, start
        places = {"scale_place": scale_places(layer, compute)}
        self.fields: dict[Pipeline, Fields] = {Pipeline.MULTISTAGE: {**multistage_fields(m), **places}}
        if m > 8 and self.arch.has("wgmma"):
            self.fields[Pipeline.WARP_SPECIALIZED] = {**specialized_fields(m), **places}

    def valid(self, tuning: TuningConfig) -> bool:
        return 64 <= tuning.threads <= 512 and not check(self.layer, self.compute, tuning, self.arch)

    def sample(self, count: int, seed: int = 0) -> list[TuningConfig]:
        """The starting config and up to `count` others, in equal parts of every pipeline."""
        generator = random.Random(seed)
        found = {self.start: None}
        for part, (pipeline, fields) in enumerate(self.fields.items(), 1):
            for _ in range(100 * count):
                values = {name: generator.choice(choices) for name, choices in fields.items()}
                tuning = attrs.evolve(self.start, pipeline=pipeline, **values)
                if tuning not in found and self.valid(tuning):
                    found[tuning] = None
                if len(found) > count * part // len(self.fields):
                    break
        return list(found)

    def neighbours(self, tuning: TuningConfig) -> Iterator[TuningConfig]:
        """Every valid config that differs in one field."""
        for name, values in self.fields.get(tuning.pipeline, {}).items():
            for value in values:
                other = attrs.evolve(tuning, **{name: value})
                if other != tuning and self.valid(other):
                    yield other


class Race:
    """All configs that were tried for one layer and M, and their first times."""

    def __init__(self, text: str, n: int, k: int, activation: str, m: int) -> None:
        self.layer, self.compute, self.facts = layer_config(text, n, k), compute_config(activation), device_facts()
        self.case = make_case(text, n, k)
        self.packed = pack(canonical(self.case))
        dtype = TORCH_DTYPES[activation]
        self.m = m
        self.rows = make_activation(m, k, dtype, seed=m)
        self.output = torch.empty((m, n), dtype=dtype, device="cuda")
        self.references: dict[str, Reference] = {}
        self.calls: dict[TuningConfig, Callable[[], object]] = {}
        self.first_us: dict[TuningConfig, float] = {}

    def enter(self, tunings: list[TuningConfig]) -> None:
        """Compile, check and briefly time the configs that are new."""
        fresh = [tuning for tuning in dict.fromkeys(tunings) if tuning not in self.first_us]
        entered: dict[TuningConfig, Callable[[], object]] = {}
        for tuning in self.compiled(fresh):
            try:
                call = forced_call(self.layer, self.compute, tuning, self.packed, self.rows, self.output)
            except (RuntimeError, HummingCompileError, HummingTorchError) as error:
                print(f"  does not load: {document(tuning)}: {error}", flush=True)
                continue
            if self.is_right(tuning, call):
                entered[tuning] = call
        self.first_us |= dict.fromkeys(fresh, float("inf"))
        if entered:
            timings = time_interleaved({document(tuning): call for tuning, call in entered.items()}, FIRST_REPEATS)
            self.first_us |= {tuning: timings[document(tuning)].median_us for tuning in entered}
        self.calls |= entered

    def compiled(self, tunings: list[TuningConfig]) -> list[TuningConfig]:
        """Those that compile; the others are named."""
        sources = [compose(self.layer, self.compute, tuning, self.facts.arch) for tuning in tunings]
        with contextlib.suppress(HummingCompileError):
            compile_all(sources)
            return tunings
        found = []
        for tuning, source in zip(tunings, sources, strict=True):
            try:
                compile_all([source])
                found.append(tuning)
            except HummingCompileError as error:
                print(f"  does not compile: {document(tuning)}: {str(error)[:300]}", flush=True)
        return found

    def is_right(self, tuning: TuningConfig, call: Callable[[], object]) -> bool:
        self.output.fill_(float("nan"))
        try:
            call()
        except (RuntimeError, HummingCompileError, HummingTorchError) as error:
            print(f"  does not launch: {document(tuning)}: {error}", flush=True)
            return False
        place = place_of(tuning)
        if place not in self.references:
            self.references[place] = Reference(self.case, self.rows, place)
        reference, rows = self.references[place], slice(0, self.m)
        error, bound = reference.error(self.output, rows), reference.bound(rows)
        if error <= bound:
            return True
        print(f"  wrong at M={self.m}: {document(tuning)}: error {error:.2e}, bound {bound:.2e}", flush=True)
        return False

    def best(self, count: int) -> list[TuningConfig]:
        return sorted(self.calls, key=lambda tuning: self.first_us[tuning])[:count]


def run(options: argparse.Namespace) -> int:
    for text, (n, k), activation in itertools.product(options.formats, options.shapes, options.activation):
        print(f"{text} {n}x{k} {activation}", flush=True)
        for m in options.m:
            race = Race(text, n, k, activation, m)
            start = tuning_of(race.case, activation, m)
            space = Space(race.layer, race.compute, race.facts.arch, m, start)
            race.enter(space.sample(options.limit))
            for _ in range(ROUNDS_OF_NEIGHBOURS):
                race.enter([other for parent in race.best(PARENTS) for other in space.neighbours(parent)])
            finish(race, start, options)
    return 0


def finish(race: Race, start: TuningConfig, options: argparse.Namespace) -> None:
    """Race the best configs and the heuristic's choice properly; print and store their times."""
    if not race.calls:
        print(f"  M={race.m}: no config gives the right result", flush=True)
        return
    chosen = [tuning for tuning in dict.fromkeys([*race.best(FINALISTS), start]) if tuning in race.calls]
    floors = readers(race.case.stored_bytes)
    timings = time_interleaved({**{document(t): race.calls[t] for t in chosen}, **floors}, options.repeats)
    floor = min(timings[name].median_us for name in floors)
    order = sorted(map(document, chosen), key=lambda name: timings[name].median_us)
    heuristic = timings.get(document(start))
    print(
        f"  M={race.m}: floor {floor:.1f}, heuristic {'wrong' if heuristic is None else f'{heuristic.median_us:.1f}'}, "
        f"best {timings[order[0]].median_us:.1f} of {len(race.calls)} configs",
        flush=True,
    )
    for name in order[:SHOWN]:
        print(f"    {timings[name].median_us:7.1f}  {name}", flush=True)
    path = options.rows.with_name("sweep.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        for name in order:
            line: dict[str, Any] = {"format": race.case.text, "n": race.case.n, "k": race.case.k}
            line |= {"activation": race.compute.activation, "m": race.m, "config": json.loads(name)}
            line |= {"median_us": timings[name].median_us, "floor_us": floor, "is_heuristic": name == document(start)}
            stream.write(json.dumps(line) + "\n")


def document(tuning: TuningConfig) -> str:
    """A TuningConfig as one line of JSON, what --config takes."""
    return json.dumps(tuning_document(tuning))
