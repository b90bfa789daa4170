"""The order of stored codes and scales, in pure Python: what the packer writes and the kernels read.
Called by humming_torch.pack and by tests; the CUDA side is decode/code_words, copy/dense_stage and mma/mma_sync_tile.
Assumes 16-bit operands: a brick is 64 rows x 64 k, one atom of it the 16 rows of a warp's matrix multiply."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from .errors import KernelError

LAYOUT_VERSION = 1
"""Stored with every packed weight; a change of any order below needs a new number."""

BRICK_ROWS = 64
BRICK_K = 64
ATOM_ROWS = 16
STEP_K = 16
WORD_BITS = 32


@attrs.frozen(kw_only=True)
class Field:
    """A run of bits in a word: `width` bits of the code at (row, k) from bit `code_shift` on, stored at `shift`."""

    shift: int
    row: int
    k: int
    code_shift: int
    width: int


@attrs.frozen
class PackedLayout:
    """Order of the codes of one bit width.

    A lane of a warp owns, for each step of 16 k of an atom, the eight codes of its four operand registers
    (mma/mma_sync_tile): register r = 2 * (upper eight k) + (upper eight rows), its even k at bits `bits * r` of a half
    word and its odd k sixteen bits above. A lane's words of an atom come in 16-byte runs:

        4 bits   [atom][lane][step]                     8 bits   [atom][step / 2][lane][2 * (step % 2) + r / 2]
    """

    bits: int
    operand_bits: int = 16

    def __attrs_post_init__(self) -> None:
        if self.bits not in (4, 8) or self.operand_bits != 16:
            raise KernelError(
                f"no packed layout for codes of {self.bits} bits with {self.operand_bits}-bit operands; "
                "wanted 4 or 8 bits and 16-bit operands"
            )

    @property
    def words_per_brick(self) -> int:
        """32-bit words of a brick."""
        return BRICK_ROWS * BRICK_K * self.bits // WORD_BITS

    def place(self, row: int, k: int) -> tuple[int, int]:
        """(word, shift) of the code at row (0..63) and k (0..63) of a brick."""
        atom, row_of_atom = divmod(row, ATOM_ROWS)
        half_row, g = divmod(row_of_atom, 8)
        step, k_of_step = divmod(k, STEP_K)
        half_k, k_of_half = divmod(k_of_step, 8)
        t, odd = divmod(k_of_half, 2)
        lane = 4 * g + t
        register = half_row + 2 * half_k
        if self.bits == 4:
            return (atom * 32 + lane) * 4 + step, 4 * register + 16 * odd
        return ((atom * 2 + step // 2) * 32 + lane) * 4 + 2 * (step % 2) + register // 2, 8 * (register % 2) + 16 * odd

    def fields(self) -> list[list[Field]]:
        """For every word of a brick, its bit fields from the lowest up."""
        words: list[list[Field]] = [[] for _ in range(self.words_per_brick)]
        for row in range(BRICK_ROWS):
            for k in range(BRICK_K):
                word, shift = self.place(row, k)
                words[word].append(Field(shift=shift, row=row, k=k, code_shift=0, width=self.bits))
        return [sorted(fields, key=lambda field: field.shift) for fields in words]


def scale_row_order() -> tuple[int, ...]:
    """Row (0..63) of a strip whose scale or zero point stands at each position of its 64-value line.

    A lane needs the rows g and g + 8 of each atom, so they stand together: position 8 g + 2 atom + half.
    """
    return tuple(_scale_rows())


def _scale_rows() -> Iterator[int]:
    for g in range(8):
        for atom in range(4):
            for half in range(2):
                yield atom * ATOM_ROWS + half * 8 + g
