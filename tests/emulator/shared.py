"""Shared memory of one block with its shadow: who wrote and read each granule, and when.
Called by the instruction rooms shared, async_copy, bulk, wgmma; made by `machine`.
Assumes accesses aligned to their size; a granule is the narrowest shared access of the kernel.

See `clocks` for what may be relied on; the async proxy writes as an agent of its own, one per mbarrier.
"""

from __future__ import annotations

import numpy as np

from tests.emulator.clocks import PENDING
from tests.emulator.errors import Fault

BASE = 1024  # first usable byte, as on the hardware of today: an address of 0 is always wrong


class SharedMemory:
    def __init__(self, size, granule, clocks, first_warp=0, warps=None, warps_per_block=None):
        self.size = size  # bytes from BASE on
        self.end = BASE + size
        self.first_warp = first_warp  # of the cluster
        self.warps = clocks.warps if warps is None else warps  # of the cluster
        self.warps_per_block = warps_per_block or self.warps
        self.granule = granule
        self.shift = granule.bit_length() - 1
        padded = -(-self.end // 128) * 128
        self.data = np.zeros(padded, np.uint8)
        self.views = {n: self.data.view(f"u{n}") for n in (1, 2, 4, 8)}
        count = padded // granule
        self.clocks = clocks
        self.write_clock = np.zeros(count, np.int32)  # 0: never written
        self.write_thread = np.full(count, -1, np.int32)  # thread; -1 - agent for an async agent
        self.read_clock = np.zeros((count, self.warps), np.int32)
        self.read_lane = np.full((count, self.warps), -1, np.int8)  # -2: several lanes, -3: an ldmatrix
        self.pending_note = {}  # granule -> instruction whose copy has not landed
        self.atomic = np.zeros(count, bool)  # last written by an atomic
        self.mbarriers = {}  # offset -> MBarrier
        self.async_reads = {}  # token -> (granules, warp, instruction)
        self.next_token = 0
        self.proxy_generic = np.zeros(count, bool)  # written by ordinary stores, no proxy fence since
        self.offsets = {n: np.arange(max(n // granule, 1)) for n in (1, 2, 4, 8, 16, 32, 64, 128)}
        self.check_races = True
        self.version = 0

    # -- addresses ---------------------------------------------------------------------------------

    def check_range(self, addresses, size, threads, verb):
        """addresses: int64 of the active threads, shared-space bytes."""
        if size > 1:
            wrong = (addresses & (size - 1)) != 0
            if wrong.any():
                raise Fault(
                    "misaligned",
                    f"shared {verb} of {size} bytes at an address that is not a multiple of {size}",
                    threads[wrong],
                    addresses[wrong],
                )
        outside = (addresses < BASE) | (addresses + size > self.end)
        if outside.any():
            first = int(addresses[outside][0])
            raise Fault(
                "out of bounds",
                f"shared {verb} of {size} bytes at {first:#x}: the block has {self.size} bytes, "
                f"{BASE:#x} to {self.end:#x}" + (f"; {first + size - self.end} past the end" if first >= BASE else ""),
                threads[outside],
                addresses[outside],
            )

    def granules(self, addresses, size):
        """[n, size / granule] indices."""
        index = addresses >> self.shift
        if size <= self.granule:
            return index[:, None]
        return index[:, None] + np.arange(size >> self.shift)

    # -- data --------------------------------------------------------------------------------------

    def gather(self, addresses, size):
        unit = min(size, 8)
        index = addresses // unit
        if size > 8:
            index = index[:, None] + np.arange(size // 8)
        return self.views[unit][index].reshape(len(addresses), -1).view(np.uint8).reshape(len(addresses), size)

    def scatter(self, addresses, data):
        size = data.shape[1]
        unit = min(size, 8)
        index = addresses // unit
        values = np.ascontiguousarray(data).view(f"u{unit}")
        if size > 8:
            index = index[:, None] + np.arange(size // 8)
        else:
            values = values[:, 0]
        self.views[unit][index] = values
        self.version += 1

    # -- shadow ------------------------------------------------------------------------------------

    def _visible(self, granules, threads, own_thread_counts=True):
        """True where the last write may be relied on by the thread."""
        clock = self.write_clock[granules]
        writer = self.write_thread[granules]
        agent = np.where(writer >= 0, writer >> 5, -1 - writer)
        warp = (threads >> 5)[:, None]
        visible = clock <= self.clocks.rely(warp, agent)
        if own_thread_counts:
            visible |= (writer == threads[:, None]) & (clock < PENDING)
        return visible, clock

    def on_read(self, addresses, size, threads, verb="load", collective=False):
        """Check and note reads. `collective`: rows of ldmatrix, whose bytes go to all lanes of the warp."""
        granules = self.granules(addresses, size)
        visible, clock = self._visible(granules, threads, not collective)
        never = clock == 0
        if never.any():
            row, column = np.argwhere(never)[0]
            raise Fault(
                "uninitialised shared",
                f"shared {verb} of {size} bytes at {int(addresses[row]):#x}: "
                f"byte {int(granules[row, column]) * self.granule:#x} was never written"
                " (or its writer has not come that far: then a barrier or wait is missing)",
                threads[never.any(axis=1)],
                addresses[never.any(axis=1)],
            )
        if not self.check_races:
            return
        if not visible.all():
            self._race(~visible, granules, clock, threads, addresses, size, verb, "read")
        warp = (threads >> 5)[:, None]
        now = self.clocks.table[warp, warp]
        warp = warp - self.first_warp
        lane = (threads & 31).astype(np.int8)[:, None]
        if collective:
            lane = np.full_like(lane, -3)  # in order with later writes of its own warp
        old_lane, old_clock = self.read_lane[granules, warp], self.read_clock[granules, warp]
        lane = np.where((old_clock == now) & (old_lane != lane), np.int8(-2), lane)
        self.read_clock[granules, warp] = now
        self.read_lane[granules, warp] = lane
        if not collective:
            mixed = self.read_lane[granules, warp] != lane
            if mixed.any():
                at = np.nonzero(mixed)
                self.read_lane[granules[at], np.broadcast_to(warp, granules.shape)[at]] = -2

    def on_write(self, addresses, size, threads, verb="store"):
        """Check that nothing unordered was there; does not stamp (see stamp)."""
        granules = self.granules(addresses, size)
        if not self.check_races:
            return granules
        visible, clock = self._visible(granules, threads)
        if not visible.all():
            self._race(~visible, granules, clock, threads, addresses, size, verb, "write")
        warp = threads >> 5
        reads = self.read_clock[granules]  # [n, g, warps]
        columns = np.arange(self.first_warp, self.first_warp + self.warps)
        late = reads > self.clocks.rely(warp[:, None], columns[None, :])[:, None, :]
        if late.any():
            # reads by this very thread are fine, and so are the warp's own ldmatrix
            lanes = self.read_lane[granules]
            own = (lanes == (threads & 31)[:, None, None]) | (lanes == -3)
            own &= columns[None, None, :] == warp[:, None, None]
            late &= ~own
            if late.any():
                self._war(late, granules, threads, addresses, size, verb)
        return granules

    def stamp(self, granules, threads, clock=None):
        warp = threads >> 5
        now = self.clocks.table[warp, warp] if clock is None else np.full(len(threads), clock, np.int32)
        self.write_clock[granules] = now[:, None]
        self.write_thread[granules] = threads[:, None]
        self.atomic[granules] = False

    def stamp_agent(self, granules, agent, clock):
        self.write_clock[granules] = clock
        self.write_thread[granules] = -1 - agent

    def mark_pending(self, granules, note):
        self.write_clock[granules] = PENDING
        self.write_thread[granules] = -1
        for granule in granules.reshape(-1)[:: max(1, granules.shape[-1])].tolist():
            self.pending_note[granule] = note

    # -- the async proxy -----------------------------------------------------------------------------

    def on_async_read(self, addresses, size, threads, verb):
        """Check a read by wgmma or a bulk store: ordinary writes need a proxy fence besides the barrier."""
        granules = self.granules(addresses, size)
        visible, clock = self._visible(granules, threads, own_thread_counts=verb.endswith("store"))
        never = clock == 0
        if never.any():
            row, column = np.argwhere(never)[0]
            raise Fault(
                "uninitialised shared",
                f"{verb} of {size} bytes at {int(addresses[row]):#x}: "
                f"byte {int(granules[row, column]) * self.granule:#x} was never written"
                " (or its writer has not come that far: then a barrier or wait is missing)",
                threads[never.any(axis=1)],
                addresses[never.any(axis=1)],
            )
        if not self.check_races:
            return
        if not visible.all():
            self._race(~visible, granules, clock, threads, addresses, size, verb, "read")
        generic = self.proxy_generic[granules]
        if generic.any():
            row, column = np.argwhere(generic)[0]
            granule = int(granules[row, column])
            writer = int(self.write_thread[granule])
            raise Fault(
                "missing fence",
                f"{verb} of {size} bytes at {int(addresses[row]):#x}: byte {granule * self.granule:#x} was written by "
                f"an ordinary store ({self.thread_name(writer)}) with no fence.proxy.async after it",
                threads[generic.any(axis=1)],
                addresses[generic.any(axis=1)],
            )

    def begin_async_read(self, addresses, size, warp, note):
        """The warp's agent reads these bytes until finish_async_read; returns a token."""
        granules = np.unique(self.granules(np.asarray(addresses), size))
        self.read_clock[granules, warp - self.first_warp] = PENDING
        self.read_lane[granules, warp - self.first_warp] = -2
        self.next_token += 1
        self.async_reads[self.next_token] = (granules, warp, note)
        return self.next_token

    def finish_async_read(self, token):
        granules, warp, _ = self.async_reads.pop(token)
        column = warp - self.first_warp
        self.read_clock[granules, column] = self.clocks.table[warp, warp]
        self.read_lane[granules, column] = -3
        for other, reader, _ in self.async_reads.values():
            if reader == warp:
                self.read_clock[other, column] = PENDING
                self.read_lane[other, column] = -2

    # -- messages ----------------------------------------------------------------------------------

    def warp_name(self, warp):
        """ "warp 3", or with its block in a cluster."""
        local = warp - self.first_warp
        if self.warps == self.warps_per_block:
            return f"warp {local}"
        return f"warp {local % self.warps_per_block} of block {local // self.warps_per_block} of the cluster"

    def thread_name(self, thread):
        if thread < 0:
            return "cp.async"
        return f"{self.warp_name(thread >> 5)} lane {thread & 31}"

    def _note(self, granule):
        while granule >= 0:
            if granule in self.pending_note:
                return self.pending_note[granule]
            granule -= 1
        return None

    def _race(self, bad, granules, clock, threads, addresses, size, verb, kind):
        rows = bad.any(axis=1)
        row = int(np.flatnonzero(rows)[0])
        column = int(np.flatnonzero(bad[row])[0])
        granule = int(granules[row, column])
        place = f"shared {verb} of {size} bytes at {int(addresses[row]):#x}"
        if clock[row, column] == PENDING:
            note = self._note(granule)
            what = f" ({note.place()})" if note is not None else ""
            raise Fault(
                "missing wait",
                f"{place}: an asynchronous copy into byte {granule * self.granule:#x} has not completed, "
                f"or nothing has waited for it{what}; wait for its group or mbarrier first",
                threads[rows],
                addresses[rows],
            )
        writer = int(self.write_thread[granule])
        thread = int(threads[row])
        if writer < 0:
            raise Fault(
                "missing wait",
                f"{place}: byte {granule * self.granule:#x} was written by the async proxy and this warp has not "
                "waited on the mbarrier that completes that copy",
                threads[rows],
                addresses[rows],
            )
        need = "no bar.warp.sync (or wider barrier) between" if writer >> 5 == thread >> 5 else "no barrier between"
        raise Fault(
            "shared race",
            f"{place}: byte {granule * self.granule:#x} was written by {self.thread_name(writer)}, "
            f"{need} that write and this {kind}",
            threads[rows],
            addresses[rows],
        )

    def _war(self, late, granules, threads, addresses, size, verb):
        rows = late.any(axis=(1, 2))
        row = int(np.flatnonzero(rows)[0])
        column, reader = (int(v) for v in np.argwhere(late[row])[0])
        thread = int(threads[row])
        granule = int(granules[row, column])
        reader_name = self.warp_name(reader + self.first_warp)
        place = f"shared {verb} of {size} bytes at {int(addresses[row]):#x}"
        if self.read_clock[granule, reader] == PENDING:
            note = next(
                (n for g, w, n in self.async_reads.values() if w - self.first_warp == reader and granule in g), None
            )
            what = f" ({note.place()})" if note is not None else ""
            raise Fault(
                "missing wait",
                f"{place}: byte {granule * self.granule:#x} is still being "
                f"read asynchronously for {reader_name}{what}; its wait_group comes first",
                threads[rows],
                addresses[rows],
            )
        own = reader + self.first_warp == thread >> 5
        need = "no bar.warp.sync (or wider barrier) between" if own else "no barrier between"
        raise Fault(
            "shared race",
            f"shared {verb} of {size} bytes at {int(addresses[row]):#x}: byte "
            f"{granule * self.granule:#x} was read by {reader_name}, {need} that read and this write",
            threads[rows],
            addresses[rows],
        )
