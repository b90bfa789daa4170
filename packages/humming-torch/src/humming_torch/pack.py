"""Canonical weight to packed weight and back: padding, the order of codes in bricks, the order of scales in lanes.

Called by `Linear`, the command line and tests; runs the same torch code on the CPU and on a GPU.
Assumes `humming_kernels.packed_layout` states the order; beyond its output it needs one chunk of strips (settings.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from humming_format.text import format_weight
from humming_format.zero_point import ZeroPointKind
from humming_kernels.packed_layout import Field, PackedLayout, scale_row_order

from humming_torch import settings
from humming_torch.convert.canonical import TORCH_DTYPES, CanonicalWeight
from humming_torch.errors import WeightError
from humming_torch.packed_weight import STRIP, PackedWeight, channel_scale_in_row_order, packed_shapes


class _FieldTables:
    """The layout's fields as index tensors: entry [f][w] is about the f-th field of word w of a brick."""

    def __init__(self, bits: int, device: torch.device) -> None:
        words = PackedLayout(bits).fields()
        width = len(words[0])

        def table(part: Callable[[Field], int], dtype: torch.dtype) -> torch.Tensor:
            rows = [[part(fields[f]) for fields in words] for f in range(width)]
            return torch.tensor(rows, dtype=dtype, device=device)

        # `place`: position of the code among the 64 x 64 of its brick.
        self.place = table(lambda field: field.row * STRIP + field.k, torch.int64)
        self.shift = table(lambda field: field.shift, torch.int32).unsqueeze(2)
        self.code_shift = table(lambda field: field.code_shift, torch.int32).unsqueeze(2)
        self.mask = table(lambda field: (1 << field.width) - 1, torch.int32).unsqueeze(2)


@functools.lru_cache(maxsize=16)
def _tables(bits: int, device: torch.device) -> _FieldTables:
    return _FieldTables(bits, device)


@functools.lru_cache(maxsize=16)
def _lane_rows(device: torch.device) -> torch.Tensor:
    """Row of a strip that each of the 64 positions of a scale strip belongs to."""
    return torch.tensor(scale_row_order(), dtype=torch.int64, device=device)


def pack(weight: CanonicalWeight) -> PackedWeight:
    """Pack a canonical weight, on the device it is on.

    Rows are padded to 64 and columns to 64 with the code that means zero (where the format fixes one), scale 0 and
    zero point 0. Peak extra memory: one chunk of strips, HUMMING_TORCH_PACK_CHUNK_MIB (64 MiB unless set), or one
    strip of 64 rows where that is more.
    """
    n, k, weight_format = weight.n, weight.k, weight.format
    shapes = packed_shapes(weight_format, n, k)
    device = weight.codes.device
    bits = weight_format.number.bits
    scale = (
        _rows(weight.scale.to(torch.float32), n)
        if channel_scale_in_row_order(weight_format)
        else _lanes(weight.scale, n)
    )
    zero = weight.zero_point if weight.zero_point is not None else weight.minimum
    (strips, bricks, words), _ = shapes["weight"] or ((0, 0, 0), torch.int32)
    packed = torch.empty((strips, bricks, words), dtype=torch.int32, device=device)
    padding = weight_format.zero_point.value or 0
    for first, last in _chunks(strips, bricks, words):
        codes = _bricks(weight.codes[first * STRIP : last * STRIP], last - first, bricks, padding)
        packed[first:last] = _pack_bricks(codes, bits).reshape(last - first, bricks, words)
    return PackedWeight(
        format=weight_format,
        n=n,
        k=k,
        weight=packed,
        weight_scale=scale,
        zero_point=None if zero is None else _lanes(zero, n),
        bias=None if weight.bias is None else weight.bias.contiguous(),
        column_order=None if weight.column_order is None else weight.column_order.contiguous(),
    )


