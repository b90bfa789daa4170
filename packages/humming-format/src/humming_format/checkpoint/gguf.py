"""GGUF files: which tensors are weight matrices, and what the blocks of Q4_0, Q4_1 and Q8_0 mean, as data.
Called by read_checkpoint for files that begin with "GGUF".
Assumes the blocks that layout.py and gguf_pieces.py describe; other types are listed with their size alone."""

from __future__ import annotations

from pathlib import Path

import attrs

from ..text import parse_weight
from ..weight import WeightFormat
from .entry import Checkpoint, LayerEntry, TensorPlace
from .gguf_container import GgufTensor, read_container
from .gguf_pieces import PIECES
from .layout import GgufBlock

# Q8_0 stores two's complement bytes; flipping the top bit gives offset binary, exactly: u8 with zero point 128.
BLOCKS: dict[str, tuple[GgufBlock, WeightFormat]] = {
    "Q4_0": (
        GgufBlock(
            name="Q4_0", elements=32, nbytes=18, scale_offset=0, minimum_offset=None, codes_offset=2, code_bits=4
        ),
        parse_weight("u4g32"),
    ),
    "Q4_1": (
        GgufBlock(name="Q4_1", elements=32, nbytes=20, scale_offset=0, minimum_offset=2, codes_offset=4, code_bits=4),
        parse_weight("u4g32m"),
    ),
    "Q8_0": (
        GgufBlock(
            name="Q8_0",
            elements=32,
            nbytes=34,
            scale_offset=0,
            minimum_offset=None,
            codes_offset=2,
            code_bits=8,
            code_flip=0x80,
        ),
        parse_weight("u8g32"),
    ),
}
"""Block types of one or two whole values and plain codes: GGML name -> (where things are, what they mean)."""

_PLAIN_DTYPES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
}


def read_gguf(path: Path) -> Checkpoint:
    """Describe a GGUF file: matrices become layers [N, K], everything else is listed in `others`."""
    container = read_container(path)
    layers: list[LayerEntry] = []
    others: list[TensorPlace] = []
    notes: list[str] = []
    for tensor in container.tensors:
        place = _place(path, tensor)
        if len(tensor.shape) == 2 and 0 not in tensor.shape:
            layers.append(_layer(tensor, place))
        else:
            others.append(place)
    stacked = sum(1 for tensor in container.tensors if len(tensor.shape) > 2)
    if stacked:
        notes.append(f"{stacked} tensors of more than two sides (experts) are counted but not described")
    undescribed = sorted({entry.method for entry in layers if entry.weight is None and entry.layout is None} - _plain())
    if undescribed:
        notes.append(f"not described: {', '.join(undescribed)}")
    kinds = {entry.method for entry in layers if entry.weight is not None}
    return Checkpoint(
        path=path,
        container="gguf",
        method=", ".join(sorted(kinds)) or None,
        files=(path,),
        layers=tuple(layers),
        others=tuple(others),
        notes=tuple(notes),
    )


def _plain() -> set[str]:
    return set(_PLAIN_DTYPES.values())


def _place(path: Path, tensor: GgufTensor) -> TensorPlace:
    plain = _PLAIN_DTYPES.get(tensor.type_name)
    row_bytes = tensor.shape[-1] // tensor.block_elements * tensor.block_bytes
    return TensorPlace(
        file=path,
        tensor=tensor.name,
        dtype=plain or "uint8",
        shape=tensor.shape if plain else (*tensor.shape[:-1], row_bytes),
        offset=tensor.offset,
        nbytes=tensor.nbytes,
    )


def _layer(tensor: GgufTensor, place: TensorPlace) -> LayerEntry:
    n, k = tensor.shape
    plain = _PLAIN_DTYPES.get(tensor.type_name)
    if plain is not None:
        return LayerEntry(name=tensor.name, n=n, k=k, method=plain, tensors={"weight": place})
    layer = LayerEntry(name=tensor.name, n=n, k=k, method=f"gguf:{tensor.type_name}", tensors={"blocks": place})
    if tensor.type_name in BLOCKS:
        block, weight = BLOCKS[tensor.type_name]
        return attrs.evolve(layer, weight=weight, layout=block)
    if tensor.type_name in PIECES:
        pieces, weight = PIECES[tensor.type_name]
        return attrs.evolve(layer, weight=weight, layout=pieces)
    return layer
