"""mbarrier: phases, arrivals, transaction bytes, waits, and the copies that complete on one.
Called through the registry of `decode`, and by the rooms async_copy and bulk.
Assumes a release by every arrival and an acquire by every successful wait, unless .relaxed says otherwise.

A bulk copy that completes on an mbarrier is poison at its destination until the phase completes; then its bytes
count as written by an agent of its own (one per mbarrier), so that only warps that waited on the phase may read them.
"""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import Modifiers, instruction, unknown
from tests.emulator.errors import Fault
from tests.emulator.program import Address


class MBarrier:
    def __init__(self, shared, offset, count, agent):
        self.shared, self.offset = shared, offset
        self.count = self.pending = count
        self.tx = 0
        self.phase = 0
        self.agent = agent
        self.clock = None  # of the arrivals of the running phase
        self.done_clock = None  # of all completed phases
        self.copies = []  # (shared memory, granules, offset, data, ordinary proxy or not) of the running phase

    def describe(self):
        return (
            f"mbarrier at {self.offset:#x}, phase {self.phase}: {self.pending} of {self.count} arrivals missing, "
            f"{self.tx} transaction bytes outstanding"
        )

    def advance(self, context):
        """Complete the phase if nothing is missing."""
        if self.pending or self.tx:
            return
        self.phase += 1
        self.pending = self.count
        context.events += 1
        clocks = self.shared.clocks
        for shared, granules, offset, data, generic in self.copies:
            shared.data[offset : offset + len(data)] = data
            shared.version += 1
            shared.stamp_agent(granules, self.agent, self.phase)
            shared.proxy_generic[granules] = generic
        if self.copies or self.clock is not None:
            total = clocks.join(self.clock, clocks.unit(self.agent, self.phase))
            self.done_clock = clocks.join(self.done_clock, total)
        self.copies = []
        self.clock = None


def find(c, address, thread):
    """The MBarrier at a shared address of one thread."""
    (target,) = c.shared_targets(np.array([address], np.uint64), np.array([thread]))
    shared, _, offsets, ids = target
    offset = int(offsets[0])
    barrier = shared.mbarriers.get(offset)
    if barrier is None:
        raise Fault("mbarrier misuse", f"no mbarrier has been initialised at shared address {offset:#x}", ids, offsets)
    granules = shared.granules(offsets, 8)
    visible, clock = shared._visible(granules, ids)
    writer = int(shared.write_thread[granules].max())
    if not visible.all() and not shared.clocks.sees_init(int(ids[0]) >> 5, writer >> 5, int(clock.max())):
        raise Fault(
            "shared race",
            f"the mbarrier at {offset:#x} is used with no barrier between its initialisation elsewhere and this use",
            ids,
            offsets,
        )
    return barrier


def groups(c, addresses):
    """[(address, lanes)] of the active threads, by address."""
    index, _ = c.lanes()
    lanes = np.arange(c.T) if index is None else index
    active = addresses[lanes]
    if len(active) and (active == active[0]).all():
        return [(int(active[0]), lanes)]
    return [(int(a), lanes[active == a]) for a in np.unique(active)]


def warps_of(c, lanes):
    return np.unique(c.thread_ids[lanes] >> 5)


def arrive(c, barrier, lanes, count, tx=0, release=True):
    clocks = c.clocks
    warps = warps_of(c, lanes)
    if release:
        barrier.clock = clocks.join(barrier.clock, clocks.snapshot(warps))
    barrier.tx += tx
    barrier.pending -= count
    c.events += 1
    if barrier.pending < 0:
        raise Fault(
            "mbarrier misuse",
            f"more than the {barrier.count} arrivals of phase {barrier.phase} at the mbarrier at {barrier.offset:#x}",
            c.thread_ids[lanes],
        )
    barrier.advance(c)
    clocks.tick(warps)


FORMS = (
    "mbarrier.init.shared::cta.b64 [addr], count",
    "mbarrier.inval.shared::cta.b64 [addr]",
    "mbarrier.expect_tx{.relaxed.scope}.space.b64 [addr], bytes",
    "mbarrier.complete_tx...b64 [addr], bytes",
    "mbarrier.arrive{.expect_tx}{.release|relaxed.scope}.space.b64 state|_, [addr]{, count|bytes}",
    "mbarrier.test_wait|try_wait{.parity}{.acquire.scope}.shared::cta.b64 p, [addr], phase{, hint}",
)


@instruction("mbarrier", forms=FORMS)
def mbarrier(d, ins):
    m = Modifiers(ins)
    m.ignore("b64", "shared", "shared::cta", "shared::cluster", "cta", "cluster")
    if m.flag("init"):
        m.done()
        return _init(d, ins)
    if m.flag("inval"):
        m.done()
        address = d.address(ins.operands[0], ins)

        def invalidate(c):
            for where, lanes in groups(c, address(c)):
                barrier = find(c, where, int(c.thread_ids[lanes[0]]))
                del barrier.shared.mbarriers[barrier.offset]

        return invalidate
    relaxed = m.flag("relaxed")
    m.ignore("acquire", "release")
    if m.flag("arrive"):
        expect = m.flag("expect_tx")
        m.done()
        return _arrive(d, ins, expect, relaxed)
    if m.flag("expect_tx"):
        m.done()
        return _transaction(d, ins, 1)
    if m.flag("complete_tx"):
        m.done()
        return _transaction(d, ins, -1)
    if m.take("test_wait", "try_wait"):
        parity = m.flag("parity")
        m.done()
        return _wait(d, ins, parity, relaxed)
    raise unknown(ins, "this mbarrier operation is not modelled")


