"""Activation formats: the number that the input of a layer has in its product, and how it is quantized on the way.
Called by the packages that compute; the checkpoint readers name what the exporter intended.
Assumes activations are row-major [M, K], one row per token, so that a scale per row is a scale per token."""

from __future__ import annotations

import attrs

from .errors import DescriptorError, shown
from .number import Number
from .scale import ScaleFormat
from .weight import check_parts
from .zero_point import ZeroPointFormat, ZeroPointKind

ACTIVATION_NUMBERS: tuple[str, ...] = ("f16", "bf16")
"""Names of the numbers that activations may have without being quantized."""


@attrs.frozen(kw_only=True)
class ActivationFormat:
    """What the activations are in the product.

    f16 and bf16 stand alone. Every other number has a scale: per tensor (None, None), per token (None, 1), or per token
    and group of columns. `static`: the scale is stored in the checkpoint; otherwise it is taken from each input.
    `outer_scale`, the second of two levels, is always stored.
    """

    number: Number
    scale: ScaleFormat | None = None
    zero_point: ZeroPointFormat = attrs.field(factory=ZeroPointFormat)
    outer_scale: ScaleFormat | None = None
    static: bool = False

    def __attrs_post_init__(self) -> None:
        name = self.number.name if isinstance(self.number, Number) else shown(self.number)
        for what, right, value in (
            ("scale", self.scale is None or isinstance(self.scale, ScaleFormat), self.scale),
            ("zero_point", isinstance(self.zero_point, ZeroPointFormat), self.zero_point),
            ("outer_scale", self.outer_scale is None or isinstance(self.outer_scale, ScaleFormat), self.outer_scale),
            ("static", isinstance(self.static, bool), self.static),
        ):
            if not right:
                raise DescriptorError(f"{what} of an activation format is of the wrong type", got=shown(value))
        if name in ACTIVATION_NUMBERS:
            if self.scale is not None or self.outer_scale is not None:
                raise DescriptorError(f"{name} activations have no scale", got=shown(self.scale), wanted="scale=None")
            if self.static or self.zero_point.kind is not ZeroPointKind.NONE:
                raise DescriptorError(f"{name} activations are not quantized", wanted="static=False, no zero point")
            return
        if not isinstance(self.number, Number) or self.number.bits > 8 or self.scale is None:
            raise DescriptorError(
                "activations of this number are not described",
                got=name + ("" if self.scale is None else " with a scale"),
                wanted=" or ".join(ACTIVATION_NUMBERS) + ", or a number of at most 8 bits with a scale",
            )
        if self.zero_point.kind is ZeroPointKind.MINIMUM:
            raise DescriptorError("activations with a minimum are not described", wanted="an integer zero point")
        check_parts(self.number, self.scale, self.zero_point, self.outer_scale)
