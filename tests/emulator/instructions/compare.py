"""Comparison and selection, of integers and floats.
Called through the registry of `decode`.
Assumes ordered comparisons are false with a NaN, the ones that end in u true."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import FLOAT_TYPES, Modifiers, instruction, unknown
from tests.emulator.floats import bf16_to_f32, half_to_f32
from tests.emulator.program import Pair

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
