"""Logic, shifts, bit fields, bit counts and byte permutes.
Called through the registry of `decode`.
Assumes shift amounts clamp as PTX says, unlike numpy's."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import TYPES, Modifiers, instruction, unknown
from tests.emulator.instructions.integer import binary
from tests.emulator.program import Immediate


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
                result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
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
        mask = np.where(
            count >= bits, ~unsigned.dtype.type(0), shift_left(np.full_like(unsigned, 1), count, bits) - one
        )
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
