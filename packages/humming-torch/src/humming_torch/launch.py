"""The argument block of dense launches, patched in place, and what a launch needs beside it.

Called by `Plan.run`, which owns one block.
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


class ArgumentBlock:
    """The argument buffers of a plan's launches; the lock keeps two threads from mixing their arguments."""

    def __init__(self) -> None:
        self._plain = ArgumentBuffer(ARGUMENTS.size)
        self._mapped: ArgumentBuffer | None = None
        self._encoder: TensorMapEncoder | None = None
        self._maps: dict[tuple[int, ...], bytes] = {}
        self._lock = threading.Lock()

    def launch(self, launch: Launch, stream: int, *fields: int) -> None:
        """Enqueue one launch on `stream` with these argument fields, in the order of `ARGUMENTS`."""
        with self._lock:
            buffer = self._plain if launch.tensor_box is None else self._with_map(launch.tensor_box, fields)
            ARGUMENTS.pack_into(buffer.view, 0, *fields)
            launch.function.launch(launch.grid, launch.threads, launch.shared_bytes, stream, buffer)

    def _with_map(self, box: tuple[int, int], fields: tuple[int, ...]) -> ArgumentBuffer:
        """The buffer of kernels that take a tensor map, holding the map of this call's activations."""
        if self._mapped is None or self._encoder is None:
            self._mapped = ArgumentBuffer(TENSOR_MAP_OFFSET + TENSOR_MAP_BYTES, parameters=(0, TENSOR_MAP_OFFSET))
            self._encoder = TensorMapEncoder()
        address, row_stride, m, k = fields[0], fields[_ACTIVATION_STRIDE], fields[_M], fields[_K]
        key = (address, row_stride, m, *box)
        found = self._maps.get(key)
        if found is None:
            if len(self._maps) >= _MAPS_KEPT:
                self._maps.clear()
            found = self._maps[key] = self._encoder.encode(address, m, k, 2 * row_stride, box[1], box[0])
        self._mapped.view[TENSOR_MAP_OFFSET:] = found
        return self._mapped


class _Thread(threading.local):
    """Which devices' contexts this thread has made current at least once."""

    def __init__(self) -> None:
        self.bound: set[int] = set()


_thread = _Thread()


def bind_context(index: int) -> None:
    """Make the device's primary context current in this thread, once; the current device must be `index`.

    Torch makes a context current with its first runtime call in a thread, and the driver's launch makes none.
    """
    if index not in _thread.bound:
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(index).query()
        _thread.bound.add(index)
