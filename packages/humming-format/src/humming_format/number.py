"""Numbers: what one code of a few bits means, decoded exactly on Python fractions.
Called by every descriptor and by the reference decode; `number("u4")` looks a number up by name.
Assumes codes are non-negative integers below 2**bits, with the sign, if any, in the highest bit."""

from __future__ import annotations

import enum
import re
from fractions import Fraction

import attrs

from .codebook import CODEBOOKS
from .errors import DescriptorError, shown


class NumberKind(enum.Enum):
    """How the bits of a code are read."""

    UNSIGNED = "unsigned"  # the code itself
    SIGNED = "signed"  # two's complement
    SIGN_MAGNITUDE = "sign_magnitude"  # sign bit, then an unsigned integer: two zeros, no extra negative value
    FLOAT = "float"  # sign bit, exponent, mantissa
    EXPONENT = "exponent"  # an exponent alone: 2**(code - bias), no sign, no zero
    CODEBOOK = "codebook"  # an index into a table of values


class Specials(enum.Enum):
    """Which codes of a float are not finite."""

    FINITE = "finite"  # none
    NAN_ONLY = "nan_only"  # all exponent and mantissa bits set: NaN; the rest of the top exponent is finite
    IEEE = "ieee"  # top exponent: infinity when the mantissa is zero, NaN otherwise


@attrs.frozen(kw_only=True)
class Number:
    """One kind of number.

    `bits` is the width of a code. `exponent_bits` and `mantissa_bits` are zero for integers, except that the magnitude
    of a sign-magnitude number counts as its mantissa (e0m3: sign and 3 bits). `table` belongs to codebooks alone.
    """

    name: str
    bits: int
    kind: NumberKind
    exponent_bits: int = 0
    mantissa_bits: int = 0
    specials: Specials = Specials.FINITE
    table: tuple[Fraction, ...] = ()

    @property
    def bias(self) -> int:
        """What is taken off the exponent field: 2**(E-1) - 1, thus 0 for a single exponent bit and 127 for e8m0."""
        return (1 << (self.exponent_bits - 1)) - 1 if self.exponent_bits else 0

    @property
    def signed(self) -> bool:
        """Whether some code is negative."""
        return self.kind not in (NumberKind.UNSIGNED, NumberKind.EXPONENT)

    @property
    def largest(self) -> Fraction:
        """The largest finite value."""
        if self.kind is NumberKind.FLOAT:
            top = (1 << (self.bits - 1)) - 1
            if self.specials is Specials.NAN_ONLY:
                top -= 1
            elif self.specials is Specials.IEEE:
                top -= 1 << self.mantissa_bits  # the top exponent is infinity and NaN
            return Fraction(self.decode(top))
        if self.kind is NumberKind.CODEBOOK:
            return max(self.table)
        codes = 1 << (self.bits - 1 if self.signed else self.bits)
        return Fraction(self.decode(codes - (2 if self.specials is Specials.NAN_ONLY else 1)))

    def decode(self, code: int) -> Fraction | float:
        """The exact value of a code: a Fraction, or a float for what a Fraction cannot hold (NaN, infinities, -0.0)."""
        if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code < 1 << self.bits:
            raise DescriptorError(
                f"not a code of number {self.name}", got=shown(code), wanted=f"an int from 0 to {(1 << self.bits) - 1}"
            )
        if self.kind is NumberKind.UNSIGNED:
            return Fraction(code)
        if self.kind is NumberKind.CODEBOOK:
            return self.table[code]
        if self.kind is NumberKind.SIGNED:
            return Fraction(code - (1 << self.bits) if code >> (self.bits - 1) else code)
        if self.kind is NumberKind.EXPONENT:
            return float("nan") if code == (1 << self.bits) - 1 else _power_of_two(code - self.bias)
        negative = bool(code >> (self.bits - 1))
        magnitude = code & ((1 << (self.bits - 1)) - 1)
        if self.kind is NumberKind.SIGN_MAGNITUDE:
            value: Fraction | float = Fraction(magnitude)
        else:
            value = self._decode_magnitude(magnitude)
        if not negative:
            return value
        return -0.0 if value == 0 else -value

    def values(self) -> tuple[Fraction | float, ...]:
        """The value of every code, in the order of the codes. Refused above 16 bits."""
        if self.bits > 16:
            raise DescriptorError(f"number {self.name} has too many codes to list", got=f"{self.bits} bits")
        return tuple(self.decode(code) for code in range(1 << self.bits))

    def _decode_magnitude(self, magnitude: int) -> Fraction | float:
        exponent = magnitude >> self.mantissa_bits
        mantissa = magnitude & ((1 << self.mantissa_bits) - 1)
        if exponent == (1 << self.exponent_bits) - 1:
            if self.specials is Specials.IEEE:
                return float("nan") if mantissa else float("inf")
            if self.specials is Specials.NAN_ONLY and mantissa == (1 << self.mantissa_bits) - 1:
                return float("nan")
        if exponent == 0:  # subnormal: no hidden one, and the exponent of the first normal binade
            return mantissa * _power_of_two(1 - self.bias - self.mantissa_bits)
        return (mantissa + (1 << self.mantissa_bits)) * _power_of_two(exponent - self.bias - self.mantissa_bits)


