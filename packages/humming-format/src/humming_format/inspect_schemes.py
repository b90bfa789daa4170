"""Schemes of a checkpoint: layers that are stored and computed alike, whatever their shapes, and those that differ.
Called by the inspect report.
Assumes a Checkpoint; the usual scheme is the one of most weights."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .checkpoint import Checkpoint, LayerEntry
from .text import format_activation, format_weight


@attrs.frozen(kw_only=True)
class Scheme:
    """Layers of one weight format, activation format and way of storing. `weight` "-" and `method` a dtype: plain."""

    weight: str
    activation: str | None
    method: str
    layers: tuple[LayerEntry, ...]

    @property
    def label(self) -> str:
        """For people: "u4g128 x e4m3c:f32 (gptq)"."""
        return self.weight + (f" x {self.activation}" if self.activation else "") + f" ({self.method})"

    @property
    def weights(self) -> int:
        """Number of weights."""
        return sum(entry.weights for entry in self.layers)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors of the layers."""
        return sum(entry.stored_bytes for entry in self.layers)

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per weight, bias not counted."""
        return sum(entry.bits_per_weight * entry.weights for entry in self.layers) / self.weights


def schemes(checkpoint: Checkpoint) -> tuple[Scheme, ...]:
    """The schemes of all matrices, that of most weights first, quantized ones before plain ones."""
    found: dict[tuple[str, str | None, str], list[LayerEntry]] = {}
    for entry in checkpoint.layers:
        key = (
            format_weight(entry.weight) if entry.weight else "-",
            format_activation(entry.activation) if entry.activation else None,
            entry.method,
        )
        found.setdefault(key, []).append(entry)
    made = [
        Scheme(weight=key[0], activation=key[1], method=key[2], layers=tuple(layers)) for key, layers in found.items()
    ]
    return tuple(sorted(made, key=lambda scheme: (scheme.weight == "-", -scheme.weights, scheme.label)))


def exceptions(found: Sequence[Scheme]) -> tuple[LayerEntry, ...]:
    """Layers that do not follow the usual scheme; none where nothing is quantized."""
    if not found or found[0].weight == "-":
        return ()
    return tuple(entry for scheme in found[1:] for entry in scheme.layers)
