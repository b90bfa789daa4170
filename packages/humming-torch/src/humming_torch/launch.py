"""The argument block of dense launches, patched in place, and what a launch needs beside it.

Called by `Plan.run` and `DirectCall`; a plan owns one block.
Assumes the field order of `humming_kernels.launch`, and that the driver copies the block while it enqueues a launch.
"""

from __future__ import annotations

import threading

import attrs
import torch
from humming_compile.module import ArgumentBuffer, Function, TensorMapEncoder
from humming_kernels.launch import ARGUMENT_FIELDS, ARGUMENTS, TENSOR_MAP_BYTES, TENSOR_MAP_OFFSET

_NAMES = [name for name, _ in ARGUMENT_FIELDS]
_ACTIVATION_STRIDE, _M, _K = (_NAMES.index(name) for name in ("activation_stride", "m", "k"))
_MAPS_KEPT = 256


@attrs.frozen(kw_only=True)
class Launch:
    """Everything about a call with m tokens that depends on neither pointers nor strides.

    `tensor_box`: (k, tokens) of the boxes in which the kernel copies activations by a tensor map; None without one.
    """

    function: Function
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    units_per_tile: int
    units_per_block: int
    workspace_bytes: int
    counter_bytes: int
    tensor_box: tuple[int, int] | None
    needs_scratch: bool = attrs.field(init=False)

    @needs_scratch.default
    def _needs_scratch(self) -> bool:
        return self.workspace_bytes > 0 or self.counter_bytes > 0


class Scratch:
    """Workspace and zeroed counters of launches, with what a call asks of them looked up once."""

    __slots__ = ("counter_bytes", "counters", "counters_address", "workspace", "workspace_address", "workspace_bytes")

    def __init__(self, workspace: torch.Tensor | None, counters: torch.Tensor | None) -> None:
        self.workspace, self.counters = workspace, counters
        self.workspace_bytes = 0 if workspace is None else workspace.nbytes
        self.counter_bytes = 0 if counters is None else counters.nbytes
        self.workspace_address = 0 if workspace is None else workspace.data_ptr()
        self.counters_address = 0 if counters is None else counters.data_ptr()


NO_SCRATCH = Scratch(None, None)
"""What launches of kernels that share no tiles have."""


class ArgumentBlock:
    """The argument buffers of a plan's launches.

    A launch takes a buffer that no other thread has and gives it back: `pop` and `append` of the lists are all the
    locking there is. Buffers of kernels that take a tensor map are kept by what the map depends on, with the map in.
    """

    def __init__(self) -> None:
        self.plain: list[ArgumentBuffer] = []
        self._mapped: dict[tuple[object, ...], list[ArgumentBuffer]] = {}
        self._encoder: TensorMapEncoder | None = None

    def launch(self, launch: Launch, stream: int, *fields: int) -> None:
        """Enqueue one launch on `stream` with these argument fields, in the order of `ARGUMENTS`."""
        address, stride, m, k = fields[0], fields[_ACTIVATION_STRIDE], fields[_M], fields[_K]
        box = launch.tensor_box
        free = self.plain if box is None else self.mapped(address, stride, m, box)
        try:
            buffer = free.pop()
        except IndexError:
            buffer = self.new_buffer(address, stride, m, k, box)
        ARGUMENTS.pack_into(buffer.view, 0, *fields)
        launch.function.launch(launch.grid, launch.threads, launch.shared_bytes, stream, buffer)
        free.append(buffer)

    def mapped(self, address: int, row_stride: int, m: int, box: tuple[int, int]) -> list[ArgumentBuffer]:
        """The free buffers that hold the tensor map of these activations."""
        key = (address, row_stride, m, box)
        found = self._mapped.get(key)
        if found is None:
            if len(self._mapped) >= _MAPS_KEPT:
                self._mapped = {}
            found = self._mapped.setdefault(key, [])
        return found

    def new_buffer(self, address: int, row_stride: int, m: int, k: int, box: tuple[int, int] | None) -> ArgumentBuffer:
        """One more buffer, with the tensor map of these activations where the kernel reads them in boxes."""
        if box is None:
            return ArgumentBuffer(ARGUMENTS.size)
        if self._encoder is None:
            self._encoder = TensorMapEncoder()
        buffer = ArgumentBuffer(TENSOR_MAP_OFFSET + TENSOR_MAP_BYTES, parameters=(0, TENSOR_MAP_OFFSET))
        buffer.view[TENSOR_MAP_OFFSET:] = self._encoder.encode(address, m, k, 2 * row_stride, box[1], box[0])
        return buffer


class _Thread(threading.local):
    """Which devices' contexts this thread has made current at least once."""

    def __init__(self) -> None:
        self.bound: set[int] = set()


THREAD = _Thread()
"""`THREAD.bound` holds the devices for which `bind_context` was called in the current thread."""


def bind_context(index: int) -> None:
    """Make the device's primary context current in this thread, once; the current device must be `index`.

    Torch makes a context current with its first runtime call in a thread, and the driver's launch makes none.
    """
    if index not in THREAD.bound:
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(index).query()
        THREAD.bound.add(index)
