"""mov, loads and stores in every space, address conversion, atomics, prefetch and cache policies.
Called through the registry of `decode`.
Assumes cache hints and scopes change nothing that a test can see; memory between blocks is sequentially consistent."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import TYPES, UNSIGNED_OF, Modifiers, instruction, storage_of, unknown
from tests.emulator.errors import Fault
from tests.emulator.floats import bf16_to_f32, f32_to_bf16, half_to_f32, join_pair, split_pair, to_half
from tests.emulator.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from tests.emulator.program import Immediate, Register, Special, Symbol, Vector

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "const", "param::entry")
ORDER = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "sc")
SCOPES = ("cta", "cluster", "gpu", "sys")
CACHE = (
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc",
    "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
    "L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B",
)  # fmt: skip


@instruction("mov", forms=("mov.type d, a", "mov.b32 d, {lo, hi}", "mov.b64 {lo, hi}, a"))
def mov(d, ins):
    m = Modifiers(ins)
    if m.left and m.left[-1] == "b128":
        raise unknown(ins, "128-bit moves are not modelled")
    kind = m.type()
    m.done()
    target, source = ins.operands
    if isinstance(source, Vector):
        return _pack(d, ins, kind)
    if isinstance(target, Vector):
        return _unpack(d, ins, kind)
    if isinstance(source, Special) and np.dtype(TYPES[kind]).itemsize == 8:
        pass
    read, write = d.read(source, kind, ins), d.write(target, ins)
    return lambda c: write(c, read(c))


def _pack(d, ins, kind):
    items = ins.operands[1].items
    total = np.dtype(TYPES[kind]).itemsize * 8
    bits = total // len(items)
    part = f"b{bits}"
    reads = d.reads(items, part, ins)
    write = d.write(ins.operands[0], ins)
    wide = UNSIGNED_OF[total // 8]

    def run(c):
        value = reads[0](c).astype(wide)
        for place in range(1, len(reads)):
            value = value | (reads[place](c).astype(wide) << wide(place * bits))
        write(c, value)

    return run


def _unpack(d, ins, kind):
    items = ins.operands[0].items
    total = np.dtype(TYPES[kind]).itemsize * 8
    bits = total // len(items)
    unsigned = UNSIGNED_OF[total // 8]
    read = d.read(ins.operands[1], f"b{total}", ins)
    writes = [d.write(item, ins) for item in items]
    narrow = UNSIGNED_OF[bits // 8]

    def run(c):
        value = c.full(read(c))
        for place, write in enumerate(writes):
            write(c, (value >> unsigned(place * bits)).astype(narrow))

    return run


# --- addresses ----------------------------------------------------------------------------------------


@instruction("cvta", forms=("cvta.to.space.u64", "cvta.space.u64"))
def cvta(d, ins):
    m = Modifiers(ins)
    to = m.flag("to")
    kind = m.type()
    space = m.take(*SPACES)
    m.done()
    read, write = d.read(ins.operands[1], kind, ins), d.write(ins.operands[0], ins)
    if space in ("global", "const", "param", "param::entry"):
        return lambda c: write(c, read(c))
    window = TYPES[kind](SHARED_WINDOW if space.startswith("shared") else LOCAL_WINDOW)
    if to:
        return lambda c: write(c, read(c) - window)
    return lambda c: write(c, read(c) + window)


@instruction("isspacep")
def isspacep(d, ins):
    m = Modifiers(ins)
    space = m.take(*SPACES)
    m.done()
    read, write = d.read(ins.operands[1], "u64", ins), d.write(ins.operands[0], ins)
    low = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space)

    def run(c):
        value = c.full(read(c))
        if low is None:
            write(c, value >= np.uint64(PARAM_WINDOW))
        else:
            write(c, (value >= np.uint64(low)) & (value < np.uint64(low + WINDOW_BYTES)))

    return run


@instruction("mapa", forms=("mapa.shared::cluster.u32 d, a, rank",))
def mapa(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    space = m.take("shared::cluster")
    m.done()
    read, rank = d.read(ins.operands[1], kind, ins), d.read(ins.operands[2], "u32", ins)
    write = d.write(ins.operands[0], ins)
    dtype = TYPES[kind]
    base = dtype(0 if space else SHARED_WINDOW)

    def run(c):
        offset = (c.full(read(c)) - base) & dtype(0xFFFFFF)
        write(c, base + offset + ((c.full(rank(c)).astype(dtype) + dtype(1)) << dtype(24)))

    return run


@instruction("getctarank", forms=("getctarank.shared::cluster.u32",))
def getctarank(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    m.take("shared::cluster")
    m.done()
    read, write = d.read(ins.operands[1], kind, ins), d.write(ins.operands[0], ins)

    def run(c):
        code = (c.full(read(c)) >> TYPES[kind](24)) & TYPES[kind](0xFF)
        write(c, np.where(code == 0, c.rank, code - TYPES[kind](1)).astype(np.uint32))

    return run


# --- access by space ------------------------------------------------------------------------------------


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
        _generic(c, active, data.shape[1], threads, lambda s, a, t: _store(c, s, a, values[c.select(a)], t, verb, strong), True)
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


STRONG = ("acquire", "release", "acq_rel", "volatile", "relaxed", "sc", "mmio")


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


# --- atomics ----------------------------------------------------------------------------------------------


def _atomic_function(op, kind, ins):
    floating = kind in ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")

    def add(old, new):
        if kind in ("f16x2", "bf16x2"):
            expand, narrow = (half_to_f32, to_half) if kind == "f16x2" else (bf16_to_f32, f32_to_bf16)
            parts = [narrow(expand(a) + expand(b)) for a, b in zip(split_pair(old), split_pair(new), strict=True)]
            return join_pair(*parts)
        if kind in ("f16", "bf16"):
            expand, narrow = (half_to_f32, to_half) if kind == "f16" else (bf16_to_f32, f32_to_bf16)
            return narrow(expand(old) + expand(new))
        return old + new

    functions = {
        "add": add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, new: new,
        "inc": lambda old, new: np.where(old >= new, 0, old + 1).astype(old.dtype),
        "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype),
    }
    if op not in functions or (floating and op not in ("add", "min", "max", "exch")):
        raise unknown(ins, f"atomic {op} of {kind} is not known")
    return functions[op]


@instruction("atom", "red", forms=("atom{.order.scope}{.space}.op.type", "red{..}.v2|v4.f32", "atom..cas.b32"))
def atomic(d, ins):
    m = Modifiers(ins)
    if "async" in m.left:
        from tests.emulator.instructions import bulk

        return bulk.red_async(d, ins)
    kind = m.type()
    vector = m.take("v2", "v4", "v8")
    space = m.take(*SPACES, default="generic")
    op = m.take("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    m.ignore(*ORDER, *SCOPES, *CACHE, "noftz")
    m.done()
    is_atom = ins.opcode == "atom"
    operands = list(ins.operands)
    target = operands.pop(0) if is_atom else None
    address = d.address(operands.pop(0), ins)
    if vector and is_atom:
        raise unknown(ins, "vector atom with a result is not modelled")
    sources = d.items(operands[0])
    reads = d.reads(sources, kind, ins)
    swap = d.read(operands[1], kind, ins) if op == "cas" else None
    write = d.write(target, ins) if target is not None else None
    dtype = np.dtype(TYPES[kind])
    size = dtype.itemsize
    function = None if op == "cas" else _atomic_function(op, kind, ins)
    everywhere = "cta" not in ins.modifiers and space in ("global", "generic")
    acquire = everywhere and any(w in ins.modifiers for w in ("acquire", "acq_rel", "sc"))
    release = everywhere and any(w in ins.modifiers for w in ("release", "acq_rel", "sc"))

    def run(c):
        index, threads = c.lanes()
        addresses = address(c)
        addresses = addresses if index is None else addresses[index]
        values = [c.full(r(c)) for r in reads]
        values = [v if index is None else v[index] for v in values]
        swaps = None
        if swap is not None:
            swaps = c.full(swap(c))
            swaps = swaps if index is None else swaps[index]
        olds = np.empty(len(addresses), dtype)
        c.polled()
        # one thread after another, in thread order
        for place in range(len(addresses)):
            for element, value in enumerate(values):
                where = addresses[place : place + 1] + np.uint64(element * size)
                here = threads[place : place + 1]
                if everywhere:
                    c.clocks.strong_read(int(where[0]), int(here[0]) >> 5, acquire)
                old = c.atomic_load(space, where, size, here).view(dtype)[0]
                if swap is not None:
                    new = swaps[place : place + 1] if old[0] == value[place] else old
                else:
                    new = np.asarray(function(old, value[place : place + 1]), dtype)
                c.atomic_store(space, where, new.view(np.uint8).reshape(1, size), here, changed=bool((old != new).any()))
                if everywhere:
                    c.clocks.strong_write(int(where[0]), int(here[0]) >> 5, release, True)
                if element == 0:
                    olds[place] = old[0]
        if write is not None:
            if index is not None:
                spread = np.zeros(c.T, dtype)
                spread[index] = olds
                olds = spread
            write(c, olds)

    return run


@instruction("alloca", "stackrestore", "stacksave")
def stack(d, ins):
    raise unknown(ins, "dynamic stack allocation is not modelled")


__all__ = ["Immediate", "Register", "Symbol", "load_bytes", "storage_of", "store_bytes"]
