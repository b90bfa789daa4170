"""The exact meaning of codes, scales and zero points, on Python fractions: the truth for faster code to be tested by.
Called by tests of every package and by the exact checkpoint decode.
Assumes matrices as plain lists of rows: codes [n][k], scales and zero points [groups_n][groups_k]."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

from .errors import FormatError, shown
from .number import Number
from .scale import ScaleFormat
from .weight import WeightFormat
from .zero_point import ZeroPointKind

Exact = Fraction | float
"""An exact value: a Fraction, or a float for NaN, the infinities and negative zero."""


def multiply(left: Exact, right: Exact) -> Exact:
    """The product. IEEE rules for NaN and infinities; a zero is negative only when a factor is a negative zero."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left * right
    product = _stand_in(left) * _stand_in(right)
    return product if not math.isfinite(product) or math.copysign(1.0, product) < 0 else Fraction(0)


def add(left: Exact, right: Exact) -> Exact:
    """The sum. IEEE rules for NaN and infinities; negative zero only from two negative zeros."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left + right
    if (isinstance(left, float) and not math.isfinite(left)) or (isinstance(right, float) and not math.isfinite(right)):
        return _stand_in(left) + _stand_in(right)
    if left == 0 and right == 0:
        return -0.0 if isinstance(left, float) and isinstance(right, float) else Fraction(0)
    return right if left == 0 else left


def decode_weight(
    weight: WeightFormat,
    code: int,
    scale: int | Exact | None = None,
    zero: int | Exact | None = None,
    outer: int | Exact | None = None,
) -> Exact:
    """The exact value of one weight.

    `scale` is a value (Fraction or float), or an int: the stored code of `weight.scale.number`; None without scale.
    `zero` is the int zero point for INTEGER; a value, or an int code of its number, for MINIMUM and FLOAT; else None.
    `outer` is the outer scale, given as `scale` is; None where the format has one level.
    """
    kind = weight.zero_point.kind
    value = weight.number.decode(code)
    factor = _scale_value("scale", weight.scale, scale)
    if weight.outer_scale is not None or outer is not None:
        factor = multiply(factor, _scale_value("outer scale", weight.outer_scale, outer))
    if kind in (ZeroPointKind.NONE, ZeroPointKind.CONSTANT):
        if zero is not None:
            raise FormatError(f"a zero point of kind {kind.value} is not stored", got=shown(zero), wanted="zero=None")
        if kind is ZeroPointKind.CONSTANT:
            value = add(value, Fraction(-(weight.zero_point.value or 0)))
        return multiply(value, factor)
    if kind is ZeroPointKind.INTEGER:
        if isinstance(zero, bool) or not isinstance(zero, int) or zero < 0:
            raise FormatError("an integer zero point is needed", got=shown(zero), wanted="an int of 0 or more")
        return multiply(add(value, Fraction(-zero)), factor)
    number = weight.zero_point.number
    if zero is None or number is None:
        raise FormatError(
            "a minimum is needed" if kind is ZeroPointKind.MINIMUM else "a float zero point is needed",
            got=shown(zero),
            wanted="a value or a stored code",
        )
    if kind is ZeroPointKind.FLOAT:
        return multiply(add(value, multiply(Fraction(-1), _value_of(number, zero))), factor)
    return add(multiply(value, factor), _value_of(number, zero))


def decode_matrix(
    weight: WeightFormat,
    codes: Sequence[Sequence[int]],
    scales: Sequence[Sequence[int | Exact]] | None = None,
    zeros: Sequence[Sequence[int | Exact]] | None = None,
    outers: Sequence[Sequence[int | Exact]] | None = None,
) -> list[list[Exact]]:
    """The exact values of codes [n][k] with scales and zero points [groups_n][groups_k], outer scales likewise.

    Raises FormatError naming both counts when scales or zero points have another number of groups than the format says.
    """
    n = len(codes)
    k = len(codes[0]) if n else 0
    _check_shape("codes", codes, n, k)
    scale = weight.scale
    groups_n, groups_k = (scale.groups_n(n), scale.groups_k(k)) if scale else (0, 0)
    outer = weight.outer_scale
    outer_shape = (outer.groups_n(n), outer.groups_k(k)) if outer else (0, 0)
    stored = weight.zero_point.kind not in (ZeroPointKind.NONE, ZeroPointKind.CONSTANT)
    for what, matrix, needed, (rows_needed, columns_needed) in (
        ("scales", scales, scale is not None, (groups_n, groups_k)),
        ("zero points", zeros, stored, (groups_n, groups_k)),
        ("outer scales", outers, outer is not None, outer_shape),
    ):
        if (matrix is not None) != needed:
            raise FormatError(
                f"{what} are {'missing' if needed else 'not part of this format'}",
                wanted=f"a matrix [{rows_needed}][{columns_needed}]" if needed else "None",
            )
        if matrix is not None:
            _check_shape(what, matrix, rows_needed, columns_needed)
    rows: list[list[Exact]] = []
    for i, row in enumerate(codes):
        values: list[Exact] = []
        for j, code in enumerate(row):
            group_n, group_k = group_of(scale, i, j)
            outer_n, outer_k = group_of(outer, i, j)
            values.append(
                decode_weight(
                    weight,
                    code,
                    scales[group_n][group_k] if scales is not None else None,
                    zeros[group_n][group_k] if zeros is not None else None,
                    outers[outer_n][outer_k] if outers is not None else None,
                )
            )
        rows.append(values)
    return rows


def group_of(scale: ScaleFormat | None, row: int, column: int) -> tuple[int, int]:
    """Which scale [group_n][group_k] a weight belongs to; (0, 0) where all share one or there is none."""
    if scale is None:
        return 0, 0
    return (row // scale.group_n if scale.group_n else 0, column // scale.group_k if scale.group_k else 0)


def round_to_f32(value: Exact) -> Exact:
    """The nearest f32, ties to even, infinity beyond its range: for exporters that round a product or quotient once."""
    try:
        wide = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    if not math.isfinite(wide):
        return wide
    try:
        narrow = struct.unpack("<f", struct.pack("<f", _odd(value, wide)))[0]
    except OverflowError:  # what struct says of a value that rounds to infinity
        return math.copysign(math.inf, wide)
    return Fraction(narrow) if narrow else (narrow if math.copysign(1.0, wide) < 0 else Fraction(0))


def _odd(value: Exact, wide: float) -> float:
    """Of the two f64 around `value` the one whose last bit is set, unless `value` is one: a second rounding is then
    right, where rounding to nearest twice is not."""
    exact = value if isinstance(value, Fraction) else Fraction(value)
    if Fraction(wide) == exact or struct.pack("<d", wide)[0] & 1:
        return wide
    return math.nextafter(wide, math.inf if exact > Fraction(wide) else -math.inf)


def encode_nearest(number: Number, value: Fraction) -> int:
    """The code whose finite value is nearest, the even code on a tie; beyond the largest value: the largest.

    By trying every code, so for numbers of at most 16 bits. Negative zero is never chosen.
    """
    best = 0
    distance: Fraction | None = None
    for code, candidate in enumerate(number.values()):
        if not isinstance(candidate, Fraction):
            continue
        away = abs(candidate - value)
        if distance is None or away < distance or (away == distance and code % 2 == 0 and best % 2 == 1):
            best, distance = code, away
    return best


def _scale_value(what: str, described: ScaleFormat | None, scale: int | Exact | None) -> Exact:
    if described is None:
        if scale is not None:
            raise FormatError(f"this format has no {what}", got=shown(scale), wanted="None")
        return Fraction(1)
    if scale is None:
        raise FormatError(f"a value is needed for the {what}", wanted=f"a value or a code of {described.number.name}")
    return _value_of(described.number, scale)


def _value_of(number: Number, value: int | Exact) -> Exact:
    if isinstance(value, Fraction):
        return value
    if isinstance(value, float):
        if not math.isfinite(value) or (value == 0 and math.copysign(1.0, value) < 0):
            return value
        return Fraction(value)
    return number.decode(value)


def _stand_in(value: Exact) -> float:
    """A float of the same sign and kind (zero, finite, infinite, NaN): enough where the other side is special."""
    if isinstance(value, float):
        return value
    return float((value > 0) - (value < 0))


def _check_shape(what: str, matrix: Sequence[Sequence[object]], rows: int, columns: int) -> None:
    if len(matrix) != rows or any(len(row) != columns for row in matrix):
        lengths = sorted({len(row) for row in matrix})
        raise FormatError(
            f"{what} have the wrong shape",
            got=f"{len(matrix)} rows of {lengths} columns",
            wanted=f"{rows} rows of {columns} columns",
        )