def unpack(packed: PackedWeight) -> CanonicalWeight:
    """The canonical weight that was packed, bit for bit, without any padding."""
    n, k, weight_format = packed.n, packed.k, packed.format
    if weight_format.scale is None:
        raise WeightError(f"a packed weight without scales: {format_weight(weight_format)}")
    bits = weight_format.number.bits
    strips, bricks, words = packed.weight.shape
    codes = torch.empty((n, k), dtype=torch.uint8, device=packed.device)
    for first, last in _chunks(strips, bricks, words):
        chunk = _unpack_bricks(packed.weight[first:last].reshape(-1, words), bits)
        rows = chunk.reshape(STRIP, STRIP, last - first, bricks).permute(2, 0, 3, 1).reshape(-1, bricks * STRIP)
        end = min(n, last * STRIP)
        codes[first * STRIP : end] = rows[: end - first * STRIP, :k]
    dtype = TORCH_DTYPES[weight_format.scale.number.name]
    scale = (
        packed.weight_scale[:n, None].to(dtype)
        if channel_scale_in_row_order(weight_format)
        else _from_lanes(packed.weight_scale, n)
    )
    zero = None if packed.zero_point is None else _from_lanes(packed.zero_point, n)
    integer = weight_format.zero_point.kind is ZeroPointKind.INTEGER
    return CanonicalWeight(
        format=weight_format,
        codes=codes,
        scale=scale,
        zero_point=zero if integer else None,
        minimum=None if integer else zero,
        bias=packed.bias,
        column_order=packed.column_order,
    )


def _chunks(strips: int, bricks: int, words: int) -> list[tuple[int, int]]:
    """Ranges of strips whose temporaries fit the chunk: padded codes, their brick order, words and two helpers."""
    strip_bytes = bricks * (3 * STRIP * STRIP + 4 * 4 * words)
    step = max(1, settings.current().pack_chunk_bytes // strip_bytes)
    return [(first, min(strips, first + step)) for first in range(0, strips, step)]


def _bricks(codes: torch.Tensor, strips: int, bricks: int, padding: int) -> torch.Tensor:
    """Rows of codes to [64 * 64, strips * bricks], padded: the places of a brick first, so that gathers move rows."""
    rows, k = codes.shape
    full = torch.full((strips * STRIP, bricks * STRIP), padding, dtype=torch.uint8, device=codes.device)
    full[:rows, :k] = codes
    return full.reshape(strips, STRIP, bricks, STRIP).permute(1, 3, 0, 2).reshape(STRIP * STRIP, strips * bricks)


def _pack_bricks(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """[64 * 64, bricks] codes to [bricks, words]: one gather, mask and shift per field of a word."""
    tables = _tables(bits, codes.device)
    words = torch.zeros((tables.place.shape[1], codes.shape[1]), dtype=torch.int32, device=codes.device)
    for place, shift, code_shift, mask in zip(tables.place, tables.shift, tables.code_shift, tables.mask, strict=True):
        field = codes.index_select(0, place).to(torch.int32)
        words |= field.bitwise_right_shift_(code_shift).bitwise_and_(mask).bitwise_left_shift_(shift)
    return words.t()


def _unpack_bricks(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[bricks, words] to [64 * 64, bricks] codes."""
    tables = _tables(bits, words.device)
    words = words.t().contiguous()
    codes = torch.zeros((STRIP * STRIP, words.shape[1]), dtype=torch.uint8, device=words.device)
    for place, shift, code_shift, mask in zip(tables.place, tables.shift, tables.code_shift, tables.mask, strict=True):
        # The shift of a negative word drags its sign in from the left; the mask drops it.
        field = words.bitwise_right_shift(shift).bitwise_and_(mask).bitwise_left_shift_(code_shift)
        codes[place] |= field.to(torch.uint8)
    return codes


def _rows(scale: torch.Tensor, n: int) -> torch.Tensor:
    """[n, 1] to [64 * strips], zero in padding rows."""
    full = torch.zeros(-(-n // STRIP) * STRIP, dtype=scale.dtype, device=scale.device)
    full[:n] = scale[:, 0]
    return full


def _lanes(values: torch.Tensor, n: int) -> torch.Tensor:
    """[n, groups] to [strips, groups, 64] with the rows of a strip in lane order, zero in padding rows."""
    groups = values.shape[1]
    strips = -(-n // STRIP)
    full = torch.zeros((strips * STRIP, groups), dtype=values.dtype, device=values.device)
    full[:n] = values
    ordered = full.reshape(strips, STRIP, groups).index_select(1, _lane_rows(values.device))
    return ordered.transpose(1, 2).contiguous()


def _from_lanes(values: torch.Tensor, n: int) -> torch.Tensor:
    """[strips, groups, 64] back to [n, groups]."""
    inverse = torch.argsort(_lane_rows(values.device))
    rows = values.index_select(2, inverse).transpose(1, 2).reshape(-1, values.shape[1])
    return rows[:n].contiguous()
