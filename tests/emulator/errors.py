"""Errors that the emulator raises: one base class, one class per kind of fault.
Called by every module of the emulator; `machine` adds kernel, line, block, warp, lane.
Assumes that a fault knows at least which threads are at fault and why."""

from __future__ import annotations

import numpy as np


class EmulatorError(Exception):
    """Base of all errors of the emulator."""


class ParseError(EmulatorError):
    """The PTX text has a form that the parser does not know."""


class UnknownInstruction(EmulatorError):
    """The decoder has no rule for an instruction; it is never skipped."""


class Fault(EmulatorError):
    """A kernel did something that it must not do.

    kind: short name of the check ("out of bounds", "shared race", ...).
    threads: bool mask or list of thread indices at fault (first one is named), or None.
    addresses: address per thread, where it makes sense.
    """

    def __init__(self, kind, message, threads=None, addresses=None):
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.threads = None if threads is None else np.asarray(threads)
        self.addresses = None if addresses is None else np.asarray(addresses)
        self.place = {}

    def first_thread(self):
        if self.threads is None:
            return None
        if self.threads.dtype == bool:
            found = np.flatnonzero(self.threads)
            return int(found[0]) if len(found) else None
        return int(self.threads.reshape(-1)[0]) if self.threads.size else None

    def count(self):
        if self.threads is None:
            return 0
        return int(self.threads.sum()) if self.threads.dtype == bool else int(self.threads.size)

    def locate(self, kernel, instruction, block, neighbours=(), source=""):
        """Add where it happened; called once by the machine."""
        thread = self.first_thread()
        self.place = {
            "kernel": kernel,
            "line": instruction.line if instruction else None,
            "text": instruction.text if instruction else None,
            "block": block,
            "warp": None if thread is None else thread // 32,
            "lane": None if thread is None else thread % 32,
        }
        lines = [f"{self.kind}: {self.message}"]
        lines.append(f"  kernel {kernel}, block {block}")
        if thread is not None:
            more = self.count() - 1
            others = f" (and {more} more threads)" if more > 0 else ""
            lines.append(f"  warp {thread // 32} lane {thread % 32} (thread {thread}){others}")
            if self.addresses is not None and self.addresses.ndim:
                lines.append(f"  address {int(self.addresses.reshape(-1)[self._address_index(thread)]):#x}")
        if instruction:
            lines.append(f"  PTX line {instruction.line}: {instruction.text}")
            if source:
                lines.append(f"  source {source}")
        lines.extend(f"    {line}" for line in neighbours)
        self.args = ("\n".join(lines),)
        return self

    def _address_index(self, thread):
        if self.threads.dtype == bool and self.addresses.size == self.threads.size:
            return thread
        return 0


class NotConverged(Exception):
    """Internal: a collective was reached by part of its lanes; `waiting` is the mask of those."""

    def __init__(self, waiting):
        super().__init__("not converged")
        self.waiting = waiting
