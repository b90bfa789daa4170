"""cvt in all forms in use: integers, floats, halves, tf32, fp8, fp6, fp4, e8m0, packed or not.
Called through the registry of `decode`.
Assumes saturation as PTX defines it: float to integer always clamps, NaN gives zero."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import TYPES, Modifiers, instruction, unknown
from tests.emulator.floats import (
    bf16_to_f32,
    e8m0_encode,
    f32_to_bf16,
    half_to_f32,
    join_pair,
    small_decode,
    small_encode,
    split_pair,
    to_half,
    to_tf32,
)
from tests.emulator.instructions.float import flush

SMALL_PAIRS = ("e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2")
ALL = (*TYPES, *SMALL_PAIRS)
_INTEGER_ROUNDING = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
FORMS = (
    "cvt{.rn|rz|rzi|rni|..}{.ftz}{.sat}.dtype.atype",
    "cvt.rn|rz{.relu}{.satfinite}.f16x2|bf16x2.f32 d, a, b",
    "cvt.rn.satfinite{.relu}.e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2.f32 d, a, b",
    "cvt.rn.satfinite.e4m3x2|e5m2x2.f16x2",
    "cvt.rn{.relu}.f16x2.e4m3x2|e5m2x2|e2m1x2|..",
    "cvt.rz|rp.satfinite.ue8m0x2.f32|bf16x2",
    "cvt.rn.bf16x2.ue8m0x2",
    "cvt.rna|rn.tf32.f32",
)


@instruction("cvt", forms=FORMS)
def cvt(d, ins):
    words = list(ins.modifiers)
    if len(words) < 2 or words[-1] not in ALL or words[-2] not in ALL:
        raise unknown(ins, "cvt must end with two known types")
    source, target = words.pop(), words.pop()
    m = Modifiers(ins)
    m.left = words
    if target in SMALL_PAIRS or source in SMALL_PAIRS:
        return _small(d, ins, m, target, source)
    if target in ("f16x2", "bf16x2"):
        return _pair(d, ins, m, target, source)
    mode = m.take("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")
    ftz, saturate, relu, finite = m.flag("ftz"), m.flag("sat"), m.flag("relu"), m.flag("satfinite")
    m.done()
    if target == "tf32":
        value, write = d.read(ins.operands[1], "f32", ins), d.write(ins.operands[0], ins)
        return lambda c: write(c, to_tf32(c.full(value(c)), mode).view(np.uint32))
    read, write = d.read(ins.operands[1], source, ins), d.write(ins.operands[0], ins)
    source_float, target_float = source in FLOATS, target in FLOATS
    if not source_float and not target_float:
        return _integer(write, read, target, source, saturate)

    def run(c):
        value = widen(source, c.full(read(c)))
        if ftz and source == "f32":
            value = flush(value)
        if mode in _INTEGER_ROUNDING:
            value = _INTEGER_ROUNDING[mode](value)
        if not target_float:
            write(c, float_to_integer(value, target))
            return
        if saturate:
            value = np.where(np.isnan(value), 0, np.clip(value, 0, 1)).astype(value.dtype)
        if relu:
            value = np.where(value > 0, value, np.where(np.isnan(value), value, 0)).astype(value.dtype)
        result = narrow(target, value, mode if mode in ("rn", "rz", "rna") else "rn", finite)
        if ftz and target == "f32":
            result = flush(result)
        write(c, result)

    if mode in ("rm", "rp"):
        raise unknown(ins, f"float conversion with .{mode} is not modelled")
    return run


FLOATS = ("f16", "bf16", "f32", "f64")


def widen(kind, value):
    """Bits or values of a source type to float32/float64 (integers to float64 or exact int64)."""
    if kind == "f16":
        return half_to_f32(value)
    if kind == "bf16":
        return bf16_to_f32(value)
    return value


def narrow(kind, value, mode="rn", finite=False):
    if kind == "f64":
        return value.astype(np.float64)
    if kind == "f32":
        near = value.astype(np.float32)
        if mode == "rz" and value.dtype != np.float32:
            exact = value.astype(np.float64)
            over = (np.abs(near.astype(np.float64)) > np.abs(exact)) & np.isfinite(exact)
            near = np.where(over, np.nextafter(near, np.float32(0)), near)
        return near
    if value.dtype.kind in "iu":
        value = value.astype(np.float64)
    if finite:
        limit = 65504.0 if kind == "f16" else 3.3895313892515355e38
        value = np.where(np.isinf(value) | (np.abs(value) > limit), np.copysign(limit, value), value).astype(
            value.dtype
        )
    if kind == "f16":
        return to_half(value, mode)
    if value.dtype == np.float64:
        from tests.emulator.floats import f64_to_f32_odd

        value = f64_to_f32_odd(value)
    return f32_to_bf16(value, mode)


def float_to_integer(value, target):
    info = np.iinfo(TYPES[target])
    value = value.astype(np.float64)
    clean = np.where(np.isnan(value), 0, value)
    if info.bits == 64:
        inside = np.clip(clean, float(info.min), np.nextafter(float(info.max), 0))
        result = inside.astype(TYPES[target])
        return np.where(clean >= float(info.max), info.max, result).astype(TYPES[target])
    return np.clip(np.trunc(clean), info.min, info.max).astype(np.int64).astype(TYPES[target])


def _integer(write, read, target, source, saturate):
    target_type = TYPES[target]
    info = np.iinfo(target_type)

    def run(c):
        value = read(c)
        if saturate:
            low, high = np.iinfo(value.dtype).min, np.iinfo(value.dtype).max
            value = np.clip(value, max(info.min, low), min(info.max, high))
        value = value.astype(target_type)
        # a narrow result in a wide register is sign- or zero-extended by its type
        write(c, value)

    return run


def _pair(d, ins, m, target, source):
    """d = {high: a, low: b} from two float32."""
    mode = m.take("rn", "rz", default="rn")
    relu, finite = m.flag("relu"), m.flag("satfinite")
    m.ignore("ftz")
    m.done()
    if source != "f32" or len(ins.operands) != 3:
        raise unknown(ins, "a packed half conversion takes two f32")
    high, low = d.reads(ins.operands[1:3], "f32", ins)
    write = d.write(ins.operands[0], ins)
    kind = target.removesuffix("x2")

    def run(c):
        both = np.concatenate([c.full(low(c)), c.full(high(c))])
        if relu:
            both = np.where(both > 0, both, np.where(np.isnan(both), both, 0)).astype(np.float32)
        bits = narrow(kind, both, mode, finite)
        write(c, join_pair(bits[: c.T], bits[c.T :]))

    return run


def _small(d, ins, m, target, source):
    mode = m.take("rn", "rz", "rp", default="rn")
    relu, finite = m.flag("relu"), m.flag("satfinite")
    m.done()
    write = d.write(ins.operands[0], ins)
    if source == "f32" and target in SMALL_PAIRS:
        high, low = d.reads(ins.operands[1:3], "f32", ins)

        def encode(c):
            write(c, pack_small(target, c.full(low(c)), c.full(high(c)), mode, finite, relu))

        return encode
    if source in ("f16x2", "bf16x2") and target in SMALL_PAIRS:
        read = d.read(ins.operands[1], source, ins)

        def encode_pair(c):
            low, high = (widen(source.removesuffix("x2"), v) for v in split_pair(c.full(read(c))))
            write(c, pack_small(target, low, high, mode, finite, relu))

        return encode_pair
    if source in SMALL_PAIRS and target in ("f16x2", "bf16x2"):
        wide = "b8" if source == "e2m1x2" else "b16"
        read = d.read(ins.operands[1], wide, ins)
        kind = target.removesuffix("x2")

        def decode(c):
            bits = c.full(read(c))
            low, high = unpack_small(source, bits)
            if relu:
                low, high = np.maximum(low, 0), np.maximum(high, 0)
            write(c, join_pair(narrow(kind, low.astype(np.float32)), narrow(kind, high.astype(np.float32))))

        return decode
    raise unknown(ins, f"conversion from {source} to {target} is not known")


def pack_small(target, low, high, mode="rn", finite=True, relu=False):
    """Packed pair: two bytes, or two nibbles for e2m1."""
    name = target.removesuffix("x2")
    if name == "ue8m0":
        codes = [e8m0_encode(v, mode) for v in (low, high)]
    else:
        codes = [small_encode(name, v, finite, relu) for v in (low, high)]
    if name == "e2m1":
        return (codes[0] | (codes[1] << np.uint8(4))).astype(np.uint8)
    return codes[0].astype(np.uint16) | (codes[1].astype(np.uint16) << np.uint16(8))


def unpack_small(source, bits):
    name = source.removesuffix("x2")
    bits = bits.astype(np.int64)
    if name == "e2m1":
        return small_decode(name, bits & 15), small_decode(name, bits >> 4 & 15)
    mask = 0x3F if name in ("e2m3", "e3m2") else 0xFF
    return small_decode(name, bits & mask), small_decode(name, bits >> 8 & mask)
