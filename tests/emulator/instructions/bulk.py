"""cp.async.bulk, tensor-map copies, their stores and reductions, st.async and red.async.
Called by the rooms async_copy and move, which own the opcodes cp, st and red.
Assumes the source of a copy is read at issue; the destination in shared memory is poison until its mbarrier's phase
completes; the source of a store may not be written until the store's group has been waited for.
"""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import CACHE, TYPES, Modifiers, unknown
from tests.emulator.errors import Fault
from tests.emulator.instructions import mbarrier
from tests.emulator.instructions.atomic import atomic_function
from tests.emulator.memory import PARAM_WINDOW
from tests.emulator.tensor_map import number_of


def copy_bulk(d, ins):
    m = Modifiers(ins)
    m.ignore("async", "bulk", *(w for w in CACHE if w.startswith("L2::cache")))
    if m.flag("commit_group"):
        m.done()
        return commit
    if m.flag("wait_group"):
        m.flag("read")
        m.done()
        count = int(d.immediate(ins.operands[0], "u32"))
        return lambda c: wait(c, count)
    if "prefetch" in m.left:
        return lambda c: None
    if m.flag("tensor"):
        return _tensor(d, ins, m)
    multicast = m.flag("multicast::cluster")
    if m.flag("bulk_group"):
        m.ignore("shared::cta", "global")
        m.done()
        return _bulk_store(d, ins)
    if not m.flag("mbarrier::complete_tx::bytes"):
        raise unknown(ins, "a bulk copy needs a completion mechanism")
    from_shared = ins.modifiers.index("shared::cta") > 2 if "shared::cta" in ins.modifiers else False
    m.ignore("shared::cluster", "shared::cta", "global")
    m.done()
    destination, source, size, bar = ins.operands[:4]
    to, origin, barrier = (d.address(o, ins) for o in (destination, source, bar))
    amount = d.read(size, "u32", ins)
    mask = d.read(ins.operands[4], "u16", ins) if multicast else None

    def run(c):
        for lane, thread in each(c):
            count = int(c.full(amount(c))[lane])
            if count % 16 or count == 0:
                raise Fault("misaligned", f"bulk copy of {count} bytes, wanted a positive multiple of 16", [thread])
            at = int(origin(c)[lane])
            if from_shared:
                data = shared_source(c, at, count, thread, "cp.async.bulk")
            else:
                data = global_bytes(c, at, count, thread, "cp.async.bulk")
            targets = multicast_targets(c, int(to(c)[lane]), int(barrier(c)[lane]), mask and int(c.full(mask(c))[lane]))
            for address, bar_address in targets:
                deliver(c, address, np.arange(0, count, 16), data, bar_address, thread, 16)

    return run


def each(c):
    """(lane, cluster-wide thread) of every active thread."""
    index, threads = c.lanes()
    lanes = np.arange(c.T) if index is None else index
    return list(zip(lanes.tolist(), threads.tolist(), strict=True))


def multicast_targets(c, address, bar_address, mask):
    """Destination and mbarrier addresses; with a mask, the same offsets in each block that it names."""
    if mask is None:
        return [(address, bar_address)]
    if mask >> len(c.cluster):
        raise Fault("out of bounds", f"multicast mask {mask:#x} names blocks outside a cluster of {len(c.cluster)}")
    low = (1 << 24) - 1
    ranks = [r for r in range(len(c.cluster)) if mask >> r & 1]
    return [((r + 1) << 24 | address & low, (r + 1) << 24 | bar_address & low) for r in ranks]


def global_bytes(c, address, count, thread, verb):
    if address % 16:
        raise Fault("misaligned", f"{verb} from global {address:#x}, not a multiple of 16", [thread], [address])
    addresses = np.arange(address, address + count, 16, dtype=np.uint64)
    c.count_bytes("global async load", count)
    return c.memory.load(addresses, 16, np.full(len(addresses), thread), verb).reshape(-1)


