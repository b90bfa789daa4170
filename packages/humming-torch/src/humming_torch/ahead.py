"""The kernels that the layers of a checkpoint need, found without a GPU and without reading a weight.

Called by `humming prepare` and `humming bundle`.
Assumes that a layer's kernels follow from its format, shape and bias alone, and so from the checkpoint's headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import torch
from humming_format.checkpoint import Checkpoint, LayerEntry
from humming_format.text import format_weight
from humming_kernels.arch import DeviceFacts
from humming_kernels.compose import KernelSource

from humming_torch.convert import bias_place, has_reader
from humming_torch.errors import UnsupportedError
from humming_torch.plan import dense_configs, range_sources

EMBEDDINGS = ("token_embd", "embed_tokens", "word_embeddings", "wte")
"""Tables of these names are looked up, not multiplied with, and so are not linear layers."""


def linear_layers(checkpoint: Checkpoint) -> tuple[LayerEntry, ...]:
    """The quantized layers that are multiplied with: all but embedding tables."""
    return tuple(entry for entry in checkpoint.quantized if not any(word in entry.name for word in EMBEDDINGS))


@attrs.frozen(kw_only=True)
class LayerKind:
    """One format, shape and signature, how many layers have it, and the kernels for each range of M."""

    text: str
    n: int
    k: int
    bias: bool
    layers: int
    symbols: tuple[str, ...]

    @property
    def title(self) -> str:
        """Size and format, as the tables name it."""
        return f"{self.n} x {self.k} {self.text}{' with bias' if self.bias else ''}"


@attrs.frozen(kw_only=True)
class KernelsAhead:
    """What a checkpoint needs on one kind of device.

    `sources` are the distinct kernels. `refused` are the layers that nothing here can run, with the reason.
    """

    facts: DeviceFacts
    kinds: tuple[LayerKind, ...]
    sources: tuple[KernelSource, ...]
    refused: tuple[tuple[str, str], ...]


def kernels_ahead(checkpoint: Checkpoint, facts: DeviceFacts, dtype: torch.dtype, max_m: int) -> KernelsAhead:
    """Every kernel for 1 to max_m tokens that the linear layers need with activations of that dtype."""
    counted: dict[tuple[str, int, int, bool], list[str]] = {}
    refused: list[tuple[str, str]] = []
    for entry in linear_layers(checkpoint):
        if entry.weight is None or not has_reader(entry):
            refused.append((entry.name, f"no reader for {entry.method}"))
            continue
        key = (format_weight(entry.weight), entry.n, entry.k, bias_place(checkpoint, entry) is not None)
        counted.setdefault(key, []).append(entry.name)
    kinds: list[LayerKind] = []
    sources: dict[str, KernelSource] = {}
    for (text, n, k, bias), names in counted.items():
        try:
            layer, compute = dense_configs(text, n, k, dtype, dtype, bias)
            found = [entry.source for entry in range_sources(layer, compute, facts, max_m)]
        except UnsupportedError as error:
            refused.extend((name, str(error)) for name in names)
            continue
        sources.update((source.unit_text, source) for source in found)
        symbols = tuple(dict.fromkeys(source.symbol for source in found))
        kinds.append(LayerKind(text=text, n=n, k=k, bias=bias, layers=len(names), symbols=symbols))
    return KernelsAhead(facts=facts, kinds=tuple(kinds), sources=tuple(sources.values()), refused=tuple(refused))


def together(several: Iterable[KernelsAhead]) -> Sequence[KernelSource]:
    """The distinct kernels of several targets or dtypes."""
    found = {(source.target, source.unit_text): source for ahead in several for source in ahead.sources}
    return tuple(found.values())
