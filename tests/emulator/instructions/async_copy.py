"""cp.async with its groups: the bytes land when the issuing thread waits for their group.
Called through the registry of `decode`; `cp.async.bulk` goes on to the room `bulk`.
Assumes the source is read at issue; until the wait the destination is poison, after it the issuing thread's write."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import CACHE, Modifiers, instruction, unknown
from tests.emulator.errors import Fault
from tests.emulator.program import Immediate


class Copy:
    """One executed cp.async: per thread the destination, the bytes and the group number."""

    def __init__(self, ins, threads, lanes, addresses, data, granules, group, shared):
        self.ins, self.threads, self.lanes = ins, threads, lanes
        self.addresses, self.data, self.granules = addresses, data, granules
        self.group, self.shared = group, shared


@instruction(
    "cp",
    forms=(
        "cp.async.ca|cg.shared.global{.L2::cache_hint} [dst], [src], 4|8|16{, src_size}{, policy}",
        "cp.async.commit_group",
        "cp.async.wait_group N",
        "cp.async.wait_all",
        "cp.async.mbarrier.arrive{.noinc}.shared.b64",
        "cp.async.bulk...",
    ),
)
def cp(d, ins):
    m = Modifiers(ins)
    if m.take("reduce"):
        from tests.emulator.instructions import bulk

        return bulk.reduce_bulk(d, ins)
    if not m.flag("async"):
        raise unknown(ins, "only cp.async exists")
    if "bulk" in m.left:
        from tests.emulator.instructions import bulk

        return bulk.copy_bulk(d, ins)
    if m.flag("commit_group"):
        m.done()
        return lambda c: commit(c)
    if m.flag("wait_all"):
        m.done()
        return lambda c: wait(c, 0, everything=True)
    if m.flag("wait_group"):
        m.done()
        count = int(d.immediate(ins.operands[0], "u32"))
        return lambda c: wait(c, count)
    if m.flag("mbarrier"):
        from tests.emulator.instructions import mbarrier

        return mbarrier.copy_arrive(d, ins)
    cached = m.take("ca", "cg")
    m.ignore("shared", "shared::cta", "global", *(w for w in CACHE if w.startswith("L2")))
    m.done()
    size = ins.operands[2].value
    if size not in ((16,) if cached == "cg" else (4, 8, 16)):
        raise unknown(ins, f".{cached} cannot copy {size} bytes")
    rest = list(ins.operands[3:])
    if ins.has("L2::cache_hint"):
        rest.pop()
    source_size = None
    if rest:
        if getattr(rest[0], "type", "") == "pred":
            ignore = d.read(rest[0], "pred", ins)

            def source_size(c):
                return np.where(ignore(c), np.uint32(0), np.uint32(size))

        elif isinstance(rest[0], Immediate) and rest[0].value == size:
            source_size = None
        else:
            source_size = d.read(rest[0], "u32", ins)
    destination, source = d.address(ins.operands[0], ins), d.address(ins.operands[1], ins)

    def run(c):
        index, threads = c.lanes()
        lanes = np.arange(c.T) if index is None else index
        to = destination(c)[lanes].astype(np.int64)
        origin = source(c)[lanes]
        data = np.zeros((len(lanes), size), np.uint8)
        if source_size is None:
            data = c.memory.load(origin, size, threads, "cp.async")
            c.count_bytes("global async load", size * len(lanes))
        else:
            amount = c.full(source_size(c))[lanes].astype(np.int64)
            if (amount > size).any():
                raise Fault("bad operand", f"cp.async with a source size above {size}", threads[amount > size])
            c.count_bytes("global async load", int(amount.sum()))
            aligned = (origin & np.uint64(size - 1)) != 0
            if (aligned & (amount > 0)).any():
                bad = aligned & (amount > 0)
                raise Fault("misaligned", f"cp.async source is not a multiple of {size}", threads[bad], origin[bad])
            for value in np.unique(amount):
                if value == 0:
                    continue
                rows = amount == value
                if value == size:
                    data[rows] = c.memory.load(origin[rows], size, threads[rows], "cp.async")
                else:
                    data[rows, :value] = _partial(c, origin[rows], int(value), threads[rows])
        c.count_width("global async load", size, len(lanes))
        shared = c.shared
        shared.check_range(to, size, threads, "cp.async")
        granules = shared.on_write(to, size, threads, "cp.async")
        if len(np.unique(granules)) != granules.size:
            raise Fault("shared race", "two threads of one cp.async copy to the same bytes", threads, to)
        shared.mark_pending(granules, ins)
        shared.version += 1
        c.copies.append(Copy(ins, threads, lanes, to, data, granules, c.committed[lanes], shared))
        c.profile_shared(to.astype(np.uint64), size, threads)

    return run


def _partial(c, addresses, count, threads):
    """Load an odd number of bytes, one at a time."""
    out = np.empty((len(addresses), count), np.uint8)
    for place in range(count):
        out[:, place] = c.memory.load(addresses + np.uint64(place), 1, threads, "cp.async")[:, 0]
    return out


def commit(c):
    c.committed = c.committed + (1 if c.mask is None else c.mask.astype(np.int32))


def land(c, copy, rows=None):
    """Make the bytes of a copy the issuing threads' own writes."""
    if rows is None:
        addresses, data, granules, threads = copy.addresses, copy.data, copy.granules, copy.threads
    else:
        addresses, data, granules, threads = (
            copy.addresses[rows], copy.data[rows], copy.granules[rows], copy.threads[rows])  # fmt: skip
    copy.shared.scatter(addresses, data)
    copy.shared.stamp(granules, threads)


def wait(c, count, everything=False):
    """Land the copies of the active threads whose group is not among the newest `count`."""
    if not c.copies:
        return
    limit = c.committed - count
    if everything:
        limit = limit + 1  # copies not yet committed too
    left = []
    for copy in c.copies:
        done = copy.group < limit[copy.lanes]
        if c.mask is not None:
            done &= c.mask[copy.lanes]
        if done.all():
            land(c, copy)
        elif done.any():
            land(c, copy, done)
            keep = ~done
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
        else:
            left.append(copy)
    c.copies = left
