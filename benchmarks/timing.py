"""Times single GPU calls, several candidates interleaved in one process.

Called by every script here that measures on a device.
Assumes CUDA, and candidates that only enqueue work on the current stream (no synchronising, no allocation that does).

One measurement is: write a 256 MB buffer (cold and dirty L2), spin on the GPU long enough that the CPU has enqueued
everything below, record an event, make the call, record an event. Candidates take turns within every repeat, so that a
drift of clocks or power reaches all of them alike. An empty pair of events reads about 2.8 us; it is not subtracted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

REPEATS = 31
FLUSH_BYTES = 256 << 20
# Longer than the CPU needs to enqueue one call, in cycles of about 2 GHz.
SPIN_CYCLES = 400_000


@dataclass(frozen=True)
class Timing:
    """Microseconds of one candidate over all repeats."""

    samples: tuple[float, ...]

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples)

    @property
    def min_us(self) -> float:
        return min(self.samples)


def time_interleaved(candidates: Mapping[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, Timing]:
    """Median and minimum of every candidate, each repeat running all of them in a rotated order."""
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    names = list(candidates)
    for name in names:
        for _ in range(2):
            candidates[name]()
    torch.cuda.synchronize()

    spin = SPIN_CYCLES
    pairs: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in names}
    for repeat in range(repeats):
        shift = repeat % len(names)
        for name in names[shift:] + names[:shift]:
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.fill_(repeat)
            torch.cuda._sleep(spin)
            before.record()
            candidates[name]()
            after.record()
            pairs[name].append((before, after))
        torch.cuda.synchronize()
    return {
        name: Timing(tuple(before.elapsed_time(after) * 1000 for before, after in events))
        for name, events in pairs.items()
    }


def enqueue_us(call: Callable[[], object], calls: int = 200, rounds: int = 7) -> float:
    """CPU microseconds that one call costs, as the median over rounds of back-to-back calls.

    The GPU is kept busy by a spin, so that no call waits for it and none of its own work is timed.
    """
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    results = []
    for _ in range(rounds):
        torch.cuda._sleep(20_000_000)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        results.append((time.perf_counter() - begin) / calls * 1e6)
        torch.cuda.synchronize()
    return statistics.median(results)
