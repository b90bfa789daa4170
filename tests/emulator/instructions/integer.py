"""Integer arithmetic; the opcodes shared with floats are handed on to the float and half rooms.
Called through the registry of `decode`.
Assumes two's complement numpy integers; overflow wraps."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import FLOAT_TYPES, HALF_TYPES, TYPES, Modifiers, instruction, unknown

WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _float_rule(name):
    from tests.emulator.instructions import float as float_room
    from tests.emulator.instructions import half as half_room

    def rule(d, ins):
        kind = ins.modifiers[-1] if ins.modifiers else ""
        room = half_room if any(t in ins.modifiers for t in HALF_TYPES) else float_room
        return getattr(room, name)(d, ins, kind)

    return rule


def is_float(ins):
    return any(t in ins.modifiers for t in FLOAT_TYPES)


def binary(d, ins, kind, function):
    a, b = d.reads(ins.operands[1:3], kind, ins)
    write = d.write(ins.operands[0], ins)
    return lambda c: write(c, function(a(c), b(c)))


def _saturate_s32(value):
    return np.clip(value, -(2**31), 2**31 - 1).astype(np.int32)


@instruction("add", "sub", forms=("add{.sat}.type", "add.cc.u32", "add{.rn}{.ftz}.f32", "add.f16x2", "sub..."))
def add_sub(d, ins):
    if is_float(ins):
        return _float_rule("add_sub")(d, ins)
    m = Modifiers(ins)
    kind = m.type()
    saturate, carry_out = m.flag("sat"), m.flag("cc")
    m.done()
    function = np.add if ins.opcode == "add" else np.subtract
    if saturate:
        a, b = d.reads(ins.operands[1:3], "s32", ins)
        write = d.write(ins.operands[0], ins)
        return lambda c: write(c, _saturate_s32(function(a(c).astype(np.int64), b(c).astype(np.int64))))
    if carry_out:
        return _carry(d, ins, kind, carry_in=False, carry_out=True)
    return binary(d, ins, kind, function)


@instruction("addc", "subc", forms=("addc{.cc}.type", "subc{.cc}.type"))
def addc(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    carry_out = m.flag("cc")
    m.done()
    return _carry(d, ins, kind, carry_in=True, carry_out=carry_out)


def _carry(d, ins, kind, carry_in, carry_out):
    unsigned = "u" + kind[1:]
    a, b = d.reads(ins.operands[1:3], unsigned, ins)
    write = d.write(ins.operands[0], ins)
    subtract = ins.opcode.startswith("sub")
    dtype = TYPES[unsigned]

    def run(c):
        x, y = c.full(a(c)), c.full(b(c))
        extra = c.carry.astype(dtype) if carry_in else np.zeros(c.T, dtype)
        if subtract:
            result = x - y - extra
            carry = (x < y) | ((x == y) & (extra != 0))
        else:
            result = x + y + extra
            carry = (result < x) | ((result == x) & (extra != 0) & (y != 0))
        write(c, result)
        if carry_out:
            c.carry = carry if c.mask is None else np.where(c.mask, carry, c.carry)

    return run


def high_product(a, b, dtype):
    """Upper half of the double-width product."""
    bits = 8 * np.dtype(dtype).itemsize
    if bits <= 32:
        wide = np.int64 if np.dtype(dtype).kind == "i" else np.uint64
        return (a.astype(wide) * b.astype(wide) >> wide(bits)).astype(dtype)
    mask = np.uint64(0xFFFFFFFF)
    s = np.uint64(32)
    x, y = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
    xl, xh, yl, yh = x & mask, x >> s, y & mask, y >> s
    middle = xh * yl + (xl * yl >> s)
    other = xl * yh + (middle & mask)
    high = xh * yh + (middle >> s) + (other >> s)
    if np.dtype(dtype).kind == "i":
        high = high - np.where(np.asarray(a) < 0, y, np.uint64(0)) - np.where(np.asarray(b) < 0, x, np.uint64(0))
    return high.view(dtype)


@instruction("mul", "mul24", forms=("mul.lo|hi|wide.type", "mul{.rn}{.ftz}.f32", "mul.f16x2"))
def mul(d, ins):
    if is_float(ins):
        return _float_rule("mul")(d, ins)
    m = Modifiers(ins)
    kind = m.type()
    part = m.take("lo", "hi", "wide")
    m.done()
    if part is None or ins.opcode == "mul24":
        raise unknown(ins, "an integer product needs .lo, .hi or .wide")
    if part == "lo":
        return binary(d, ins, kind, np.multiply)
    if part == "wide":
        wide = TYPES[WIDER[kind]]
        return binary(d, ins, kind, lambda a, b: a.astype(wide) * b.astype(wide))
    dtype = TYPES[kind]
    return binary(d, ins, kind, lambda a, b: high_product(a, b, dtype))


@instruction("mad", forms=("mad.lo|hi|wide.type", "mad.rn.f32"))
def mad(d, ins):
    if is_float(ins):
        return _float_rule("fma")(d, ins)
    m = Modifiers(ins)
    kind = m.type()
    part = m.take("lo", "hi", "wide")
    m.done()
    a, b = d.reads(ins.operands[1:3], kind, ins)
    addend = d.read(ins.operands[3], WIDER[kind] if part == "wide" else kind, ins)
    write = d.write(ins.operands[0], ins)
    if part == "lo":
        return lambda c: write(c, a(c) * b(c) + addend(c))
    if part == "wide":
        wide = TYPES[WIDER[kind]]
        return lambda c: write(c, a(c).astype(wide) * b(c).astype(wide) + addend(c))
    dtype = TYPES[kind]
    return lambda c: write(c, high_product(a(c), b(c), dtype) + addend(c))


def _divide(a, b):
    """Truncating division; by zero gives all ones, as hardware does for unsigned."""
    a, b = np.broadcast_arrays(a, b)
    zero = b == 0
    safe = np.where(zero, 1, b).astype(b.dtype)
    if a.dtype.kind == "u":
        quotient = a // safe
    else:
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        size = (np.abs(a).view(unsigned) // np.abs(safe).view(unsigned)).view(a.dtype)
        quotient = np.where((a < 0) != (safe < 0), -size, size)
    return np.where(zero, np.array(-1).astype(a.dtype), quotient).astype(a.dtype)


@instruction("div", forms=("div.u32|s32|u64|s64", "div.rn|full|approx{.ftz}.f32"))
def div(d, ins):
    if is_float(ins):
        return _float_rule("div")(d, ins)
    m = Modifiers(ins)
    kind = m.type()
    m.done()
    return binary(d, ins, kind, _divide)


@instruction("rem")
def rem(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    m.done()

    def remainder(a, b):
        return (a - _divide(a, b) * b).astype(TYPES[kind])

    return binary(d, ins, kind, remainder)


@instruction("min", "max", forms=("min.type", "min{.ftz}{.NaN}.f32", "min{.NaN}.f16x2"))
def min_max(d, ins):
    if is_float(ins):
        return _float_rule("min_max")(d, ins)
    m = Modifiers(ins)
    relu = m.flag("relu")
    kind = m.type()
    m.done()
    function = np.minimum if ins.opcode == "min" else np.maximum
    if kind in ("u16x2", "s16x2") or relu:
        raise unknown(ins, "packed 16-bit min and max are not modelled")
    return binary(d, ins, kind, function)


@instruction("abs", "neg", forms=("abs.type", "neg.type", "abs{.ftz}.f32", "neg.f16x2"))
def abs_neg(d, ins):
    if is_float(ins):
        return _float_rule("abs_neg")(d, ins)
    m = Modifiers(ins)
    kind = m.type()
    m.done()
    a, write = d.read(ins.operands[1], kind, ins), d.write(ins.operands[0], ins)
    function = np.abs if ins.opcode == "abs" else np.negative
    return lambda c: write(c, function(a(c)))


@instruction("sad")
def sad(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    m.done()
    a, b, e = d.reads(ins.operands[1:4], kind, ins)
    write = d.write(ins.operands[0], ins)

    def run(c):
        x, y = a(c), b(c)
        write(c, np.where(x < y, y - x, x - y) + e(c))

    return run


@instruction("dp4a", "dp2a", forms=("dp4a.atype.btype",))
def dot_product(d, ins):
    m = Modifiers(ins)
    part = m.take("lo", "hi")
    b_type, a_type = m.left.pop(), m.left.pop()
    m.done()
    a, b = d.reads(ins.operands[1:3], "u32", ins)
    signed = "s32" if "s32" in (a_type, b_type) else "u32"
    addend = d.read(ins.operands[3], signed, ins)
    write = d.write(ins.operands[0], ins)

    def run(c):
        x, y = c.full(a(c)), c.full(b(c))
        if ins.opcode == "dp4a":
            x = x.view("i1" if a_type == "s32" else "u1").reshape(-1, 4)
        else:
            x = x.view("i2" if a_type == "s32" else "u2").reshape(-1, 2)
        y = y.view("i1" if b_type == "s32" else "u1").reshape(-1, 4)
        if ins.opcode == "dp2a":
            y = y[:, :2] if part == "lo" else y[:, 2:]
        total = (x.astype(np.int64) * y.astype(np.int64)).sum(axis=1) + c.full(addend(c)).astype(np.int64)
        write(c, total.astype(np.uint32))

    return run
