"""The argument block of dense launches, patched in place, and what a launch needs beside it.

Called by `Plan.run`, which owns one block.
Assumes the field order of `humming_kernels.launch`, and that the driver copies the block while it enqueues a launch.
"""

from __future__ import annotations

import threading

import attrs
import torch
from humming_compile.module import ArgumentBuffer, Function
from humming_kernels.launch import ARGUMENTS


@attrs.frozen(kw_only=True)
class Launch:
    """Everything about a call with m tokens that depends on neither pointers nor strides."""

    function: Function
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    units_per_tile: int
    units_per_block: int
    workspace_bytes: int
    counter_bytes: int


class ArgumentBlock:
    """One buffer for all launches of a plan; the lock keeps two threads from mixing their arguments."""

    def __init__(self) -> None:
        self._buffer = ArgumentBuffer(ARGUMENTS.size)
        self._view = self._buffer.view
        self._lock = threading.Lock()

    def launch(self, launch: Launch, stream: int, *fields: int) -> None:
        """Enqueue one launch on `stream` with these argument fields, in the order of `ARGUMENTS`."""
        with self._lock:
            ARGUMENTS.pack_into(self._view, 0, *fields)
            launch.function.launch(launch.grid, launch.threads, launch.shared_bytes, stream, self._buffer)


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
