"""Stored tensors to the canonical form, one file per family of exporters, and rounding of real weights to a format.

Called by `Linear`, the command line and users who convert a checkpoint layer by layer.
Assumes entries of humming_format.checkpoint; one layer is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch
from humming_format.checkpoint.entry import Checkpoint, LayerEntry, TensorPlace
from humming_format.checkpoint.layout import GgufBlock, GptqLayout

from humming_torch.convert.canonical import CanonicalWeight
from humming_torch.convert.gguf import read_gguf
from humming_torch.convert.gptq import read_gptq
from humming_torch.convert.quantize import quantize
from humming_torch.convert.stored import read_tensor
from humming_torch.errors import ConversionError

__all__ = ["CanonicalWeight", "bias_place", "has_reader", "quantize", "read_bias", "read_layer", "read_layers"]


def read_layer(
    entry: LayerEntry, device: torch.device | str = "cpu", *, bias: torch.Tensor | None = None
) -> CanonicalWeight:
    """Read and convert one layer; exact, or a ConversionError that says what cannot be kept.

    `bias` is for containers that keep it apart from the layer (see `read_bias`).
    """
    if entry.weight is None or entry.layout is None:
        raise ConversionError(
            f"layer {entry.name} is not quantized in a way that is described",
            got=entry.method,
            wanted="a GPTQ layer, or GGUF Q4_0, Q4_1 or Q8_0",
            hint="humming-format inspect shows what a checkpoint holds.",
        )
    if isinstance(entry.layout, GptqLayout):
        weight = read_gptq(entry, entry.layout, entry.weight, device)
    elif isinstance(entry.layout, GgufBlock):
        weight = read_gguf(entry, entry.layout, entry.weight, device)
    else:
        raise ConversionError(f"layer {entry.name}: no reader for its layout", got=type(entry.layout).__name__)
    return weight if bias is None else attrs.evolve(weight, bias=bias)


def has_reader(entry: LayerEntry) -> bool:
    """Whether `read_layer` knows the layout of a layer."""
    return entry.weight is not None and isinstance(entry.layout, (GptqLayout, GgufBlock))


def bias_place(checkpoint: Checkpoint, entry: LayerEntry) -> TensorPlace | None:
    """Where the bias of a layer lies, if it has one: among the layer's tensors, or NAME.bias beside NAME.weight."""
    if "bias" in entry.tensors:
        return entry.tensors["bias"]
    wanted = entry.name.removesuffix(".weight") + ".bias"
    return next((place for place in checkpoint.others if place.tensor == wanted and place.shape == (entry.n,)), None)


def read_bias(checkpoint: Checkpoint, entry: LayerEntry, device: torch.device | str = "cpu") -> torch.Tensor | None:
    """The bias of a layer, where the checkpoint has one."""
    place = bias_place(checkpoint, entry)
    return None if place is None else read_tensor(place, device)


def read_layers(
    checkpoint: Checkpoint, device: torch.device | str = "cpu"
) -> Iterator[tuple[LayerEntry, CanonicalWeight]]:
    """Every quantized layer of a checkpoint, read when it is asked for."""
    for entry in checkpoint.quantized:
        yield entry, read_layer(entry, device, bias=read_bias(checkpoint, entry, device))