def _init(d, ins):
    address, count = d.address(ins.operands[0], ins), d.read(ins.operands[1], "u32", ins)

    def run(c):
        counts = c.full(count(c))
        for where, lanes in groups(c, address(c)):
            if len(lanes) > 1:
                raise Fault("mbarrier misuse", "several threads initialise one mbarrier", c.thread_ids[lanes])
            ids = c.thread_ids[lanes]
            offsets = np.array([where], np.int64)
            shared = c.shared
            shared.check_range(offsets, 8, ids, "mbarrier.init")
            granules = shared.on_write(offsets, 8, ids, "mbarrier.init")
            shared.stamp(granules, ids)
            value = int(counts[lanes[0]])
            if not 0 < value < 1 << 20:
                raise Fault("mbarrier misuse", f"an mbarrier with a count of {value}", ids, offsets)
            shared.mbarriers[where] = MBarrier(shared, where, value, c.clocks.grow())
            c.events += 1

    return run


def _arrive(d, ins, expect, relaxed):
    operands = list(ins.operands)
    state = None
    if operands and not isinstance(operands[0], Address):
        state = d.write(operands.pop(0), ins)
    address = d.address(operands.pop(0), ins)
    amount = d.read(operands[0], "u32", ins) if operands else None

    def run(c):
        amounts = c.full(amount(c)).astype(np.int64) if amount is not None else np.ones(c.T, np.int64)
        token = np.zeros(c.T, np.uint64)
        for where, lanes in groups(c, address(c)):
            barrier = find(c, where, int(c.thread_ids[lanes[0]]))
            token[lanes] = barrier.phase
            total = int(amounts[lanes].sum())
            if expect:
                arrive(c, barrier, lanes, len(lanes), total, not relaxed)
            else:
                arrive(c, barrier, lanes, total, 0, not relaxed)
        if state is not None:
            state(c, token)

    return run


def _transaction(d, ins, sign):
    address, amount = d.address(ins.operands[0], ins), d.read(ins.operands[1], "u32", ins)

    def run(c):
        amounts = c.full(amount(c)).astype(np.int64)
        for where, lanes in groups(c, address(c)):
            barrier = find(c, where, int(c.thread_ids[lanes[0]]))
            barrier.tx += sign * int(amounts[lanes].sum())
            c.events += 1
            if sign < 0:
                barrier.advance(c)

    return run


def _wait(d, ins, parity, relaxed):
    write = d.write(ins.operands[0], ins)
    address = d.address(ins.operands[1], ins)
    phase = d.read(ins.operands[2], "u32" if parity else "u64", ins)

    def run(c):
        phases = c.full(phase(c))
        done = np.zeros(c.T, bool)
        for where, lanes in groups(c, address(c)):
            barrier = find(c, where, int(c.thread_ids[lanes[0]]))
            if parity:
                complete = (barrier.phase & 1) != (phases[lanes] & 1)
            else:
                complete = barrier.phase > phases[lanes].astype(np.int64)
            done[lanes] = complete
            if complete.any() and barrier.done_clock is not None and not relaxed:
                c.clocks.acquire(warps_of(c, lanes[complete]), barrier.done_clock)
        if not done.all():
            c.polled()
        write(c, done)

    return run


def copy_arrive(d, ins):
    """cp.async.mbarrier.arrive: an arrival once all earlier cp.async of the thread have landed (here: at once)."""
    m = Modifiers(ins)
    m.ignore("async", "mbarrier", "shared", "shared::cta", "b64")
    m.flag("arrive")
    no_increment = m.flag("noinc")
    m.done()
    address = d.address(ins.operands[0], ins)

    def run(c):
        from tests.emulator.instructions.async_copy import Copy

        active = c.active_mask()
        for where, lanes in groups(c, address(c)):
            barrier = find(c, where, int(c.thread_ids[lanes[0]]))
            chosen = np.zeros(c.T, bool)
            chosen[lanes] = True
            left = []
            for copy in c.copies:
                mine = chosen[copy.lanes] & active[copy.lanes]
                for row in np.flatnonzero(mine):
                    barrier.copies.append(
                        (copy.shared, copy.granules[row], int(copy.addresses[row]), copy.data[row], True)
                    )
                keep = ~mine
                if keep.any():
                    left.append(
                        Copy(
                            copy.ins,
                            copy.threads[keep],
                            copy.lanes[keep],
                            copy.addresses[keep],
                            copy.data[keep],
                            copy.granules[keep],
                            copy.group[keep],
                            copy.shared,
                        )
                    )
            c.copies = left
            if not no_increment:
                barrier.pending += len(lanes)
            # the write is the generic proxy's: the async proxy needs a fence to see it
            arrive(c, barrier, lanes, len(lanes))

    return run