def _power_of_two(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def _float(name: str, exponent_bits: int, mantissa_bits: int, specials: Specials) -> Number:
    return Number(
        name=name,
        bits=1 + exponent_bits + mantissa_bits,
        kind=NumberKind.FLOAT,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        specials=specials,
    )


def _make_table() -> dict[str, Number]:
    numbers = [Number(name=f"u{bits}", bits=bits, kind=NumberKind.UNSIGNED) for bits in range(1, 9)]
    numbers += [Number(name=f"s{bits}", bits=bits, kind=NumberKind.SIGNED) for bits in range(2, 9)]
    numbers += [
        Number(name=f"e0m{bits - 1}", bits=bits, kind=NumberKind.SIGN_MAGNITUDE, mantissa_bits=bits - 1)
        for bits in range(2, 9)
    ]
    # Two of the 8-bit floats have codes that are not finite; every other small float is finite throughout.
    specials = {"e4m3": Specials.NAN_ONLY, "e5m2": Specials.IEEE}
    for bits in range(3, 9):
        for exponent_bits in range(1, bits):
            name = f"e{exponent_bits}m{bits - 1 - exponent_bits}"
            numbers.append(_float(name, exponent_bits, bits - 1 - exponent_bits, specials.get(name, Specials.FINITE)))
    numbers.append(Number(name="e8m0", bits=8, kind=NumberKind.EXPONENT, exponent_bits=8, specials=Specials.NAN_ONLY))
    numbers += [
        Number(name=name, bits=(len(table) - 1).bit_length(), kind=NumberKind.CODEBOOK, table=table)
        for name, table in CODEBOOKS.items()
    ]
    numbers.append(_float("f16", 5, 10, Specials.IEEE))
    numbers.append(_float("bf16", 8, 7, Specials.IEEE))
    numbers.append(_float("f32", 8, 23, Specials.IEEE))
    return {entry.name: entry for entry in numbers}


NUMBERS: dict[str, Number] = _make_table()
"""Every number, by name."""


def number(name: str) -> Number:
    """The number of that name.

    Raises DescriptorError, listing the numbers nearest in spelling or all families, for any other name.
    """
    found = NUMBERS.get(name) if isinstance(name, str) else None
    if found is None:
        raise DescriptorError(
            "unknown number",
            got=shown(name),
            wanted="u1..u8, s2..s8, e0m1..e0m7, eXmY of 3 to 8 bits (such as e2m1, e4m3), e8m0, f16, bf16, f32, "
            + ", ".join(CODEBOOKS),
            remedy=_hint(name),
        )
    return found


def _hint(name: object) -> str | None:
    match = re.fullmatch(r"(?i)(?:u?int|uint|i|fp|float|bfloat)(\d{1,2})", name) if isinstance(name, str) else None
    if match is None:
        return None
    width = match.group(1)
    return f"integers are spelled u{width} or s{width}, floats by exponent and mantissa bits (fp4 = e2m1, fp8 = e4m3)"
