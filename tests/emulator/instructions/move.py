"""mov, and the conversion of addresses between spaces.
Called through the registry of `decode`.
Assumes the windows of `memory` for generic addresses of shared and local bytes."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import SPACES, TYPES, UNSIGNED_OF, Modifiers, instruction, unknown
from tests.emulator.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from tests.emulator.program import Vector


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


@instruction("alloca", "stackrestore", "stacksave")
def stack(d, ins):
    raise unknown(ins, "dynamic stack allocation is not modelled")