def shared_source(c, address, count, thread, verb):
    """Bytes of the own shared memory, read by the async proxy."""
    offsets = np.arange(address, address + count, 16, dtype=np.int64)
    threads = np.full(len(offsets), thread)
    c.shared.check_range(offsets, 16, threads, verb)
    c.shared.on_async_read(offsets, 16, threads, verb)
    return c.shared.gather(offsets, 16).reshape(-1)


def deliver(c, address, offsets, data, bar_address, thread, unit, count_bytes=None):
    """Write data (uint8, in order of the offsets, `unit` bytes each) when the mbarrier's phase completes."""
    ids = np.array([thread])
    ((shared, _, base, _),) = c.shared_targets(np.array([address], np.uint64), ids)
    where = int(base[0]) + np.asarray(offsets, np.int64)
    deliver_at(c, shared, where, data, bar_address, thread, unit, count_bytes)


def deliver_at(c, shared, where, data, bar_address, thread, unit, count_bytes=None):
    threads = np.full(len(where), thread)
    shared.check_range(where, unit, threads, "bulk copy")
    granules = shared.on_write(where, unit, threads, "bulk copy")
    barrier = mbarrier.find(c, bar_address, thread)
    shared.mark_pending(granules, c.current)
    c.count_bytes("shared async store", len(data))
    rows = data.reshape(len(where), unit)
    order = np.argsort(where, kind="stable")
    where, rows, granules = where[order], rows[order], granules[order]
    # runs of neighbouring units, so that landing is a few slice copies
    breaks = np.flatnonzero(np.diff(where) != unit) + 1
    for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(where)], strict=True):
        barrier.copies.append(
            (shared, granules[first:last].reshape(-1), int(where[first]), rows[first:last].reshape(-1), False)
        )
    barrier.tx -= len(data) if count_bytes is None else count_bytes
    c.events += 1
    barrier.advance(c)


# --- groups of stores ----------------------------------------------------------------------------------------


def commit(c):
    for _, thread in each(c):
        group = c.bulk_groups.setdefault(thread, [])
        group.append([op for op in c.bulk_open.pop(thread, [])])


def wait(c, count):
    for _, thread in each(c):
        groups = c.bulk_groups.get(thread, [])
        done = len(groups) - count
        for group in groups[:done] if done > 0 else []:
            for token in group:
                c.shared.finish_async_read(token)
        if done > 0:
            c.bulk_groups[thread] = groups[done:]
            c.events += 1


def open_store(c, thread, offsets, size):
    token = c.shared.begin_async_read(offsets, size, thread >> 5, c.current)
    c.bulk_open.setdefault(thread, []).append(token)


def _bulk_store(d, ins):
    to, origin = d.address(ins.operands[0], ins), d.address(ins.operands[1], ins)
    amount = d.read(ins.operands[2], "u32", ins)

    def run(c):
        for lane, thread in each(c):
            count, at, target = int(c.full(amount(c))[lane]), int(origin(c)[lane]), int(to(c)[lane])
            if count % 16 or target % 16:
                raise Fault(
                    "misaligned", f"bulk store of {count} bytes to {target:#x}: both must be multiples of 16", [thread]
                )
            data = shared_source(c, at, count, thread, "cp.async.bulk store")
            addresses = np.arange(target, target + count, 16, dtype=np.uint64)
            c.memory.store(addresses, data.reshape(-1, 16), np.full(len(addresses), thread), "cp.async.bulk store")
            c.count_bytes("global async store", count)
            open_store(c, thread, np.arange(at, at + count, 16, dtype=np.int64), 16)

    return run


