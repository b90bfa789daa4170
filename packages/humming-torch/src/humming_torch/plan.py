"""A plan: which kernel a layer runs for which number of tokens, and how one call is prepared and made.

Called by `Session.plan`, which keeps one plan per format, shape and signature, by the ops and by `Linear`.
Assumes kernels that are shape-independent; nothing here looks at the device, everything comes from the session's facts.
"""

from __future__ import annotations

import bisect
import threading
from typing import TYPE_CHECKING

import attrs
import torch
from humming_compile.module import Function
from humming_kernels.arch import DeviceFacts
from humming_kernels.compose import KernelSource, compose
from humming_kernels.config import ComputeConfig, LayerConfig
from humming_kernels.errors import KernelError
from humming_kernels.heuristic import ranges
from humming_kernels.rules import check_layer

from humming_torch.checks import ACTIVATION_NAMES, K_STEP, OUTPUT_NAMES, aligned_activation, read_format
from humming_torch.errors import NotPreparedError, UnsupportedError
from humming_torch.launch import NO_SCRATCH, ArgumentBlock, Launch, Scratch, bind_context

if TYPE_CHECKING:
    from humming_torch.session import Progress, Session

FIRST_MAX_M = 64
"""Tokens that an unprepared layer is prepared for at its first call."""

_LAUNCHES_KEPT = 8192


@attrs.frozen(kw_only=True)
class RangeSource:
    """The kernel of all token counts up to `last_m` (and above the range before)."""

    last_m: int
    source: KernelSource


def dense_configs(
    text: str, n: int, k: int, activation: torch.dtype, output: torch.dtype, bias: bool
) -> tuple[LayerConfig, ComputeConfig]:
    """The two configs that fix a dense layer's bytes and numbers."""
    layer = LayerConfig(n=n, k=k, weight=read_format(text), bias=bias)
    return layer, ComputeConfig(activation=ACTIVATION_NAMES[activation], output=OUTPUT_NAMES[output])


def range_sources(
    layer: LayerConfig, compute: ComputeConfig, facts: DeviceFacts, max_m: int
) -> tuple[RangeSource, ...]:
    """The kernels for 1 to max_m tokens, in ascending order. Needs no device.

    Raises UnsupportedError, with every reason, for a pair of format and target that has no kernel.
    """
    reasons = check_layer(layer, compute, facts.arch)
    if reasons:
        raise UnsupportedError("no dense kernel for this layer: " + "; ".join(reasons))
    try:
        return tuple(
            RangeSource(last_m=last_m, source=compose(layer, compute, tuning, facts.arch))
            for _, last_m, tuning in ranges(layer, compute, facts, max_m)
        )
    except KernelError as error:
        raise UnsupportedError(f"no dense kernel for this layer: {error}") from error


