"""Arithmetic of f32 and f64.
Called through the registry of `decode`, partly by way of the integer room, which owns the shared opcodes.
Assumes round to nearest even; approximate instructions return the correctly rounded value."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import HALF_TYPES, TYPES, Modifiers, instruction, unknown
from tests.emulator.floats import add_to_odd, fma_to_odd

_TINY = np.float32(1.17549435e-38)


def flush(value):
    """Subnormals to zero of the same sign."""
    return np.where(np.abs(value) < _TINY, np.copysign(np.float32(0), value), value).astype(np.float32)


def _finish(d, ins, m, kind, function, sources):
    """Common end: .ftz, .sat, reading and writing."""
    ftz, saturate = m.flag("ftz"), m.flag("sat")
    m.done()
    reads = d.reads(sources, kind, ins)
    write = d.write(ins.operands[0], ins)
    dtype = TYPES[kind]

    def run(c):
        values = [r(c) for r in reads]
        if ftz:
            values = [flush(v) for v in values]
        result = np.asarray(function(*values), dtype)
        if ftz:
            result = flush(result)
        if saturate:
            result = np.where(np.isnan(result), 0, np.clip(result, 0, 1)).astype(dtype)
        write(c, result)

    return run


def _directed(function64):
    """float32 rounding towards zero, down or up from an odd-rounded float64."""

    def directed(mode, value64):
        near = value64.astype(np.float32)
        error = value64 - near.astype(np.float64)
        if mode == "rz":
            wrong = (error != 0) & ((error > 0) != (near > 0))
            target = np.float32(0)
        elif mode == "rm":
            wrong, target = error < 0, np.float32(-np.inf)
        else:
            wrong, target = error > 0, np.float32(np.inf)
        return np.where(wrong, np.nextafter(near, target), near)

    return lambda mode, *v: directed(mode, np.atleast_1d(function64(*[np.asarray(x, np.float64) for x in v])))


def _rounding(m, ins, kind, nearest, exact64):
    mode = m.take("rn", "rz", "rm", "rp", default="rn")
    if mode == "rn":
        return nearest
    if kind != "f32":
        raise unknown(ins, f"rounding .{mode} of {kind} is not modelled")
    directed = _directed(exact64)
    return lambda *v: directed(mode, *v)


def add_sub(d, ins, kind):
    m = Modifiers(ins)
    kind = m.type()
    if kind == "f32" and m.left and m.left[-1] in ("f32",):
        raise unknown(ins, "mixed precision add is not modelled")
    if ins.opcode == "add":
        function = _rounding(m, ins, kind, np.add, add_to_odd)
    else:
        function = _rounding(m, ins, kind, np.subtract, lambda a, b: add_to_odd(a, -b))
    return _finish(d, ins, m, kind, function, ins.operands[1:3])


def mul(d, ins, kind):
    m = Modifiers(ins)
    kind = m.type()
    return _finish(d, ins, m, kind, _rounding(m, ins, kind, np.multiply, np.multiply), ins.operands[1:3])


def fma32(a, b, c):
    return fma_to_odd(a, b, c).astype(np.float32)


def fma64(a, b, c):
    """Exact fused multiply-add of float64 by Python fractions: slow, rare."""
    from fractions import Fraction

    a, b, c = np.broadcast_arrays(a, b, c)
    out = np.empty(a.shape, np.float64)
    for i in np.ndindex(a.shape):
        x, y, z = float(a[i]), float(b[i]), float(c[i])
        if all(np.isfinite(v) for v in (x, y, z)):
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            out[i] = float(exact) if exact else x * y + z
        else:
            out[i] = x * y + z
    return out


def fma(d, ins, kind):
    m = Modifiers(ins)
    kind = m.type()
    if kind == "f32":
        function = _rounding(m, ins, kind, fma32, fma_to_odd)
    else:
        m.ignore("rn")
        function = fma64
    return _finish(d, ins, m, kind, function, ins.operands[1:4])


@instruction("fma", forms=("fma.rn{.ftz}{.sat}.f32", "fma.rn{.relu}.f16x2", "fma.rn.bf16x2", "fma.rn.f64"))
def fma_rule(d, ins):
    from tests.emulator.instructions import half

    if any(t in ins.modifiers for t in HALF_TYPES):
        return half.fma(d, ins, ins.modifiers[-1])
    return fma(d, ins, ins.modifiers[-1])


def div(d, ins, kind):
    m = Modifiers(ins)
    kind = m.type()
    m.ignore("rn", "full", "approx")
    return _finish(d, ins, m, kind, np.divide, ins.operands[1:3])


def minimum(a, b, nan=False, largest=False):
    """min/max with -0 below +0; a NaN loses unless `nan`."""
    a, b = np.asarray(a), np.asarray(b)
    if largest:
        result = np.maximum(a, b) if nan else np.fmax(a, b)
        zero = (a == 0) & (b == 0)
        return np.where(zero, np.where(np.signbit(a) & np.signbit(b), a, np.abs(a)), result)
    result = np.minimum(a, b) if nan else np.fmin(a, b)
    zero = (a == 0) & (b == 0)
    return np.where(zero, np.where(np.signbit(a) | np.signbit(b), -np.abs(a), a), result)


def min_max(d, ins, kind):
    m = Modifiers(ins)
    kind = m.type()
    nan = m.flag("NaN")
    largest = ins.opcode == "max"
    if len(ins.operands) != 3:
        raise unknown(ins, "three-input min and max are not modelled")
    return _finish(d, ins, m, kind, lambda a, b: minimum(a, b, nan, largest), ins.operands[1:3])


def abs_neg(d, ins, kind):
    m = Modifiers(ins)
    kind = m.type()
    return _finish(d, ins, m, kind, np.abs if ins.opcode == "abs" else np.negative, ins.operands[1:2])


_UNARY = {
    "rcp": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@instruction(*_UNARY, forms=("rcp|sqrt.rn|approx{.ftz}.f32", "ex2|lg2|rsqrt|tanh.approx{.ftz}.f32", "ex2.approx.f16x2"))
def unary(d, ins):
    from tests.emulator.instructions import half

    function = _UNARY[ins.opcode]
    if any(t in ins.modifiers for t in HALF_TYPES):
        return half.unary(d, ins, function)
    m = Modifiers(ins)
    kind = m.type()
    m.ignore("rn", "approx")
    if kind == "f64":
        return _finish(d, ins, m, kind, function, ins.operands[1:2])
    # through float64, so that the one rounding is the last
    return _finish(d, ins, m, kind, lambda x: function(np.asarray(x, np.float64)).astype(np.float32), ins.operands[1:2])


@instruction("copysign")
def copysign(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    return _finish(d, ins, m, kind, lambda a, b: np.copysign(b, a), ins.operands[1:3])


@instruction("testp", forms=("testp.finite|infinite|number|notanumber|normal|subnormal.f32",))
def testp(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    test = m.take("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    m.done()
    a, write = d.read(ins.operands[1], kind, ins), d.write(ins.operands[0], ins)
    tiny = np.finfo(TYPES[kind]).tiny
    functions = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda x: (np.abs(x) < tiny) & (x != 0),
    }
    function = functions[test]
    return lambda c: write(c, np.asarray(function(a(c))))
