"""Exact decode of stored layers on Python fractions: slow, and the truth for whoever converts checkpoints fast.
Called by tests, and by people who want to see a few weights without installing anything.
Assumes layers as read_checkpoint describes them; columns come back in the order of the model, act-order or not."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from ..errors import CheckpointError
from ..number import Number, number
from ..packing import unpack
from ..reference import Exact, decode_weight, multiply
from ..zero_point import ZeroPointKind
from .entry import LayerEntry
from .exact_matrix import matrix_rows
from .gguf_pieces import GgufPieces, read_pieces
from .layout import GgufBlock, GptqLayout
from .matrix_layout import MatrixLayout


def decode_rows(layer: LayerEntry, rows: Iterable[int]) -> list[list[Exact]]:
    """Exact values of some rows (output channels) of a described layer. Raises CheckpointError for other layers."""
    wanted = list(rows)
    for row in wanted:
        if not 0 <= row < layer.n:
            raise CheckpointError(f"layer {layer.name} has no row {row}", wanted=f"0 to {layer.n - 1}")
    if layer.experts is not None:
        raise CheckpointError(
            f"layer {layer.name} is a stack of {layer.experts} experts", remedy="decode layer.expert(0) and so on"
        )
    if isinstance(layer.layout, MatrixLayout):
        return matrix_rows(layer, layer.layout, wanted)
    if isinstance(layer.layout, GptqLayout):
        return _gptq_rows(layer, layer.layout, wanted)
    if isinstance(layer.layout, GgufBlock):
        return _gguf_rows(layer, layer.layout, wanted)
    if isinstance(layer.layout, GgufPieces):
        return _pieces_rows(layer, layer.layout, wanted)
    raise CheckpointError(
        f"layer {layer.name} has no described quantization", got=layer.method, wanted="a layer whose weight is not None"
    )


def group_of_column(layer: LayerEntry) -> list[int]:
    """Scale group of each column of a GPTQ layer, from its g_idx or, without one, column // group size."""
    if "group_index" in layer.tensors:
        return _ints(layer.tensors["group_index"].read())
    scale = layer.weight.scale if layer.weight else None
    size = scale.group_k if scale and scale.group_k else layer.k
    return [column // size for column in range(layer.k)]


def _gptq_rows(layer: LayerEntry, layout: GptqLayout, rows: list[int]) -> list[list[Exact]]:
    weight = layer.weight
    if weight is None or weight.scale is None:
        raise CheckpointError(f"layer {layer.name} has no format")
    words = _ints(layer.tensors["codes"].read())
    scale_bytes = layer.tensors["scale"].read()
    groups = weight.scale.groups_k(layer.k)
    column_groups = group_of_column(layer)
    zeros: list[list[int]] = []
    if weight.zero_point.kind is ZeroPointKind.INTEGER:
        zero_words = _ints(layer.tensors["zero_point"].read())
        width = layer.tensors["zero_point"].shape[1]
        for group in range(groups):
            stored = unpack(zero_words[group * width : (group + 1) * width], layout.bits, layer.n)
            zeros.append([layout.zero_of(field) for field in stored])
    result = []
    for row in rows:
        codes = unpack(words[row :: layer.n], layout.bits, layer.k)
        scales = [_float_at(weight.scale.number, scale_bytes, group * layer.n + row) for group in range(groups)]
        result.append(
            [
                decode_weight(weight, code, scales[group], zeros[group][row] if zeros else None)
                for code, group in zip(codes, column_groups, strict=True)
            ]
        )
    return result


def _gguf_rows(layer: LayerEntry, block: GgufBlock, rows: list[int]) -> list[list[Exact]]:
    weight = layer.weight
    if weight is None:
        raise CheckpointError(f"layer {layer.name} has no format")
    data = layer.tensors["blocks"].read()
    half = number("f16")
    row_bytes = layer.k // block.elements * block.nbytes
    result = []
    for row in rows:
        values: list[Exact] = []
        for start in range(row * row_bytes, (row + 1) * row_bytes, block.nbytes):
            stored = data[start : start + block.nbytes]
            scale = half.decode(int.from_bytes(stored[block.scale_offset : block.scale_offset + 2], "little"))
            minimum = None
            if block.minimum_offset is not None:
                minimum = half.decode(int.from_bytes(stored[block.minimum_offset : block.minimum_offset + 2], "little"))
            for element in range(block.elements):
                byte, shift = block.code_place(element)
                code = ((stored[byte] >> shift) & ((1 << block.code_bits) - 1)) ^ block.code_flip
                values.append(decode_weight(weight, code, scale, minimum))
        result.append(values)
    return result


def _pieces_rows(layer: LayerEntry, block: GgufPieces, rows: list[int]) -> list[list[Exact]]:
    weight = layer.weight
    if weight is None:
        raise CheckpointError(f"layer {layer.name} has no format")
    data = layer.tensors["blocks"].read()
    half = number("f16")
    row_bytes = layer.k // block.elements * block.nbytes
    result = []
    for row in rows:
        values: list[Exact] = []
        for start in range(row * row_bytes, (row + 1) * row_bytes, block.nbytes):
            stored = data[start : start + block.nbytes]
            if block.scale_bits == 8:
                whole = number("e8m0").decode(stored[block.scale])
            else:
                whole = _float_at(half, stored[block.scale :], 0)
            lowest = Fraction(0) if block.minimum is None else _float_at(half, stored[block.minimum :], 0)
            for element, pieces in enumerate(block.codes):
                group = element // block.group
                scale, minimum = whole, multiply(Fraction(block.minimum_sign), lowest)
                if block.scale_factors:
                    factor = read_pieces(stored, block.scale_factors[group]) ^ block.factor_flip
                    scale = multiply(whole, Fraction(factor - block.factor_bias))
                if block.minimum_factors:
                    minimum = multiply(minimum, Fraction(read_pieces(stored, block.minimum_factors[group])))
                code = read_pieces(stored, pieces)
                values.append(decode_weight(weight, code, scale, None if block.minimum is None else minimum))
        result.append(values)
    return result


def _ints(data: bytes) -> list[int]:
    """Unsigned 32-bit little-endian words."""
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def _float_at(stored: Number, data: bytes, index: int) -> Exact:
    width = stored.bits // 8
    return stored.decode(int.from_bytes(data[index * width : (index + 1) * width], "little"))