class Plan:
    """The prepared kernels of one layer shape and signature. Thread-safe; made by `Session.plan`."""

    def __init__(self, session: Session, layer: LayerConfig, compute: ComputeConfig, output: torch.dtype) -> None:
        self.layer = layer
        self.compute = compute
        self.output_dtype = output
        self._session = session
        self._n = layer.n
        self._aligned_k = -(-layer.k // K_STEP) * K_STEP
        self._lock = threading.Lock()
        self._max_m = 0
        self._last_ms: list[int] = []
        self._kernels: list[tuple[KernelSource, Function]] = []
        self.launches: dict[int, Launch] = {}
        self.arguments = ArgumentBlock()

    @property
    def max_m(self) -> int:
        """The largest number of tokens that it is prepared for; 0 before the first `prepare`."""
        return self._max_m

    def prepare(self, max_m: int, progress: Progress | None = None) -> None:
        """Compile and load every kernel for 1 to max_m tokens and set up scratch memory.

        After it, calls with up to max_m tokens compile and load nothing, and can be captured in CUDA graphs. On the
        stream that is current now they also allocate nothing but their output (and a copy of activations that no kernel
        can read as they lie); the first call on another stream sets up scratch memory for it. Not possible under
        capture.
        """
        if max_m < 1:
            raise UnsupportedError("prepare needs a number of tokens", got=f"max_m = {max_m}", wanted="at least 1")
        if torch.cuda.is_current_stream_capturing():
            raise _not_prepared(self.layer, max_m, self._max_m)
        with self._lock:
            if max_m > self._max_m:
                found = range_sources(self.layer, self.compute, self._session.facts, max_m)
                functions = self._session.load([entry.source for entry in found], progress)
                self.launches = {}
                self._kernels = [(e.source, function) for e, function in zip(found, functions, strict=True)]
                self._last_ms = [entry.last_m for entry in found]
                self._max_m = max_m
            workspace_bytes, counter_bytes = self._largest_scratch()
        self._session.fill_arena()
        if workspace_bytes or counter_bytes:
            with torch.cuda.device(self._session.index):
                stream = torch.cuda.current_stream().cuda_stream
                self._session.scratch(stream, workspace_bytes, counter_bytes)

    def run(
        self,
        activation: torch.Tensor,
        weight: torch.Tensor,
        weight_scale: torch.Tensor,
        zero_point: torch.Tensor | None,
        bias: torch.Tensor | None,
        column_order: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        """One call on the current stream. All arguments have been checked; `activation` is [m, k]."""
        session = self._session
        if torch._C._cuda_getDevice() != session.index:
            with torch.cuda.device(session.index):
                return self.run(activation, weight, weight_scale, zero_point, bias, column_order, out)
        bind_context(session.index)
        m = activation.shape[0]
        launch = self.launches.get(m)
        if launch is None and m:
            launch = self._launch_of(m)
        if out is None:
            out = activation.new_empty((m, self._n), dtype=self.output_dtype)
        if launch is None:
            return out
        if column_order is not None:
            activation = activation.index_select(1, column_order)
        activation = aligned_activation(activation)
        # Kernels write rows of unit stride, at any address and row stride.
        target = (
            out if out.stride(1) == 1 or self._n == 1 else torch.empty_like(out, memory_format=torch.contiguous_format)
        )
        stream = torch._C._cuda_getCurrentRawStream(session.index)
        scratch = self.scratch(launch, stream) if launch.needs_scratch else NO_SCRATCH
        self.arguments.launch(
            launch,
            stream,
            activation.data_ptr(),
            weight.data_ptr(),
            weight_scale.data_ptr(),
            0 if zero_point is None else zero_point.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            target.data_ptr(),
            scratch.workspace_address,
            scratch.counters_address,
            activation.stride(0) if m > 1 else self._aligned_k,
            target.stride(0),
            m,
            self._n,
            self._aligned_k,
            launch.units_per_tile,
            launch.units_per_block,
            0,
        )
        if target is not out:
            out.copy_(target)
        return out

    def scratch(self, launch: Launch, stream: int) -> Scratch:
        """Scratch memory of a launch on the current stream; to be kept until it is enqueued."""
        return self._session.scratch(stream, launch.workspace_bytes, launch.counter_bytes)

    def _launch_of(self, m: int) -> Launch:
        """The launch of m tokens, preparing the plan further where that is allowed."""
        if m > self._max_m:
            if torch.cuda.is_current_stream_capturing():
                raise _not_prepared(self.layer, m, self._max_m)
            self.prepare(max(FIRST_MAX_M, 1 << (m - 1).bit_length()))
        with self._lock:
            if len(self.launches) >= _LAUNCHES_KEPT:
                self.launches = {}
            launch = self.launches[m] = self._make_launch(m)
        return launch

    def _largest_scratch(self) -> tuple[int, int]:
        """Workspace and counter bytes that suffice for every number of tokens that the plan is prepared for."""
        needs = []
        first = 1
        for last, (source, _) in zip(self._last_ms, self._kernels, strict=True):
            last = min(last, self._max_m)
            needs.append(
                source.recipe.largest(first, last, self._n, self._aligned_k, self._session.facts.multiprocessors)
            )
            first = last + 1
        return max(workspace for workspace, _ in needs), max(counters for _, counters in needs)

    def _make_launch(self, m: int) -> Launch:
        source, function = self._kernels[bisect.bisect_left(self._last_ms, m)]
        try:
            shape = source.recipe.plan(m, self._n, self._aligned_k, self._session.facts.multiprocessors)
        except KernelError as error:
            raise UnsupportedError(str(error)) from error
        return Launch(
            function=function,
            grid=(shape.grid, 1, 1),
            threads=source.recipe.threads,
            shared_bytes=source.recipe.shared_bytes,
            units_per_tile=shape.units_per_tile,
            units_per_block=shape.units_per_block,
            workspace_bytes=shape.workspace_bytes,
            counter_bytes=shape.counter_bytes,
            tensor_box=source.recipe.tensor_box,
        )


def _not_prepared(layer: LayerConfig, m: int, max_m: int) -> NotPreparedError:
    return NotPreparedError(
        f"a layer of {layer.n} x {layer.k} is called with {m} tokens while its stream is being captured",
        got="a layer that is not prepared" if max_m == 0 else f"a layer prepared for {max_m} tokens",
        wanted=f"prepare({m}) or more before the capture",
        hint="Prepare first: kernels cannot be compiled or loaded inside a CUDA graph. Nothing was launched.",
    )
