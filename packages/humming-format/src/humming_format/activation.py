"""Activation formats: the number that the input of a layer arrives in.
Called by the packages that compute; the checkpoint readers name what the exporter intended.
Assumes activations are row-major [M, K] and, for now, not quantized: f16 or bf16 without scales."""

from __future__ import annotations

import attrs

from .errors import DescriptorError, shown
from .number import Number
from .scale import ScaleFormat

ACTIVATION_NUMBERS: tuple[str, ...] = ("f16", "bf16")
"""Names of the numbers that activations may have."""


@attrs.frozen(kw_only=True)
class ActivationFormat:
    """The number of the activations. `scale` is reserved for quantized activations and must be None today."""

    number: Number
    scale: ScaleFormat | None = None

    def __attrs_post_init__(self) -> None:
        name = self.number.name if isinstance(self.number, Number) else shown(self.number)
        if name not in ACTIVATION_NUMBERS:
            raise DescriptorError(
                "activations of this number are not described", got=name, wanted=" or ".join(ACTIVATION_NUMBERS)
            )
        if self.scale is not None:
            raise DescriptorError(f"{name} activations have no scale", got=shown(self.scale), wanted="scale=None")
