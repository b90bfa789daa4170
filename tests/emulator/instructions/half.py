"""Arithmetic of f16, bf16 and their packed pairs.
Called by the float and integer rooms, which own the opcodes.
Assumes one rounding to nearest even per instruction; sums and products go through float32, which is wide enough."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import Modifiers, unknown
from tests.emulator.floats import (
    bf16_to_f32,
    f32_to_bf16,
    f64_to_f32_odd,
    fma_to_odd,
    half_to_f32,
    join_pair,
    split_pair,
    to_half,
)
from tests.emulator.instructions.float import minimum


def half_bits(kind, value):
    """Bits of float32 or odd-rounded float64 values in "f16" or "bf16"."""
    value = np.asarray(value)
    if kind == "f16":
        return to_half(value)
    if value.dtype == np.float64:
        value = f64_to_f32_odd(np.atleast_1d(value))
    return f32_to_bf16(value)


def half_values(kind, bits):
    return half_to_f32(bits) if kind == "f16" else bf16_to_f32(bits)


def _apply(d, ins, m, full_kind, function, sources, raw=False):
    """Run a function of float32 arrays (or of bits, if raw) on each half."""
    kind = full_kind.removesuffix("x2")
    packed = full_kind.endswith("x2")
    relu, saturate = m.flag("relu"), m.flag("sat")
    m.ignore("rn", "ftz")
    m.done()
    reads = d.reads(sources, full_kind, ins)
    write = d.write(ins.operands[0], ins)

    def one(parts):
        if raw:
            return function(*parts)
        result = function(*[half_values(kind, p) for p in parts])
        if relu:
            result = np.where(result > 0, result, np.where(np.isnan(result), result, 0)).astype(result.dtype)
        if saturate:
            result = np.where(np.isnan(result), 0, np.clip(result, 0, 1)).astype(result.dtype)
        return half_bits(kind, result)

    def run(c):
        values = [c.full(r(c)) for r in reads]
        if packed:
            # both halves in one array: low halves first
            parts = [np.concatenate(split_pair(v)) for v in values]
            both = one(parts)
            write(c, join_pair(both[: c.T], both[c.T :]))
        else:
            write(c, one(values))

    return run


def _kind(ins, m):
    kind = m.type()
    if m.left and m.left[-1] in ("f16", "bf16") and kind == "f32":
        raise unknown(ins, "mixed precision arithmetic is not modelled")
    return kind


def add_sub(d, ins, kind):
    m = Modifiers(ins)
    kind = _kind(ins, m)
    if kind == "f32":
        raise unknown(ins, "mixed precision add is not modelled")
    return _apply(d, ins, m, kind, np.add if ins.opcode == "add" else np.subtract, ins.operands[1:3])


def mul(d, ins, kind):
    m = Modifiers(ins)
    return _apply(d, ins, m, _kind(ins, m), np.multiply, ins.operands[1:3])


def fma(d, ins, kind):
    m = Modifiers(ins)
    kind = _kind(ins, m)
    if m.flag("oob"):
        raise unknown(ins, ".oob is not modelled")
    return _apply(d, ins, m, kind, fma_to_odd, ins.operands[1:4])


def min_max(d, ins, kind):
    m = Modifiers(ins)
    kind = _kind(ins, m)
    nan = m.flag("NaN")
    largest = ins.opcode == "max"
    return _apply(d, ins, m, kind, lambda a, b: minimum(a, b, nan, largest), ins.operands[1:3])


def abs_neg(d, ins, kind):
    m = Modifiers(ins)
    kind = _kind(ins, m)
    if ins.opcode == "abs":
        return _apply(d, ins, m, kind, lambda bits: bits & np.uint16(0x7FFF), ins.operands[1:2], raw=True)
    return _apply(d, ins, m, kind, lambda bits: bits ^ np.uint16(0x8000), ins.operands[1:2], raw=True)


def unary(d, ins, function):
    m = Modifiers(ins)
    kind = _kind(ins, m)
    m.ignore("approx")
    return _apply(d, ins, m, kind, lambda x: function(x.astype(np.float64)), ins.operands[1:2])
