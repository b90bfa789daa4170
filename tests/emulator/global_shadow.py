"""Races in global memory: which thread wrote and read each granule of a writable buffer last, and when.
Made by `launch` for every buffer that is not an input; called by `memory`.
Assumes the last reader stands for all readers; strong accesses (atomic, acquire, relaxed, volatile) do not race."""

from __future__ import annotations

import numpy as np

from tests.emulator.errors import Fault


class GlobalShadow:
    def __init__(self, allocation, granule, clocks, threads_per_block, blocks):
        self.allocation, self.clocks = allocation, clocks
        self.granule, self.shift = granule, granule.bit_length() - 1
        self.threads, self.blocks = threads_per_block, blocks
        count = allocation.data.size // granule + 1
        self.write_clock = np.zeros(count, np.int32)
        self.write_thread = np.zeros(count, np.int32)
        self.read_clock = np.zeros(count, np.int32)
        self.read_thread = np.zeros(count, np.int32)
        self.strong = np.zeros(count, bool)

    def granules(self, offsets, size):
        index = offsets >> self.shift
        return index[:, None] if size <= self.granule else index[:, None] + np.arange(size >> self.shift)

    def _late(self, clock, owner, threads):
        """Accesses that the threads may not rely on. Lanes of one warp are taken to be in order."""
        warp, other = (threads >> 5)[:, None], owner >> 5
        return (clock > self.clocks.table[warp, other]) & (warp != other) & (clock > 0)

    def on_read(self, offsets, size, threads, addresses, strong):
        granules = self.granules(offsets, size)
        if not strong:
            late = self._late(self.write_clock[granules], self.write_thread[granules], threads)
            if late.any():
                self._fault(late, granules, self.write_thread, threads, addresses, size, "load", "written")
        self.read_clock[granules] = self.clocks.table[threads >> 5, threads >> 5][:, None]
        self.read_thread[granules] = threads[:, None]

    def on_write(self, offsets, size, threads, addresses, strong):
        granules = self.granules(offsets, size)
        if not (strong and self.strong[granules].all()):
            late = self._late(self.write_clock[granules], self.write_thread[granules], threads)
            if strong:
                late &= ~self.strong[granules]
            if late.any():
                self._fault(late, granules, self.write_thread, threads, addresses, size, "store", "written")
            if not strong:
                late = self._late(self.read_clock[granules], self.read_thread[granules], threads)
                if late.any():
                    self._fault(late, granules, self.read_thread, threads, addresses, size, "store", "read")
        self.write_clock[granules] = self.clocks.table[threads >> 5, threads >> 5][:, None]
        self.write_thread[granules] = threads[:, None]
        self.strong[granules] = strong

    def _fault(self, late, granules, owners, threads, addresses, size, verb, earlier):
        rows = late.any(axis=1)
        row = int(np.flatnonzero(rows)[0])
        granule = int(granules[row, np.flatnonzero(late[row])[0]])
        owner, thread = int(owners[granule]), int(threads[row])
        same = owner // self.threads == thread // self.threads
        place = "" if same else f"block {self.blocks[owner // self.threads]} "
        need = "no barrier" if same else "no release and acquire (fence and atomic, then a barrier for the other warps)"
        name, offset = self.allocation.name, granule * self.granule - self.allocation.lead
        raise Fault(
            "global race",
            f"global {verb} of {size} bytes: byte {offset} of {name} was {earlier} by "
            f"{place}warp {owner % self.threads // 32} lane {owner % 32}, {need} between",
            threads[rows],
            addresses[rows],
        )
