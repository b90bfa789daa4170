"""The state of one block while it runs, and the services that instruction closures use.
Made by `machine`; every closure of the instruction rooms receives one.
Assumes a multiple of 32 threads (the last lanes of a ragged block are exited from the start)."""

from __future__ import annotations

import numpy as np

from tests.emulator.errors import Fault, NotConverged
from tests.emulator.inflight import WgmmaState
from tests.emulator.memory import LOCAL_WINDOW, Allocation
from tests.emulator.shared import BASE, SharedMemory


class Context:
    def __init__(self, launch, block_index, rank, ordinal, clocks):
        kernel = launch.program
        self.launch, self.program = launch, kernel
        self.block = block_index  # (x, y, z)
        self.rank = rank  # in the cluster
        self.cluster = None
        threads = launch.threads
        self.T = -(-threads // 32) * 32
        self.W = self.T // 32
        self.R = [None] * len(kernel.registers)
        self.undefined = [None] * len(kernel.registers)
        self.mask, self.index = None, None
        self.all_lanes = np.ones(self.T, bool)
        self.local_ids = np.arange(self.T, dtype=np.int64)
        self.thread_offset = ordinal * self.T  # threads are numbered over the whole launch
        self.thread_ids = self.local_ids + self.thread_offset
        self.warp_offset = ordinal * self.W
        self.carry = np.zeros(self.T, bool)
        self.memory, self.parameters = launch.memory, launch.parameters
        self.report = launch.report
        self.clocks = clocks
        members = int(np.prod(launch.cluster))
        self.shared = SharedMemory(
            launch.shared_bytes, launch.granule, clocks, (ordinal - rank) * self.W, members * self.W, self.W
        )
        self.shared.check_races = launch.check_races
        self.local = np.zeros((self.T, max(launch.local_bytes, 1)), np.uint8)
        self.local_known = np.zeros((self.T, max(launch.local_bytes, 1)), bool)
        self.committed = np.zeros(self.T, np.int32)
        self.copies = []
        self.bulk_open = {}  # thread -> stores not yet committed
        self.bulk_groups = {}  # thread -> committed groups of stores
        self.selection = slice(None)
        self.polls = 0
        self.events = 0  # progress that is not a change of memory
        self.wgmma = None
        self.registers_limit = {}
        self.current = None  # instruction in progress, for notes
        self._specials = self._make_specials()

    # -- masks -------------------------------------------------------------------------------------

    def set_mask(self, mask):
        self.mask = mask
        self.index = None if mask is None else np.flatnonzero(mask)

    def lanes(self):
        """(index or None, launch-wide thread numbers of the active threads)."""
        if self.mask is None:
            return None, self.thread_ids
        return self.index, self.thread_ids[self.index]

    def active_mask(self):
        return self.all_lanes if self.mask is None else self.mask

    def active_count(self):
        return self.T if self.mask is None else len(self.index)

    def active_warps(self):
        """Launch-wide numbers of the warps with an active thread."""
        if self.mask is None:
            return np.arange(self.warp_offset, self.warp_offset + self.W)
        return np.flatnonzero(self.mask.reshape(-1, 32).any(axis=1)) + self.warp_offset

    def full(self, value):
        """An array of one value per thread."""
        value = np.asarray(value)
        return np.full(self.T, value) if value.ndim == 0 else value

    def select(self, _):
        return self.selection

    def require_converged(self, members=None):
        """All living lanes of the member mask (default: the warp) must be here, else the present ones wait."""
        if self.mask is None and members is None:
            return
        active = self.active_mask().reshape(-1, 32)
        if members is None:
            wanted = self.alive.reshape(-1, 32)
        else:
            members = np.asarray(members)
            if self.mask is None and (members == np.uint32(0xFFFFFFFF)).all():
                return
            bits = (self.full(members).reshape(-1, 32)[:, :, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
            mine = bits[:, np.arange(32), np.arange(32)] != 0
            if (active & ~mine).any():
                raise Fault(
                    "bad member mask", "a lane executes a .sync instruction whose member mask does not name it",
                    (active & ~mine).reshape(-1),
                )  # fmt: skip
            first = np.argmax(active, axis=1)
            wanted = (bits[np.arange(self.W), first] != 0) & self.alive.reshape(-1, 32)
        missing = active.any(axis=1) & (wanted & ~active).any(axis=1)
        if missing.any():
            raise NotConverged((active & missing[:, None]).reshape(-1))

    def fault(self, kind, message, threads=None, addresses=None):
        raise Fault(kind, message, threads, addresses)

    # -- progress ----------------------------------------------------------------------------------

    def polled(self):
        self.polls += 1

    def version(self):
        return self.events + self.shared.version

    # -- special registers ---------------------------------------------------------------------------

    def _make_specials(self):
        launch = self.launch
        bx, by, _ = launch.block
        thread = self.local_ids.astype(np.uint32)
        lane = thread & np.uint32(31)
        one = np.uint32(1)
        below = (one << lane) - one
        values = {
            "tid.x": thread % np.uint32(bx),
            "tid.y": thread // np.uint32(bx) % np.uint32(by),
            "tid.z": thread // np.uint32(bx * by),
            "laneid": lane,
            "warpid": thread >> np.uint32(5),
            "nwarpid": np.uint32(self.W),
            "smid": np.uint32(launch.linear_block(self.block) % launch.multiprocessors),
            "nsmid": np.uint32(launch.multiprocessors),
            "gridid": np.uint64(1),
            "lanemask_eq": one << lane,
            "lanemask_lt": below,
            "lanemask_le": below | (one << lane),
            "lanemask_gt": ~(below | (one << lane)),
            "lanemask_ge": ~below,
            "dynamic_smem_size": np.uint32(launch.dynamic_shared_bytes),
            "total_smem_size": np.uint32(launch.shared_bytes),
            "cluster_ctarank": np.uint32(self.rank),
            "cluster_nctarank": np.uint32(int(np.prod(launch.cluster))),
            "is_explicit_cluster": np.bool_(int(np.prod(launch.cluster)) > 1),
        }
        for axis, letter in enumerate("xyz"):
            cluster = launch.cluster[axis]
            values[f"ntid.{letter}"] = np.uint32(launch.block[axis])
            values[f"nctaid.{letter}"] = np.uint32(launch.grid[axis])
            values[f"ctaid.{letter}"] = np.uint32(self.block[axis])
            values[f"cluster_ctaid.{letter}"] = np.uint32(self.block[axis] % cluster)
            values[f"cluster_nctaid.{letter}"] = np.uint32(cluster)
            values[f"clusterid.{letter}"] = np.uint32(self.block[axis] // cluster)
            values[f"nclusterid.{letter}"] = np.uint32(launch.grid[axis] // cluster)
        return values

    def special(self, name):
        if name in self._specials:
            return self._specials[name]
        if name in ("clock", "clock64", "globaltimer", "globaltimer_lo", "clock_hi", "globaltimer_hi"):
            self.polls += 1
            return np.uint64(0 if name.endswith("hi") else self.launch.steps * 32)
        raise Fault("unknown special register", f"%{name} is not modelled")

    # -- spaces --------------------------------------------------------------------------------------

    def shared_targets(self, addresses, threads):
        """[(shared memory, positions, int64 offsets, threads)]; several in a cluster."""
        if addresses.size and int(addresses.max()) >= 1 << 24:
            code = (addresses >> np.uint64(24)).astype(np.int64)
            result = []
            for value in np.unique(code):
                where = np.flatnonzero(code == value)
                rank = self.rank if value == 0 else int(value) - 1
                if self.cluster is None or rank >= len(self.cluster):
                    raise Fault(
                        "out of bounds",
                        f"shared address names block {rank} of a cluster of {len(self.cluster or [0])}",
                        threads[where],
                        addresses[where],
                    )
                target = self.cluster[rank]
                if target.finished:
                    raise Fault(
                        "cluster lifetime",
                        f"shared memory of block {target.block} is used after that block has exited",
                        threads[where],
                        addresses[where],
                    )
                offsets = (addresses[where] & np.uint64(0xFFFFFF)).astype(np.int64)
                result.append((target.shared, where, offsets, threads[where]))
            return result
        return [(self.shared, slice(None), addresses.astype(np.int64), threads)]

    def _local_index(self, active, size, threads):
        offsets = (active & np.uint64(0xFFFFFFFF)).astype(np.int64)
        bad = (offsets + size > self.local.shape[1]) | (offsets % size != 0)
        if bad.any():
            raise Fault("out of bounds", f"local access of {size} bytes outside of the stack frame", threads[bad])
        return (threads - self.thread_offset)[:, None], offsets[:, None] + np.arange(size)

    def local_load(self, active, size, threads):
        where = self._local_index(active, size, threads)
        if not self.local_known[where].all():
            raise Fault("uninitialised local", "load of local bytes that nothing has written", threads, active)
        return self.local[where]

    def local_store(self, active, values, threads):
        where = self._local_index(active, values.shape[1], threads)
        self.local[where] = values
        self.local_known[where] = True

    def atomic_load(self, space, address, size, thread):
        if space == "generic" and int(address[0]) >> 32 == 0x100:
            space, address = "shared", address & np.uint64(0xFFFFFFFF)
        if space in ("global", "generic"):
            return self.memory.load(address, size, thread, "atomic", strong=True)
        for shared, _, offsets, ids in self.shared_targets(address, thread):
            shared.check_range(offsets, size, ids, "atomic")
            granules = shared.granules(offsets, size)
            if (shared.write_clock[granules] == 0).any():
                raise Fault("uninitialised shared", "atomic on shared bytes that were never written", thread, address)
            # other atomics on the same bytes are no race; anything else unordered is
            if not shared.atomic[granules].all():
                shared.on_read(offsets, size, ids, "atomic", collective=True)
            return shared.gather(offsets, size)
        return None

    def atomic_store(self, space, address, value, thread, changed):
        if space == "generic" and int(address[0]) >> 32 == 0x100:
            space, address = "shared", address & np.uint64(0xFFFFFFFF)
        size = value.shape[1]
        if space in ("global", "generic"):
            version = self.memory.version
            self.memory.store(address, value, thread, "atomic", strong=True)
            if not changed:
                self.memory.version = version
            return
        for shared, _, offsets, ids in self.shared_targets(address, thread):
            granules = shared.granules(offsets, size)
            version = shared.version
            shared.scatter(offsets, value)
            if not changed:
                shared.version = version
            shared.stamp(granules, ids)
            shared.atomic[granules] = True

    def proxy_fence(self):
        """fence.proxy.async: writes that the executing warps made or can see become visible to the async proxy."""
        for member in self.cluster:
            shared = member.shared
            granules = np.flatnonzero(shared.proxy_generic)
            if len(granules):
                thread = shared.write_thread[granules]
                agent = np.where(thread >= 0, thread >> 5, -1 - thread)
                seen = np.zeros(len(granules), bool)
                for warp in self.active_warps():
                    seen |= (shared.write_clock[granules] <= self.clocks.table[warp, agent]) | (agent == warp)
                shared.proxy_generic[granules[seen]] = False

    def fence(self):
        self.clocks.fence(self.active_warps())

    def wgmma_state(self):
        if self.wgmma is None:
            self.wgmma = WgmmaState(self)
        return self.wgmma

    def set_registers(self, direction, count):
        for warp in self.active_warps().tolist():
            self.registers_limit[warp] = (direction, count)

    def grid_dependency(self, modifiers):
        if "wait" in modifiers:
            self.clocks.table[self.active_warps(), self.launch.dependency] = 1
        self.events += 1

    # -- profile ---------------------------------------------------------------------------------------

    def count_bytes(self, what, count):
        self.report.bytes[what] = self.report.bytes.get(what, 0) + count

    def count_width(self, what, size, count):
        key = (what, size)
        self.report.widths[key] = self.report.widths.get(key, 0) + count

    def profile_shared(self, addresses, size, threads):
        if self.launch.profile and len(addresses):
            self.report.note_banks(self.current, addresses, size, threads)

    def profile_rows(self, addresses, chosen):
        """ldmatrix and stmatrix: each 8x8 matrix is one wavefront of eight 16-byte rows."""
        if self.launch.profile and len(addresses):
            self.report.note_banks(self.current, addresses, 16, chosen)


def parameter_allocation(data):
    return Allocation("kernel parameters", 0, np.frombuffer(bytes(data) or b"\0", np.uint8), "constant", True)


__all__ = ["BASE", "LOCAL_WINDOW", "Context", "parameter_allocation"]
