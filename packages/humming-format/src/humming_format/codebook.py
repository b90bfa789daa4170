"""Codebooks: numbers whose codes index a table of values, under the names of those who published the tables.
Called by number.py, which makes a Number of each.
Assumes the values below, copied from the exporters' own tables and held against them in the tests."""

from __future__ import annotations

from fractions import Fraction

# bitsandbytes: quantiles of the normal distribution, each a f32, written as its exact hexadecimal value.
_NF4 = (
    "-0x1.000000p+0",
    "-0x1.647362p-1",
    "-0x1.0cd660p-1",
    "-0x1.946540p-2",
    "-0x1.23449ap-2",
    "-0x1.7a6a7ep-3",
    "-0x1.74f0e2p-4",
    "0x0.0p+0",
    "0x1.45f5fep-4",
    "0x1.4995c6p-3",
    "0x1.f809bap-3",
    "0x1.5a0674p-2",
    "0x1.c34970p-2",
    "0x1.200f56p-1",
    "0x1.722766p-1",
    "0x1.000000p+0",
)
# bitsandbytes' own 4-bit float, as the f32 values of its table; negative codes from 8 on, two zeros.
_BNB_FP4_POSITIVE = (
    "0x0.0p+0",
    "0x1.555556p-8",
    "0x1.555556p-1",
    "0x1.000000p+0",
    "0x1.555556p-2",
    "0x1.000000p-1",
    "0x1.555556p-3",
    "0x1.000000p-2",
)
# GGUF IQ4_NL: integers, closer together around zero.
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _exact(hexadecimal: tuple[str, ...]) -> tuple[Fraction, ...]:
    return tuple(Fraction(float.fromhex(text)) for text in hexadecimal)


_BNB_FP4 = _exact(_BNB_FP4_POSITIVE)

CODEBOOKS: dict[str, tuple[Fraction, ...]] = {
    "nf4": _exact(_NF4),
    "bnbfp4": _BNB_FP4 + tuple(-value for value in _BNB_FP4),
    "iq4nl": tuple(Fraction(value) for value in _IQ4_NL),
}
"""Name -> the value of each code."""
