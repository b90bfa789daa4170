"""Times of packed layers on a GPU: CUDA graphs over enough copies of a weight that none is found in the L2 cache.

Called by the quickstart command. The benchmarks folder measures more carefully, against more peers.
Assumes a CUDA device and a prepared layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from humming_torch.modules import Linear
from humming_torch.packed_weight import PackedWeight

_BYTES_BEYOND_CACHE = 192 << 20
_MOST_COPIES = 512
_REPLAYS = 10
_SAMPLES = 7


def copies_beyond_cache(packed: PackedWeight) -> int:
    """Copies of a weight to go round, so that each is read from memory again."""
    return max(4, min(_MOST_COPIES, -(-_BYTES_BEYOND_CACHE // packed.nbytes)))


def seconds_of_linear(packed: PackedWeight, activation: torch.Tensor, copies: int) -> float:
    """Seconds of one quantized product."""
    clones = [packed, *(packed.clone() for _ in range(copies - 1))]
    layers = [Linear(clone, dtype=activation.dtype).prepare(activation.shape[0]) for clone in clones]
    out = layers[0](activation)
    return _seconds([functools.partial(layer, activation, out=out) for layer in layers])


def seconds_of_mm(weight: torch.Tensor, activation: torch.Tensor, copies: int) -> float:
    """Seconds of torch.mm with the same weight [n, k] in the activation's dtype."""
    weights = [weight.to(activation.dtype).clone() for _ in range(copies)]
    out = torch.mm(activation, weights[0].t())
    return _seconds([functools.partial(torch.mm, activation, weight.t(), out=out) for weight in weights])


def copy_bytes_per_second(device: torch.device) -> float:
    """Memory bandwidth as a large copy reaches it, reads and writes counted."""
    source = torch.zeros(1 << 29, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds([lambda: target.copy_(source)])


def _seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Median seconds of one call, from replays of a graph that holds all of them."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    samples: list[float] = []
    for _ in range(_SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(_REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / 1e3 / _REPLAYS / len(calls))
    return sorted(samples)[len(samples) // 2]
