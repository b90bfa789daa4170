"""Loads and stores in every space, and cache hints, which change nothing.
Called through the registry of `decode`; bulk and atomic share its tables.
Assumes memory between blocks is seen at once; global_shadow finds what was not ordered."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import CACHE, ORDER, SCOPES, SPACES, STRONG, TYPES, UNSIGNED_OF, Modifiers, instruction
from tests.emulator.errors import Fault
from tests.emulator.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES


def load_bytes(c, space, addresses, size, verb, strong=False):
    """uint8 [active, size]; addresses of all threads, uint64."""
    index, threads = c.lanes()
    active = addresses if index is None else addresses[index]
    if space == "generic":
        return _generic(c, active, size, threads, lambda s, a, t: _load(c, s, a, size, t, verb, strong))
    return _load(c, space, active, size, threads, verb, strong)


def _load(c, space, active, size, threads, verb, strong=False):
    if space in ("global", "const"):
        c.count_bytes("global load", size * len(active))
        return c.memory.load(active, size, threads, verb, strong)
    if space.startswith("shared"):
        c.count_bytes("shared load", size * len(active))
        out = np.empty((len(active), size), np.uint8)
        for shared, positions, offsets, ids in c.shared_targets(active, threads):
            shared.check_range(offsets, size, ids, verb)
            shared.on_read(offsets, size, ids, verb)
            out[positions] = shared.gather(offsets, size)
        c.profile_shared(active, size, threads)
        return out
    if space.startswith("param"):
        return c.parameters.load(active - np.uint64(PARAM_WINDOW), size, threads)
    if space == "local":
        return c.local_load(active, size, threads)
    raise AssertionError(space)


def store_bytes(c, space, addresses, data, verb, strong=False):
    """data: uint8 [threads, size]."""
    index, threads = c.lanes()
    active, values = (addresses, data) if index is None else (addresses[index], data[index])
    if space == "generic":
        _generic(
            c,
            active,
            data.shape[1],
            threads,
            lambda s, a, t: _store(c, s, a, values[c.select(a)], t, verb, strong),
            True,
        )
        return
    _store(c, space, active, values, threads, verb, strong)


def _store(c, space, active, values, threads, verb, strong=False):
    size = values.shape[1]
    if space == "global":
        c.count_bytes("global store", size * len(active))
        c.memory.store(active, values, threads, verb, strong)
        check_same(c.memory.load(active, size, threads, strong=True), values, active, threads, "global")
    elif space.startswith("shared"):
        c.count_bytes("shared store", size * len(active))
        for shared, positions, offsets, ids in c.shared_targets(active, threads):
            part = values[positions]
            shared.check_range(offsets, size, ids, verb)
            granules = shared.on_write(offsets, size, ids, verb)
            shared.scatter(offsets, part)
            shared.stamp(granules, ids)
            shared.proxy_generic[granules] = True
            check_same(shared.gather(offsets, size), part, offsets, ids, "shared")
        c.profile_shared(active, size, threads)
    elif space == "local":
        c.local_store(active, values, threads)
    else:
        raise Fault("write outside output", f"store into {space} space", threads, active)


def check_same(stored, values, addresses, threads, space):
    if not np.array_equal(stored, values):
        bad = (stored != values).any(axis=1)
        raise Fault(
            f"{space} race",
            "two threads of one instruction write different values to the same bytes",
            threads[bad],
            addresses[bad],
        )


def _generic(c, active, size, threads, access, store=False):
    """Route generic addresses to their spaces."""
    window = np.uint64(WINDOW_BYTES - 1)
    kinds = active >> np.uint64(32)
    shared = kinds == np.uint64(SHARED_WINDOW >> 32)
    local = kinds == np.uint64(LOCAL_WINDOW >> 32)
    if not shared.any() and not local.any():
        c.selection = slice(None)
        return access("global", active, threads)
    out = np.empty((len(active), size), np.uint8)
    for space, chosen in (("shared", shared), ("local", local), ("global", ~shared & ~local)):
        if chosen.any():
            c.selection = chosen
            part = active[chosen] if space == "global" else active[chosen] & window
            result = access(space, part, threads[chosen])
            if not store:
                out[chosen] = result
    return out


def _memory_form(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    vector = m.take("v2", "v4", "v8")
    space = m.take(*SPACES, default="generic")
    m.ignore(*ORDER, *SCOPES, *CACHE)
    m.done()
    return kind, vector, space


def strong_lanes(c, addresses, action):
    """action(address, warp) for every active thread, each pair once."""
    index, threads = c.lanes()
    active = addresses if index is None else addresses[index]
    for address, warp in sorted(set(zip(active.tolist(), (threads >> 5).tolist(), strict=True))):
        action(address, warp)


@instruction("ld", "ldu", forms=("ld{.order.scope}{.space}{.cache}{.v2|v4}.type",))
def ld(d, ins):
    kind, _, space = _memory_form(d, ins)
    targets = d.items(ins.operands[0])
    writes = [d.write(t, ins) for t in targets]
    address = d.address(ins.operands[1], ins)
    dtype = np.dtype(TYPES[kind])
    raw = dtype if dtype.kind != "f" else np.dtype(UNSIGNED_OF[dtype.itemsize])
    size = dtype.itemsize * len(targets)
    verb = "load"
    wide_note = space in ("global", "generic") and size
    strong = any(m in ins.modifiers for m in STRONG)
    acquire = "acquire" in ins.modifiers and "cta" not in ins.modifiers

    def run(c):
        where = address(c)
        data = load_bytes(c, space, where, size, verb, strong)
        if wide_note:
            c.count_width("global load", size, len(data))
        if strong:
            c.polled()
            if wide_note:
                strong_lanes(c, where, lambda a, warp: c.clocks.strong_read(a, warp, acquire))
        columns = data.view(raw)
        index = c.lanes()[0]
        for place, write in enumerate(writes):
            column = columns[:, place]
            if index is not None:
                spread = np.zeros(c.T, raw)
                spread[index] = column
                column = spread
            write(c, column)

    return run


@instruction("st", forms=("st{.order.scope}{.space}{.cache}{.v2|v4}.type", "st.async.shared::cluster..."))
def st(d, ins):
    if ins.has("async"):
        from tests.emulator.instructions import bulk

        return bulk.store_async(d, ins)
    kind, _, space = _memory_form(d, ins)
    sources = d.items(ins.operands[1])
    reads = d.reads(sources, kind, ins)
    address = d.address(ins.operands[0], ins)
    dtype = np.dtype(TYPES[kind])
    size = dtype.itemsize * len(sources)
    strong = any(m in ins.modifiers for m in STRONG)
    release = "release" in ins.modifiers and "cta" not in ins.modifiers

    def run(c):
        data = np.empty((c.T, len(reads)), dtype)
        for place, read in enumerate(reads):
            data[:, place] = read(c)
        where = address(c)
        store_bytes(c, space, where, data.view(np.uint8), "store", strong)
        if strong and space in ("global", "generic"):
            strong_lanes(c, where, lambda a, warp: c.clocks.strong_write(a, warp, release, False))
        if space in ("global", "generic"):
            c.count_width("global store", size, c.active_count())

    return run


@instruction("prefetch", "prefetchu", "applypriority", "discard")
def prefetch(d, ins):
    return lambda c: None


@instruction("createpolicy", forms=("createpolicy.fractional.L2::evict_first.b64",))
def createpolicy(d, ins):
    write = d.write(ins.operands[0], ins)
    return lambda c: write(c, np.uint64(0x12F0000000000000))
