"""Global memory: numpy arrays with addresses, guard gaps, initialised bytes and roles.
Used by tests to declare buffers and by the instruction rooms to load and store.
Assumes one space of addresses for all blocks; accesses are naturally aligned or a fault."""

from __future__ import annotations

import bisect

import numpy as np

from tests.emulator.errors import EmulatorError, Fault
from tests.emulator.tensor_map import TensorMap, encode

GLOBAL_BASE = 0x7F00_0000_0000
SHARED_WINDOW = 0x0100_0000_0000  # generic address of shared byte 0
LOCAL_WINDOW = 0x0200_0000_0000
PARAM_WINDOW = 0x0300_0000_0000
WINDOW_BYTES = 1 << 32
GUARD = 1 << 16
ROLES = ("input", "output", "inout", "workspace", "constant")

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Allocation:
    """One buffer. `role` input/constant: never written; output: begins uninitialised; inout, workspace: both ways."""

    def __init__(self, name, base, array, role, initialised):
        flat = np.ascontiguousarray(array)
        self.name, self.base, self.role = name, base, role
        self.shape, self.dtype = np.shape(array), flat.dtype
        self.size = flat.nbytes
        self.lead = base % 16  # the numpy buffer begins at a multiple of 16
        self.origin = base - self.lead
        padded = -(-max(self.lead + self.size, 1) // 16) * 16
        self.data = np.zeros(padded, np.uint8)
        self.span = slice(self.lead, self.lead + self.size)
        self.data[self.span] = flat.reshape(-1).view(np.uint8)
        self.initialised = np.zeros(padded, np.uint8)
        if initialised:
            self.initialised[self.span] = 0xFF
        self.all_initialised = bool(initialised)
        self.guard = None  # raises a Fault while the kernel before may still use the buffer
        self.shadow = None  # GlobalShadow during a launch
        self.allowed = None  # bytes that may be written; None: all of a writable role
        self.written = np.zeros(padded, np.uint8)
        self.views = {size: self.data.view(kind) for size, kind in UNSIGNED.items()}
        self.initialised_views = {size: self.initialised.view(kind) for size, kind in UNSIGNED.items()}

    @property
    def address(self):
        return self.base

    @property
    def end(self):
        return self.base + self.size

    @property
    def writable(self):
        return self.role in ("output", "inout", "workspace")

    def read(self):
        """Content as an array of the declared type and shape (a copy)."""
        return self.data[self.span].copy().view(self.dtype).reshape(self.shape)

    def unwritten(self):
        """Number of bytes that nothing ever initialised."""
        return int((self.initialised[self.span] == 0).sum())

    def allow_writes(self, mask):
        """Only elements where the mask (shape of the array) is true may be written."""
        mask = np.broadcast_to(np.asarray(mask, bool), self.shape)
        self.allowed = np.zeros(self.data.size, bool)
        self.allowed[self.span] = np.repeat(np.ascontiguousarray(mask).reshape(-1), self.dtype.itemsize)

    def __repr__(self):
        return f"{self.name} ({self.role}, {self.size} bytes at {self.base:#x})"


class Memory:
    """All buffers of a run, in increasing addresses with unmapped gaps between."""

    def __init__(self):
        self.allocations = []
        self.bases = []
        self.next_base = GLOBAL_BASE
        self.last = None
        self.tensor_maps = {}
        self.version = 0  # counts changes, for livelock detection

    def add(self, name, array, role="input", initialised=None, misalign=0):
        """Register a copy of the array; `misalign` moves the base by some bytes from 256-byte alignment."""
        if role not in ROLES:
            raise EmulatorError(f"role {role!r} of {name} is not one of {', '.join(ROLES)}")
        if any(a.name == name for a in self.allocations):
            raise EmulatorError(f"buffer {name!r} is registered twice")
        base = self.next_base + misalign
        if initialised is None:
            initialised = role != "output"
        allocation = Allocation(name, base, np.asarray(array), role, initialised)
        self.allocations.append(allocation)
        self.bases.append(base)
        self.next_base = (base + allocation.size + GUARD + 0xFFFF) & ~0xFFFF
        self.last = allocation
        return allocation

    def add_tensor_map(self, allocation, sizes, strides, box, element, **options):
        """128 bytes that kernels take for a tensor map; see tensor_map.TensorMap for the arguments."""
        number = len(self.tensor_maps) + 1
        self.tensor_maps[number] = TensorMap(allocation, element, tuple(sizes), tuple(strides), tuple(box), **options)
        return encode(number)

    def __getitem__(self, name):
        for allocation in self.allocations:
            if allocation.name == name:
                return allocation
        raise KeyError(name)

    def describe(self, address):
        """Words for an address that lies in no buffer, or past one."""
        place = bisect.bisect_right(self.bases, address) - 1
        if place >= 0:
            a = self.allocations[place]
            if address < a.end:
                return f"{address:#x} is byte {address - a.base} of {a}"
            after = f"{address:#x} is {address - a.end} bytes past the end of {a}"
            if address - a.end <= GUARD:
                return after
        if place + 1 < len(self.allocations):
            b = self.allocations[place + 1]
            if b.base - address <= GUARD:
                return f"{address:#x} is {b.base - address} bytes before the start of {b}"
        return f"{address:#x} lies in no registered buffer"

    def pieces(self, addresses, size, threads, verb):
        """Split per-thread addresses by buffer: list of (allocation, positions or None, byte offsets).

        addresses: uint64 array of the active threads; threads: their indices (for messages).
        """
        if addresses.size == 0:
            return []
        if size > 1:
            wrong = (addresses & np.uint64(size - 1)) != 0
            if wrong.any():
                first = int(addresses[wrong][0])
                raise Fault(
                    "misaligned",
                    f"{verb} of {size} bytes at an address that is not a multiple of {size}; {self.describe(first)}",
                    threads[wrong],
                    addresses[wrong],
                )
        low, high = int(addresses.min()), int(addresses.max())
        last = self.last
        if last is None or low < last.base or high + size > last.end:
            place = bisect.bisect_right(self.bases, low) - 1
            last = self.allocations[place] if place >= 0 else None
        if last is not None and last.base <= low and high + size <= last.end:
            self.last = last
            if last.guard is not None:
                last.guard(threads, addresses)
            return [(last, None, (addresses - np.uint64(last.origin)).astype(np.int64))]
        places = np.searchsorted(np.array(self.bases, np.uint64), addresses, side="right") - 1
        ends = np.array([a.end for a in self.allocations] or [0], np.uint64)
        outside = (places < 0) | (addresses + np.uint64(size) > ends[np.maximum(places, 0)])
        if outside.any():
            first = int(addresses[outside][0])
            raise Fault(
                "out of bounds",
                f"{verb} of {size} bytes outside of every buffer: {self.describe(first)}",
                threads[outside],
                addresses[outside],
            )
        result = []
        for place in np.unique(places):
            positions = np.flatnonzero(places == place)
            a = self.allocations[int(place)]
            if a.guard is not None:
                a.guard(threads[positions], addresses[positions])
            result.append((a, positions, (addresses[positions] - np.uint64(a.origin)).astype(np.int64)))
        return result

    def load(self, addresses, size, threads, verb="load", strong=False):
        """uint8 [n, size] of the bytes at the addresses."""
        out = np.empty((addresses.size, size), np.uint8)
        for a, positions, offsets in self.pieces(addresses, size, threads, verb):
            unit = min(size, 8)
            index = offsets // unit
            if size > 8:
                index = index[:, None] + np.arange(size // 8)
            if not a.all_initialised:
                known = a.initialised_views[unit][index]
                full = np.array(2 ** (8 * unit) - 1, UNSIGNED[unit])
                bad = known != full
                if bad.any():
                    bad = bad.reshape(len(offsets), -1).any(axis=1)
                    where = np.arange(len(offsets)) if positions is None else positions
                    first = int(addresses[where[bad]][0])
                    raise Fault(
                        "uninitialised global",
                        f"{verb} of {size} bytes that nothing has written; {self.describe(first)}",
                        threads[where[bad]],
                        addresses[where[bad]],
                    )
            if a.shadow is not None:
                where = slice(None) if positions is None else positions
                a.shadow.on_read(offsets, size, threads[where], addresses[where], strong)
            values = a.views[unit][index].reshape(len(offsets), -1).view(np.uint8)
            if positions is None:
                return values
            out[positions] = values
        return out

    def store(self, addresses, data, threads, verb="store", strong=False):
        """Write uint8 [n, size]; the highest thread wins where two write the same byte."""
        size = data.shape[1]
        self.version += 1
        for a, positions, offsets in self.pieces(addresses, size, threads, verb):
            where = np.arange(len(offsets)) if positions is None else positions
            self.check_writable(a, offsets, size, threads[where], addresses[where], verb)
            if a.shadow is not None:
                a.shadow.on_write(offsets, size, threads[where], addresses[where], strong)
            unit = min(size, 8)
            index = offsets // unit
            if size > 8:
                index = index[:, None] + np.arange(size // 8)
            values = np.ascontiguousarray(data[where]).view(UNSIGNED[unit])
            values = values if size > 8 else values[:, 0]
            a.views[unit][index] = values
            if not a.all_initialised:
                a.initialised_views[unit][index] = np.array(2 ** (8 * unit) - 1, UNSIGNED[unit])
            a.written[offsets] = 1

    def check_writable(self, allocation, offsets, size, threads, addresses, verb):
        if not allocation.writable:
            raise Fault(
                "write outside output",
                f"{verb} of {size} bytes into a read-only buffer; {self.describe(int(addresses[0]))}",
                threads,
                addresses,
            )
        if allocation.allowed is not None:
            bad = ~allocation.allowed[offsets[:, None] + np.arange(size)].all(axis=1)
            if bad.any():
                raise Fault(
                    "write outside output",
                    f"{verb} of {size} bytes at a place of the buffer that must not be written; "
                    + self.describe(int(addresses[bad][0])),
                    threads[bad],
                    addresses[bad],
                )
