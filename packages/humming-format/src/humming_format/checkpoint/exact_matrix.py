"""Exact decode of layers with a MatrixLayout, on Python fractions.
Called by exact.py.
Assumes layers as the readers describe them; one expert of a stack at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable

from ..errors import CheckpointError, shown
from ..number import Number, number
from ..reference import Exact, add, decode_weight, group_of, multiply, round_to_f32
from ..scale import ScaleFormat
from ..weight import WeightFormat
from ..zero_point import ZeroPointKind
from .entry import LayerEntry
from .matrix_layout import FieldLayout, MatrixLayout, StoredScale


def matrix_rows(layer: LayerEntry, layout: MatrixLayout, rows: list[int]) -> list[list[Exact]]:
    """Exact values of some rows. Raises CheckpointError for codes that the layer's number does not have."""
    weight = layer.weight
    if weight is None or weight.scale is None:
        raise CheckpointError(f"layer {layer.name} has no format")
    groups = weight.scale.groups_n(layer.n), weight.scale.groups_k(layer.k)
    code_at = _fields(layer, "codes", layout.codes, (layer.n, layer.k), weight.number.bits)
    scale_at = _scales(layer, layout, weight.scale)
    outer_at = _outer_scales(layer, layout, weight)
    zero_at = _zero_points(layer, layout, weight, groups)
    column_groups = None
    if "group_index" in layer.tensors:
        data = layer.tensors["group_index"].read()
        column_groups = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
    result = []
    for row in rows:
        values: list[Exact] = []
        for column in range(layer.k):
            group_n, group_k = group_of(weight.scale, row, column)
            if column_groups is not None:
                group_k = column_groups[column]
            values.append(
                decode_weight(
                    weight,
                    code_at(row, column),
                    scale_at(group_n, group_k),
                    zero_at(group_n, group_k) if zero_at else None,
                    outer_at(row, column) if outer_at else None,
                )
            )
        result.append(values)
    return result


def _fields(
    layer: LayerEntry, role: str, fields: FieldLayout, shape: tuple[int, int], bits: int
) -> Callable[[int, int], int]:
    place = layer.tensors[role]
    data = place.read()
    width = fields.word_bits // 8
    step = fields.step(*shape)

    def word_at(word: int) -> int:
        return int.from_bytes(data[word * width : (word + 1) * width], "little")

    def at(row: int, column: int) -> int:
        word, shift = fields.place(*shape, row, column)
        value = word_at(word) >> shift
        if shift + fields.bits > fields.word_bits:
            value |= word_at(word + step) << (fields.word_bits - shift)
        code = (value + fields.offset) & ((1 << fields.bits) - 1)
        if code >> bits:
            raise CheckpointError(
                f"tensor {shown(place.tensor)} holds a value that does not fit",
                got=f"{code - fields.offset} at row {row}, column {column}",
                wanted=f"{-fields.offset} to {(1 << bits) - 1 - fields.offset}",
            )
        return code

    return at


def _scales(layer: LayerEntry, layout: MatrixLayout, scale: ScaleFormat) -> Callable[[int, int], Exact]:
    groups_n, groups_k = scale.groups_n(layer.n), scale.groups_k(layer.k)
    data = layer.tensors["scale"].read()
    scale_map, outer = (layer.tensors[role].read() if layout.nested else b"" for role in ("scale_map", "scale_scale"))

    def at(group_n: int, group_k: int) -> Exact:
        index = group_k * groups_n + group_n if layout.scale_transposed else group_n * groups_k + group_k
        if layout.nested is not None:
            mapped = _value_at(number("f32"), scale_map, data[index])
            block = _value_at(number("f32"), outer, index // layout.nested.block)
            offset = number("f32").decode(_f32_code(layout.nested.offset))
            return round_to_f32(add(round_to_f32(multiply(mapped, block)), offset))
        return _multiplier(_value_at(scale.number, data, index), layout.scale)

    return at


def _outer_scales(layer: LayerEntry, layout: MatrixLayout, weight: WeightFormat) -> Callable[[int, int], Exact] | None:
    outer = weight.outer_scale
    if outer is None:
        return None
    groups_k = outer.groups_k(layer.k)
    data = layer.tensors["outer_scale"].read()

    def at(row: int, column: int) -> Exact:
        group_n, group_k = group_of(outer, row, column)
        return _multiplier(_value_at(outer.number, data, group_n * groups_k + group_k), layout.outer_scale)

    return at


def _zero_points(
    layer: LayerEntry, layout: MatrixLayout, weight: WeightFormat, groups: tuple[int, int]
) -> Callable[[int, int], int | Exact] | None:
    kind, stored = weight.zero_point.kind, weight.zero_point.number
    if kind is ZeroPointKind.INTEGER and layout.zero_point is not None:
        return _fields(layer, "zero_point", layout.zero_point, groups, weight.number.bits)
    if stored is None:
        return None
    data = layer.tensors["zero_point"].read()

    def at(group_n: int, group_k: int) -> Exact:
        index = group_k * groups[0] + group_n if layout.scale_transposed else group_n * groups[1] + group_k
        return _value_at(stored, data, index)

    return at


def _multiplier(stored: Exact, rule: StoredScale) -> Exact:
    if rule is StoredScale.MULTIPLIER:
        return stored
    if stored == 0:
        raise CheckpointError("a scale that is stored as a divisor is zero", wanted="any other value")
    return round_to_f32(1 / stored)


def _value_at(stored: Number, data: bytes, index: int) -> Exact:
    width = stored.bits // 8
    return stored.decode(int.from_bytes(data[index * width : (index + 1) * width], "little"))


def _f32_code(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")