def reduce_bulk(d, ins):
    m = Modifiers(ins)
    m.ignore("reduce", "async", "bulk", "bulk_group", "global", "shared::cta", "noftz", "L2::cache_hint")
    if m.flag("tensor"):
        return _tensor_store(d, ins, m, reduce=True)
    kind = m.type()
    op = m.take("add", "min", "max", "and", "or", "xor", "inc", "dec")
    m.done()
    to, origin = d.address(ins.operands[0], ins), d.address(ins.operands[1], ins)
    amount = d.read(ins.operands[2], "u32", ins)
    dtype = np.dtype(TYPES[kind])
    function = atomic_function(op, kind, ins)

    def run(c):
        for lane, thread in each(c):
            count, at, target = int(c.full(amount(c))[lane]), int(origin(c)[lane]), int(to(c)[lane])
            data = shared_source(c, at, count, thread, "cp.reduce.async.bulk").view(dtype)
            addresses = np.arange(target, target + count, dtype.itemsize, dtype=np.uint64)
            threads = np.full(len(addresses), thread)
            old = c.memory.load(addresses, dtype.itemsize, threads, "cp.reduce.async.bulk").view(dtype)[:, 0]
            new = np.asarray(function(old, data), dtype)
            c.memory.store(addresses, new.view(np.uint8).reshape(len(new), -1), threads, "cp.reduce.async.bulk")
            open_store(c, thread, np.arange(at, at + count, 16, dtype=np.int64), 16)

    return run


# --- tensor maps -----------------------------------------------------------------------------------------------


def tensor_map(c, address, thread):
    """The TensorMap that 128 bytes in global or parameter space name."""
    addresses = np.arange(address, address + 128, 16, dtype=np.uint64)
    threads = np.full(8, thread)
    if address % 64:
        raise Fault("misaligned", f"tensor map at {address:#x}, not a multiple of 64", [thread], [address])
    if address >= PARAM_WINDOW and address < PARAM_WINDOW + (1 << 20):
        data = c.parameters.load(addresses - np.uint64(PARAM_WINDOW), 16, threads)
    else:
        data = c.memory.load(addresses, 16, threads, "tensor map load")
    found = c.memory.tensor_maps.get(number_of(data.reshape(-1).tobytes()))
    if found is None:
        raise Fault(
            "bad tensor map", f"the 128 bytes at {address:#x} are no tensor map of this memory", [thread], [address]
        )
    return found


def _tensor(d, ins, m):
    if "bulk_group" in m.left:
        m.ignore("bulk_group", "global", "shared::cta")
        return _tensor_store(d, ins, m, reduce=False)
    if not m.flag("mbarrier::complete_tx::bytes"):
        raise unknown(ins, "a tensor copy needs a completion mechanism")
    multicast = m.flag("multicast::cluster")
    rank = m.take("1d", "2d", "3d", "4d", "5d")
    m.ignore("tile", "shared::cluster", "shared::cta", "global")
    m.done()
    to, source, bar = (d.address(o, ins) for o in ins.operands[:3])
    coordinates = _coordinates(d, ins, ins.operands[1], rank)
    mask = d.read(ins.operands[3], "u16", ins) if multicast else None

    def run(c):
        for lane, thread in each(c):
            found = tensor_map(c, int(source(c)[lane]), thread)
            point = [int(c.full(r(c))[lane]) for r in coordinates]
            if len(point) != len(found.sizes):
                raise Fault(
                    "bad tensor map",
                    f"{len(point)} coordinates for a tensor of {len(found.sizes)} dimensions",
                    [thread],
                )
            data = box_bytes(c, found, point, thread)
            address, bar_address = int(to(c)[lane]), int(bar(c)[lane])
            if address % 128:
                raise Fault(
                    "misaligned", f"tensor copy to shared {address:#x}, not a multiple of 128", [thread], [address]
                )
            for place, bar_place in multicast_targets(c, address, bar_address, mask and int(c.full(mask(c))[lane])):
                ((shared, _, base, _),) = c.shared_targets(np.array([place], np.uint64), np.array([thread]))
                where = chunk_addresses(found, int(base[0]))
                deliver_at(c, shared, where, data, bar_place, thread, 16)

    return run


def chunk_addresses(found, base):
    """Swizzled shared address of every 16-byte chunk of the box, in box order."""
    per = 16 // found.element
    return found.shared_addresses(base)[::per]


