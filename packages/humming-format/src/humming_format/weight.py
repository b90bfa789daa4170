"""Weight formats: a number, its scales and its zero points, checked against one another.
Called by the checkpoint readers, the text and document forms, and every package that handles quantized weights.
Assumes a weight matrix [N, K] applied as y = x @ W.T."""

from __future__ import annotations

import attrs

from .errors import DescriptorError, shown
from .number import Number, NumberKind
from .scale import ScaleFormat
from .zero_point import ZeroPointFormat, ZeroPointKind


@attrs.frozen(kw_only=True)
class WeightFormat:
    """What a quantized weight matrix means.

    Unsigned numbers always have a zero point (symmetric weights: the constant 2**(bits-1)), every other number never
    has one. Stored zero points need a scale, since there is one per scale group.

    `outer_scale` is the second of two levels: a weight is its decoded code times its scale times its outer scale. It is
    shared by whole scale groups; None where there is one level.
    """

    number: Number
    scale: ScaleFormat | None = None
    zero_point: ZeroPointFormat = attrs.field(factory=ZeroPointFormat)
    outer_scale: ScaleFormat | None = None

    def __attrs_post_init__(self) -> None:
        for what, right, value in (
            ("number", isinstance(self.number, Number), self.number),
            ("scale", self.scale is None or isinstance(self.scale, ScaleFormat), self.scale),
            ("zero_point", isinstance(self.zero_point, ZeroPointFormat), self.zero_point),
            ("outer_scale", self.outer_scale is None or isinstance(self.outer_scale, ScaleFormat), self.outer_scale),
        ):
            if not right:
                raise DescriptorError(f"{what} of a weight format is of the wrong type", got=shown(value))
        check_parts(self.number, self.scale, self.zero_point, self.outer_scale)

    def stored_bits(self, n: int, k: int) -> int:
        """Bits of the codes, scales and zero points of an [n, k] matrix, stored without any padding."""
        total = n * k * self.number.bits
        if self.scale is None:
            return total
        total += self.scale.stored_bits(n, k)
        groups = self.scale.groups_n(n) * self.scale.groups_k(k)
        if self.zero_point.kind is ZeroPointKind.INTEGER:
            total += groups * self.number.bits
        elif self.zero_point.number is not None:
            total += groups * self.zero_point.number.bits
        if self.outer_scale is not None:
            total += self.outer_scale.stored_bits(n, k)
        return total


def symmetric(number: Number) -> ZeroPointFormat:
    """The zero point of a symmetric weight: constant 2**(bits-1) for unsigned numbers, none for all others."""
    if number.kind is NumberKind.UNSIGNED:
        return ZeroPointFormat.constant(1 << (number.bits - 1))
    return ZeroPointFormat.none()


def check_parts(
    number: Number, scale: ScaleFormat | None, zero_point: ZeroPointFormat, outer_scale: ScaleFormat | None
) -> None:
    """Raise DescriptorError where the parts of a format, of weights or of activations, do not go together."""
    if outer_scale is not None:
        _check_outer(scale, zero_point, outer_scale)
    if number.kind is NumberKind.EXPONENT:
        raise DescriptorError(f"{number.name} is a number for scales, not for weights", wanted="an integer or a float")
    kind = zero_point.kind
    if number.kind is not NumberKind.UNSIGNED:
        if kind is not ZeroPointKind.NONE:
            raise DescriptorError(
                f"only unsigned numbers have a zero point, {number.name} has its own sign",
                got=f"zero point of kind {kind.value}",
                wanted="ZeroPointFormat.none(), or the codes as offset binary (s4 + 8 = u4 with constant 8)",
            )
        return
    if kind is ZeroPointKind.NONE:
        raise DescriptorError(
            f"unsigned number {number.name} without a zero point",
            wanted=f"ZeroPointFormat.constant({1 << (number.bits - 1)}) when symmetric, .integer(), "
            ".minimum(number), or .constant(0) when the codes are the values",
        )
    if zero_point.value is not None and zero_point.value >= 1 << number.bits:
        raise DescriptorError(
            f"constant zero point outside the codes of {number.name}",
            got=str(zero_point.value),
            wanted=f"0 to {(1 << number.bits) - 1}",
        )
    if scale is None and kind is not ZeroPointKind.CONSTANT:
        raise DescriptorError(
            f"zero points of kind {kind.value} are stored per scale group, and this format has no scale",
            wanted="a ScaleFormat",
        )


def _check_outer(scale: ScaleFormat | None, zero_point: ZeroPointFormat, outer: ScaleFormat) -> None:
    if scale is None:
        raise DescriptorError("an outer scale without a scale", wanted="scale, the finer of the two levels")
    if zero_point.kind is ZeroPointKind.MINIMUM:
        raise DescriptorError(
            "minimums with an outer scale are not described, since the outer scale may or may not scale them",
            wanted="the products as one scale, such as u4g32m:f32",
        )
    for side, size, larger in (("k", scale.group_k, outer.group_k), ("n", scale.group_n, outer.group_n)):
        if larger is not None and (size is None or larger % size):
            raise DescriptorError(
                f"an outer scale must be shared by whole scale groups along {side}",
                got=f"outer groups of {larger} over groups of {size or 'everything'}",
                wanted="a multiple, or None",
            )
