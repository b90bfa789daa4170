"""LayerConfig: what fixes the stored bytes of a layer.
Called by the packer, the rules and the composer.
Assumes a weight of shape [n, k]; changing a field means packing the weight again."""

from __future__ import annotations

import attrs
from humming_format.weight import WeightFormat
from humming_format.zero_point import ZeroPointKind


@attrs.frozen(kw_only=True)
class LayerConfig:
    """A quantized linear layer, output[m, n] = activation[m, k] . weight[n, k]^T (+ bias[n])."""

    n: int
    k: int
    weight: WeightFormat
    operand_bits: int = 16
    bias: bool = False

    @property
    def scale_is_grouped(self) -> bool:
        """True where scales are stored per strip and group in lane order: group scales, and channel scales that
        come with a float minimum. False: one f32 scale per output feature, applied in the epilogue."""
        scale = self.weight.scale
        if scale is None:
            return False
        return scale.group_k is not None or self.weight.zero_point.kind is ZeroPointKind.MINIMUM

    @property
    def group_k(self) -> int | None:
        """Weights along k that share a scale; None for all of k."""
        return None if self.weight.scale is None else self.weight.scale.group_k

    @property
    def groups_k(self) -> int:
        """Scale groups along k; the last one may be partial."""
        return 1 if self.group_k is None else -(-self.k // self.group_k)
