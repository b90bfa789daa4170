"""Number conversions: half, bfloat16, the 8, 6 and 4-bit floats, fused multiply-add.
Called by the instruction rooms float, half, convert, mma.
Assumes bits come as unsigned integer arrays; all results keep subnormals."""

from __future__ import annotations

import functools

import numpy as np

F32 = np.float32
F64 = np.float64


def half_to_f32(bits):
    return np.asarray(bits, np.uint16).view(np.float16).astype(F32)


def bf16_to_f32(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(F32)


def _round_to_odd(total, error):
    """Double nearest `total + error` under round-to-odd, so that one more rounding is the only rounding."""
    fix = (error != 0) & ((total.view(np.uint64) & np.uint64(1)) == 0) & np.isfinite(total)
    if fix.any():
        total = np.where(fix, np.nextafter(total, np.copysign(np.inf, error)), total)
    return total


def add_to_odd(a, b):
    """a + b of two float64 arrays, rounded to odd."""
    total = np.add(a, b)
    back = total - a
    error = (a - (total - back)) + (b - back)
    return _round_to_odd(np.atleast_1d(total), np.atleast_1d(error)).reshape(np.shape(total))


def fma_to_odd(a, b, c):
    """a * b + c for float32 (or narrower) inputs, as a float64 rounded to odd."""
    product = np.asarray(a, F64) * np.asarray(b, F64)
    return add_to_odd(product, np.asarray(c, F64) + np.zeros_like(product))


def f64_to_f32_odd(value):
    """float64 to float32 rounded to odd (for a following rounding to 16 bits or less)."""
    near = value.astype(F32)
    error = value - near.astype(F64)
    fix = (error != 0) & ((near.view(np.uint32) & np.uint32(1)) == 0) & np.isfinite(near)
    if fix.any():
        near = np.where(fix, np.nextafter(near, np.copysign(F32(np.inf), error.astype(F32))), near)
    return near


def f32_to_bf16(value, mode="rn"):
    """Bits of the bfloat16; mode is rn (nearest even), rna (nearest away) or rz."""
    value = np.asarray(value, F32)
    bits = np.atleast_1d(value).view(np.uint32)
    if mode == "rn":
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    elif mode == "rna":
        rounded = (bits + np.uint32(0x8000)) >> np.uint32(16)
    elif mode == "rz":
        rounded = bits >> np.uint32(16)
    else:
        raise ValueError(f"rounding {mode!r} to bf16 is not known")
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, np.uint32(0x7FFF), rounded).astype(np.uint16).reshape(value.shape)


def to_half(value, mode="rn"):
    """Bits of the float16 of float32 or float64 values."""
    value = np.asarray(value)
    with np.errstate(all="ignore"):
        near = np.atleast_1d(value).astype(np.float16)
    if mode == "rz":
        flat = np.atleast_1d(value)
        over = (np.abs(near.astype(F64)) > np.abs(flat.astype(F64))) & ~np.isinf(flat)
        near = np.where(over, np.nextafter(near, np.float16(0)), near)
    elif mode != "rn":
        raise ValueError(f"rounding {mode!r} to f16 is not known")
    bits = near.view(np.uint16)
    bits = np.where(np.isnan(near), np.uint16(0x7FFF), bits)
    return bits.reshape(value.shape)


def split_pair(bits):
    """Low and high 16 bits of 32-bit words."""
    bits = np.asarray(bits, np.uint32)
    return bits.astype(np.uint16), (bits >> np.uint32(16)).astype(np.uint16)


def join_pair(low, high):
    return np.asarray(low).astype(np.uint32) | (np.asarray(high).astype(np.uint32) << np.uint32(16))


# --- the small floats -------------------------------------------------------------------------------

# name: (exponent bits, mantissa bits, bias, specials)
SMALL = {
    "e4m3": (4, 3, 7, "nan"),
    "e5m2": (5, 2, 15, "ieee"),
    "e2m1": (2, 1, 1, "none"),
    "e2m3": (2, 3, 1, "none"),
    "e3m2": (3, 2, 3, "none"),
}


@functools.cache
def small_table(name):
    """float64 value of every code of a small float; e8m0 too ("ue8m0")."""
    if name in ("e8m0", "ue8m0"):
        codes = np.arange(256)
        return np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127))
    if name == "ue4m3":
        return np.abs(small_table("e4m3"))
    exponent_bits, mantissa_bits, bias, specials = SMALL[name]
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    sign = np.where(codes >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    normal = np.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
    subnormal = np.ldexp(mantissa.astype(F64), 1 - bias - mantissa_bits)
    value = sign * np.where(exponent == 0, subnormal, normal)
    top = (1 << exponent_bits) - 1
    if specials == "ieee":
        value = np.where(exponent == top, np.where(mantissa == 0, sign * np.inf, np.nan), value)
    elif specials == "nan":
        value = np.where((exponent == top) & (mantissa == (1 << mantissa_bits) - 1), np.nan, value)
    return value


def small_decode(name, codes):
    return small_table(name)[np.asarray(codes)]


@functools.cache
def _positive(name):
    table = small_table(name)
    half = table[: len(table) // 2]
    finite = half[np.isfinite(half)]
    return finite, (finite[1:] + finite[:-1]) / 2


def small_encode(name, value, satfinite=True, relu=False):
    """Codes of the nearest small floats (ties to even), saturating to the largest finite value."""
    value = np.asarray(value, F64)
    if relu:
        value = np.where(value > 0, value, np.where(np.isnan(value), value, 0.0))
    finite, middle = _positive(name)
    magnitude = np.abs(value)
    code = np.searchsorted(middle, magnitude, side="left")
    tie = (code < len(middle)) & (magnitude == middle[np.minimum(code, len(middle) - 1)])
    code = code + (tie & (code & 1 == 1))
    sign_bit = len(small_table(name)) // 2
    nan_code = {"e4m3": 0x7F, "e5m2": 0x7F}.get(name)
    if not satfinite and name in ("e4m3", "e5m2"):
        limit = finite[-1] + (finite[-1] - finite[-2]) / 2
        overflow = 0x7F if name == "e4m3" else 0x7C
        code = np.where(magnitude >= limit, overflow, code)
    code = code + np.where(np.signbit(value), sign_bit, 0)
    if nan_code is None:
        code = np.where(np.isnan(value), len(finite) - 1, code)  # NaN becomes the largest finite value
    else:
        code = np.where(np.isnan(value), nan_code, code)
    return code.astype(np.uint8)


def e8m0_encode(value, mode="rz"):
    """ue8m0 of positive values; rz rounds the power down, rp up; saturates."""
    value = np.asarray(value, F64)
    mantissa, exponent = np.frexp(np.abs(value))
    code = exponent - 1 + 127
    if mode == "rp":
        code = code + (mantissa > 0.5)
    code = np.clip(np.where(value == 0, 0, code), 0, 254)
    return np.where(np.isnan(value), 255, code).astype(np.uint8)


def to_tf32(value, mode="rna"):
    """float32 rounded to 10 mantissa bits, low 13 bits zero."""
    bits = np.asarray(value, F32).view(np.uint32)
    if mode == "rna":
        bits = bits + np.uint32(0x1000)
    elif mode == "rn":
        bits = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return (bits & np.uint32(0xFFFFE000)).view(F32)
