"""How the tensors of most exporters hold codes, scales and zero points: one description, filled in by each reader.
Called by the readers, which attach one to each layer, and by whoever turns stored tensors into codes.
Assumes little-endian words, row-major tensors and the tensor roles of LayerEntry.

A layer [N, K] with G_n x G_k scale groups has, by role:

    codes        fields as `codes` says                         -> code[n, k]
    scale        float [G_n, G_k], or [G_k, G_n] if transposed  -> scale[g_n, g_k]; any shape of that many elements
    zero_point   fields as `zero_point` says, or floats stored like the scales  -> zero[g_n, g_k]
    outer_scale  float, as many as the outer scale has groups
    group_index  int32 [K]  scale group of each column; may be absent, then column // group size

Fields in words, examples (4 bits; w is a word, the lowest bits on the right):

    neighbours, in order     int32 w = code 7 6 5 4 3 2 1 0          compressed-tensors, along K
    neighbours, reordered    int32 w = code 7 5 3 1 6 4 2 0          AWQ, along N: order (0, 4, 1, 5, 2, 6, 3, 7)
    neighbours, high first   uint8 w = code 0 1                      bitsandbytes: order (1, 0)
    strided                  uint8 w[i] = code i + 3W, i + 2W, i + W, i of 2 bits, W words   BitNet, along N
"""

from __future__ import annotations

import enum

import attrs


@attrs.frozen(kw_only=True)
class FieldLayout:
    """Fields of `bits` bits in words of `word_bits` bits, for a matrix [rows, columns].

    The words form a stored matrix. Its sides are those of the matrix, exchanged if `transposed`, but that `axis` counts
    words, not fields. `columns`: the matrix, read row by row, is laid out anew with that many columns first.
    Along `axis` a word holds `word_bits // bits` neighbours, or, if `strided`, fields that lie as far apart as there
    are words. Member i of a word lies in field `order[i]`, or in field i without an order. `dense`: the fields are one
    bit stream, which may straddle words (with neighbours in order only).
    The code is `(field + offset) mod 2**bits`, and must be a code of the layer's number.
    """

    bits: int
    word_bits: int
    axis: int = 1
    transposed: bool = False
    strided: bool = False
    dense: bool = False
    order: tuple[int, ...] = ()
    offset: int = 0
    columns: int | None = None

    def sides(self, rows: int, columns: int) -> tuple[int, int]:
        """Sides, in fields, of the stored matrix of a matrix [rows, columns]."""
        if self.columns is not None:
            return rows * columns // self.columns, self.columns
        return (columns, rows) if self.transposed else (rows, columns)

    def stored_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Sides, in words, of the stored matrix."""
        first, second = self.sides(rows, columns)
        return (self._words(first), second) if self.axis == 0 else (first, self._words(second))

    def _words(self, fields: int) -> int:
        if self.dense:
            return -(-fields * self.bits // self.word_bits)
        return -(-fields // (self.word_bits // self.bits))

    def place(self, rows: int, columns: int, row: int, column: int) -> tuple[int, int]:
        """Word, counted through the stored matrix row by row, and shift of the field of an element."""
        first, second = (column, row) if self.transposed else (row, column)
        if self.columns is not None:
            first, second = divmod(row * columns + column, self.columns)
        words_0, words_1 = self.stored_shape(rows, columns)
        along, across = (first, second) if self.axis == 0 else (second, first)
        if self.dense:
            word, shift = divmod(along * self.bits, self.word_bits)
        else:
            if self.strided:
                member, word = divmod(along, words_0 if self.axis == 0 else words_1)
            else:
                word, member = divmod(along, self.word_bits // self.bits)
            shift = self.bits * (self.order[member] if self.order else member)
        return (word * words_1 + across if self.axis == 0 else across * words_1 + word), shift

    def step(self, rows: int, columns: int) -> int:
        """Words from one word to the next one along `axis`."""
        return self.stored_shape(rows, columns)[1] if self.axis == 0 else 1


class StoredScale(enum.Enum):
    """What a stored scale is."""

    MULTIPLIER = "multiplier"  # the scale itself
    DIVISOR = "divisor"  # one over the scale: scale = 1 / stored, rounded to f32 once


@attrs.frozen(kw_only=True)
class NestedScale:
    """Scales that are themselves quantized in blocks of `block`, with codes in role "scale".

    scale[i] = f32(f32(map[code[i]] * outer[i // block]) + offset), with map and outer f32 in the roles "scale_map" and
    "scale_scale"; `offset` is an f32 from the checkpoint. Each of the two operations rounds to f32.
    """

    block: int
    offset: float


@attrs.frozen(kw_only=True)
class MatrixLayout:
    """Tensors of one layer. `zero_point` is None where no integer zero points are stored.

    `activation_outer_scale` says what the role "activation_outer_scale" holds, where the input has one.
    """

    codes: FieldLayout
    zero_point: FieldLayout | None = None
    scale_transposed: bool = False
    scale: StoredScale = StoredScale.MULTIPLIER
    outer_scale: StoredScale = StoredScale.MULTIPLIER
    activation_outer_scale: StoredScale = StoredScale.MULTIPLIER
    nested: NestedScale | None = None