def box_bytes(c, found, point, thread):
    """The box's bytes in order, with fill outside of the tensor."""
    offsets, inside = found.element_offsets(point)
    element = found.element
    flat = np.zeros((offsets.size, element), np.uint8)
    if found.fill == "nan":
        flat[:] = 0xFF if element == 1 else np.frombuffer(b"\xff" * (element - 1) + b"\x7f", np.uint8)
    chosen = inside.reshape(-1)
    if chosen.any():
        addresses = (offsets.reshape(-1)[chosen] + found.allocation.base).astype(np.uint64)
        flat[chosen] = c.memory.load(addresses, element, np.full(len(addresses), thread), "tensor copy")
    c.count_bytes("global async load", int(chosen.sum()) * element)
    return flat.reshape(-1)


def _coordinates(d, ins, operand, rank):
    if not operand.extra:
        raise unknown(ins, "a tensor copy needs coordinates")
    reads = d.reads(d.items(operand.extra[0]), "s32", ins)
    if rank is None or len(reads) != int(rank[0]):
        raise unknown(ins, f"{len(reads)} coordinates for .{rank}")
    return reads


def _tensor_store(d, ins, m, reduce):
    rank = m.take("1d", "2d", "3d", "4d", "5d")
    op = m.take("add", "min", "max", "and", "or", "xor", "inc", "dec") if reduce else None
    m.ignore("tile", "async", "bulk", "bulk_group", "global", "shared::cta")
    m.done()
    target, origin = d.address(ins.operands[0], ins), d.address(ins.operands[1], ins)
    coordinates = _coordinates(d, ins, ins.operands[0], rank)

    def run(c):
        for lane, thread in each(c):
            found = tensor_map(c, int(target(c)[lane]), thread)
            point = [int(c.full(r(c))[lane]) for r in coordinates]
            at = int(origin(c)[lane])
            if at % 128:
                raise Fault("misaligned", f"tensor store from shared {at:#x}, not a multiple of 128", [thread], [at])
            where = chunk_addresses(found, at)
            threads = np.full(len(where), thread)
            c.shared.check_range(where, 16, threads, "tensor store")
            c.shared.on_async_read(where, 16, threads, "tensor store")
            values = c.shared.gather(where, 16).reshape(-1, found.element)
            offsets, inside = found.element_offsets(point)
            chosen = inside.reshape(-1)
            addresses = (offsets.reshape(-1)[chosen] + found.allocation.base).astype(np.uint64)
            ids = np.full(len(addresses), thread)
            values = values[chosen]
            if reduce and len(addresses):
                kind = found.dtype
                dtype = np.dtype(TYPES[kind])
                old = c.memory.load(addresses, found.element, ids, "tensor reduction").view(dtype)[:, 0]
                new = np.asarray(
                    atomic_function(op, kind, ins)(old, np.ascontiguousarray(values).view(dtype)[:, 0]), dtype
                )
                values = new.view(np.uint8).reshape(len(new), -1)
            if len(addresses):
                c.memory.store(addresses, values, ids, "tensor store")
            c.count_bytes("global async store", values.size)
            open_store(c, thread, where, 16)

    return run


# --- st.async, red.async ---------------------------------------------------------------------------------------


def store_async(d, ins):
    """st.async.shared::cluster.mbarrier::complete_tx::bytes{.v2|v4}.type [addr], value, [mbar]."""
    m = Modifiers(ins)
    kind = m.type()
    m.take("v2", "v4")
    m.ignore("async", "weak", "shared::cluster", "mbarrier::complete_tx::bytes")
    m.done()
    to, bar = d.address(ins.operands[0], ins), d.address(ins.operands[2], ins)
    reads = d.reads(d.items(ins.operands[1]), kind, ins)
    dtype = np.dtype(TYPES[kind])

    def run(c):
        values = np.stack([c.full(r(c)) for r in reads], axis=1)
        size = dtype.itemsize * len(reads)
        addresses, bars = to(c), bar(c)
        for lane, thread in each(c):
            data = np.ascontiguousarray(values[lane]).view(np.uint8)
            deliver(c, int(addresses[lane]), np.array([0]), data, int(bars[lane]), thread, size)

    return run


def red_async(d, ins):
    raise unknown(ins, "red.async is not modelled")
