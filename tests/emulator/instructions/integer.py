"""Integer arithmetic, logic, shifts, bit fields, permutes, comparison and selection.
Called through the registry of `decode`.
Assumes two's complement numpy integers; overflow wraps."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import TYPES, Modifiers, instruction, unknown
from tests.emulator.floats import bf16_to_f32, half_to_f32
from tests.emulator.program import Immediate, Pair

WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
HALF_TYPES = ("f16", "bf16", "f16x2", "bf16x2")
FLOAT_TYPES = ("f32", "f64", *HALF_TYPES)


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


@instruction("and", "or", "xor")
def logic(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    m.done()
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[ins.opcode]
    return binary(d, ins, kind, function)


@instruction("not", "cnot")
def invert(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    m.done()
    a, write = d.read(ins.operands[1], kind, ins), d.write(ins.operands[0], ins)
    if ins.opcode == "cnot":
        dtype = TYPES[kind]
        return lambda c: write(c, (a(c) == 0).astype(dtype))
    return lambda c: write(c, ~a(c))


@instruction("lop3", forms=("lop3.b32", "lop3.and|or.b32 d|p"))
def lop3(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    boolean = m.take("and", "or")
    m.done()
    destination = ins.operands[0]
    predicate = None
    if boolean:
        predicate, destination = d.write(destination.second, ins), destination.first
        extra = d.read(ins.operands[5], "pred", ins)
    a, b, e = d.reads(ins.operands[1:4], kind, ins)
    table = ins.operands[4]
    if not isinstance(table, Immediate):
        raise unknown(ins, "the truth table must be a constant")
    write = d.write(destination, ins)
    combine = lop3_function(table.value & 0xFF)

    def run(c):
        result = combine(a(c), b(c), e(c))
        write(c, result)
        if predicate is not None:
            nonzero = c.full(result != 0)
            predicate(c, nonzero & extra(c) if boolean == "and" else nonzero | extra(c))

    return run


def lop3_function(table):
    """A numpy function of (a, b, c) for a truth table: bit (4a + 2b + c) of the table."""
    shortcuts = {
        0xC0: lambda a, b, c: a & b,
        0xFC: lambda a, b, c: a | b,
        0x3C: lambda a, b, c: a ^ b,
        0xEA: lambda a, b, c: (a & b) | c,
        0xF8: lambda a, b, c: a | (b & c),
        0x96: lambda a, b, c: a ^ b ^ c,
        0x6A: lambda a, b, c: (a & b) ^ c,
        0x78: lambda a, b, c: a ^ (b & c),
        0x80: lambda a, b, c: a & b & c,
        0xFE: lambda a, b, c: a | b | c,
        0xCA: lambda a, b, c: (a & b) | (~a & c),
        0xE8: lambda a, b, c: (a & b) | (a & c) | (b & c),
    }
    if table in shortcuts:
        return shortcuts[table]

    def combine(a, b, c):
        result = np.uint32(0)
        for row in range(8):
            if table >> row & 1:
                result = result | (
                    (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
                )
        return result

    return combine


def shift_left(a, amount, bits):
    amount = np.asarray(amount)
    a = np.asarray(a)
    return np.where(amount >= bits, 0, a << np.minimum(amount, bits - 1).astype(a.dtype)).astype(a.dtype)


def shift_right(a, amount, bits):
    a = np.asarray(a)
    clamped = np.minimum(amount, bits - 1).astype(a.dtype)
    if a.dtype.kind == "i":
        return a >> clamped
    return np.where(np.asarray(amount) >= bits, 0, a >> clamped).astype(a.dtype)


@instruction("shl", "shr")
def shift(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    m.done()
    bits = 8 * np.dtype(TYPES[kind]).itemsize
    a, write = d.read(ins.operands[1], kind, ins), d.write(ins.operands[0], ins)
    if isinstance(ins.operands[2], Immediate) and 0 <= ins.operands[2].value < bits:
        amount = TYPES[kind](ins.operands[2].value)
        if ins.opcode == "shl":
            return lambda c: write(c, a(c) << amount)
        return lambda c: write(c, a(c) >> amount)
    count = d.read(ins.operands[2], "u32", ins)
    function = shift_left if ins.opcode == "shl" else shift_right
    return lambda c: write(c, function(a(c), count(c), bits))


@instruction("shf", forms=("shf.l|r.wrap|clamp.b32",))
def funnel(d, ins):
    m = Modifiers(ins)
    m.type()
    direction, mode = m.take("l", "r"), m.take("wrap", "clamp")
    m.done()
    low, high, count = d.reads(ins.operands[1:4], "u32", ins)
    write = d.write(ins.operands[0], ins)

    def run(c):
        amount = count(c).astype(np.uint64)
        amount = amount & np.uint64(31) if mode == "wrap" else np.minimum(amount, np.uint64(32))
        both = low(c).astype(np.uint64) | (high(c).astype(np.uint64) << np.uint64(32))
        if direction == "l":
            # upper word of both << amount; amount is at most 32
            result = (both << amount) >> np.uint64(32)
            result = np.where(amount == 32, both & np.uint64(0xFFFFFFFF), result)
        else:
            result = both >> amount
        write(c, result.astype(np.uint32))

    return run


@instruction("bfe")
def bfe(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    m.done()
    a = d.read(ins.operands[1], kind, ins)
    position, length = d.reads(ins.operands[2:4], "u32", ins)
    write = d.write(ins.operands[0], ins)
    bits = 8 * np.dtype(TYPES[kind]).itemsize

    def run(c):
        value = np.asarray(c.full(a(c)))
        start = (c.full(position(c)) & np.uint32(0xFF)).astype(np.int64)
        count = (c.full(length(c)) & np.uint32(0xFF)).astype(np.int64)
        unsigned = value.view("u" + str(bits // 8))
        one = unsigned.dtype.type(1)
        field = shift_right(value, start, bits).view(unsigned.dtype)
        mask = np.where(count >= bits, ~unsigned.dtype.type(0), shift_left(np.full_like(unsigned, 1), count, bits) - one)
        field = field & mask
        if kind[0] == "s":
            top = np.minimum(start + count - 1, bits - 1)
            sign = (shift_right(unsigned, np.maximum(top, 0), bits) & one) != 0
            field = np.where(sign & (count > 0), field | ~mask, field)
            field = np.where(count > 0, field, unsigned.dtype.type(0))
        write(c, field.astype(unsigned.dtype))

    return run


@instruction("bfi")
def bfi(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    m.done()
    a, b = d.reads(ins.operands[1:3], "u" + kind[1:], ins)
    position, length = d.reads(ins.operands[3:5], "u32", ins)
    write = d.write(ins.operands[0], ins)
    bits = 8 * np.dtype(TYPES[kind]).itemsize

    def run(c):
        insert, base = c.full(a(c)), c.full(b(c))
        start = (c.full(position(c)) & np.uint32(0xFF)).astype(np.int64)
        count = (c.full(length(c)) & np.uint32(0xFF)).astype(np.int64)
        one = base.dtype.type(1)
        ones = np.where(count >= bits, ~base.dtype.type(0), shift_left(np.full_like(base, 1), count, bits) - one)
        mask = shift_left(ones.astype(base.dtype), start, bits)
        write(c, (base & ~mask) | (shift_left(insert, start, bits) & mask))

    return run


@instruction("bfind", "clz", "popc", "brev")
def bit_count(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    shift_amount = m.flag("shiftamt")
    m.done()
    bits = 8 * np.dtype(TYPES[kind]).itemsize
    a, write = d.read(ins.operands[1], kind, ins), d.write(ins.operands[0], ins)

    def unpacked(value):
        raw = np.atleast_1d(value).view("u" + str(bits // 8))
        return np.unpackbits(raw.view(np.uint8).reshape(-1, bits // 8), axis=1, bitorder="little")

    def run(c):
        value = c.full(a(c))
        if ins.opcode == "bfind" and kind[0] == "s":
            value = np.where(value < 0, ~value, value)
        table = unpacked(value)
        if ins.opcode == "popc":
            write(c, table.sum(axis=1).astype(np.uint32))
        elif ins.opcode == "brev":
            raw = np.packbits(table[:, ::-1], axis=1, bitorder="little")
            write(c, raw.reshape(-1).view("u" + str(bits // 8)))
        else:
            top = np.where(table.any(axis=1), bits - 1 - np.argmax(table[:, ::-1], axis=1), -1)
            if ins.opcode == "clz":
                write(c, (bits - 1 - top).astype(np.uint32))
            else:
                result = np.where(top < 0, -1, bits - 1 - top if shift_amount else top)
                write(c, result.astype(np.int32).view(np.uint32))

    return run


_PRMT_MODES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


@instruction("prmt", forms=("prmt.b32", "prmt.b32.f4e|b4e|rc8|ecl|ecr|rc16"))
def prmt(d, ins):
    m = Modifiers(ins)
    mode = m.take(*_PRMT_MODES)
    m.type()
    m.done()
    a, b, selector = d.reads(ins.operands[1:4], "u32", ins)
    write = d.write(ins.operands[0], ins)
    byte = np.uint64(0xFF)

    def run(c):
        both = a(c).astype(np.uint64) | (b(c).astype(np.uint64) << np.uint64(32))
        choose = selector(c)
        result = np.uint64(0)
        for place in range(4):
            code = prmt_code(mode, choose, place).astype(np.uint64)
            field = (both >> ((code & np.uint64(7)) * np.uint64(8))) & byte
            sign = np.where((field & np.uint64(0x80)) != 0, byte, np.uint64(0))
            field = np.where((code & np.uint64(8)) != 0, sign, field)
            result = result | (field << np.uint64(8 * place))
        write(c, result.astype(np.uint32))

    return run


def prmt_code(mode, selector, place):
    """Byte code (0..15) of one destination byte."""
    if mode is None:
        return (selector >> np.uint32(4 * place)) & np.uint32(15)
    s = np.asarray(selector).astype(np.int64) & 3
    code = {
        "f4e": lambda: s + place,
        "b4e": lambda: (s - place) % 8,
        "rc8": lambda: s,
        "ecl": lambda: np.maximum(s, place),
        "ecr": lambda: np.minimum(s, place),
        "rc16": lambda: (s & 1) * 2 + (place & 1),
    }[mode]()
    return np.asarray(code)


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


_ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
COMPARISONS = (*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def compare(name, a, b, is_floating):
    """numpy bool of a PTX comparison."""
    if not is_floating:
        return _ORDERED[name](a, b)
    nan = np.isnan(a) | np.isnan(b)
    if name == "num":
        return ~nan
    if name == "nan":
        return nan
    if name.endswith("u") and name[:-1] in _ORDERED:
        return _ORDERED[name[:-1]](a, b) | nan
    if name == "ne":
        return np.not_equal(a, b) & ~nan
    return _ORDERED[name](a, b)


def _comparison(d, ins, m, first):
    """(compare function of context, type); reads operands first, first+1."""
    kind = m.type()
    name = m.take(*COMPARISONS)
    boolean = m.take("and", "or", "xor")
    m.ignore("ftz")
    convert = {"f16": half_to_f32, "bf16": bf16_to_f32}.get(kind)
    a, b = d.reads(ins.operands[first : first + 2], kind, ins)
    floating = kind in FLOAT_TYPES
    if name is None or (not floating and name not in _ORDERED) or kind in ("f16x2", "bf16x2"):
        raise unknown(ins, f"comparison of {kind} is not known")

    def result(c):
        x, y = a(c), b(c)
        if convert:
            x, y = convert(x), convert(y)
        return c.full(compare(name, x, y, floating))

    return result, boolean


_BOOLEAN = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@instruction("setp", forms=("setp.cmp{.and|or|xor}.type p{|q}, a, b{, c}",))
def setp(d, ins):
    m = Modifiers(ins)
    result, boolean = _comparison(d, ins, m, 1)
    m.done()
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    write, write_second = d.write(first, ins), d.write(second, ins)
    other = d.read(ins.operands[3], "pred", ins) if boolean else None

    def run(c):
        value = result(c)
        inverse = ~value
        if other is not None:
            extra = other(c)
            value, inverse = _BOOLEAN[boolean](value, extra), _BOOLEAN[boolean](inverse, extra)
        write(c, value)
        write_second(c, inverse)

    return run


@instruction("set", forms=("set.cmp.dtype.stype",))
def set_(d, ins):
    m = Modifiers(ins)
    result, boolean = _comparison(d, ins, m, 1)
    kind = m.type()
    m.done()
    if boolean or kind not in ("u32", "s32", "f32"):
        raise unknown(ins, "this form of set is not modelled")
    write = d.write(ins.operands[0], ins)
    if kind == "f32":
        return lambda c: write(c, result(c).astype(np.float32))
    return lambda c: write(c, np.where(result(c), np.uint32(0xFFFFFFFF), np.uint32(0)))


@instruction("selp")
def selp(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    m.done()
    a, b = d.reads(ins.operands[1:3], kind, ins)
    guard, write = d.read(ins.operands[3], "pred", ins), d.write(ins.operands[0], ins)
    return lambda c: write(c, np.where(guard(c), a(c), b(c)))


@instruction("slct", forms=("slct.dtype.s32", "slct{.ftz}.dtype.f32"))
def slct(d, ins):
    m = Modifiers(ins)
    condition = m.type()
    m.ignore("ftz")
    kind = m.type()
    m.done()
    a, b = d.reads(ins.operands[1:3], kind, ins)
    guard, write = d.read(ins.operands[3], condition, ins), d.write(ins.operands[0], ins)
    return lambda c: write(c, np.where(guard(c) >= 0, a(c), b(c)))
