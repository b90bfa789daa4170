"""GGUF blocks whose codes or scales lie in pieces: Q5_0, Q5_1, the K-quants, IQ4_NL, IQ4_XS and MXFP4, as data.
Called by the GGUF reader, the exact decode and whoever turns stored tensors into codes.
Assumes little-endian blocks, one after the other along each row, as the tables of GGML lay them out.

A K-quant has a scale of its own for each 16 or 32 weights, as an integer that a f16 for the whole block multiplies. The
description has their product, which f32 holds exactly (11 bits times at most 8), as the one scale of the group:

    scale[g] = d * (factor[g] - bias)      minimum[g] = sign * m * factor[g]      value = code * scale + minimum
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..text import parse_weight
from ..weight import WeightFormat


@attrs.frozen(kw_only=True)
class Piece:
    """`width` bits of a byte of the block, from bit `shift` on: the bits of a value from bit `at` on."""

    byte: int
    shift: int = 0
    width: int
    at: int = 0


Pieces = tuple[Piece, ...]


@attrs.frozen(kw_only=True)
class GgufPieces:
    """One GGUF block of `elements` weights in `nbytes` bytes, `group` of them to a scale.

    `codes[i]`: pieces of the code of element i. `scale` and `minimum` (None without) are byte offsets of the f16 for
    the whole block; `scale_bits` is 16, or 8 for an e8m0. `scale_factors[g]` are the pieces of group g's integer, xor
    `factor_flip`, less `factor_bias`; empty where the f16 is the scale. `minimum_factors` likewise, without flip and
    bias, and `minimum_sign` is -1 where the minimum is subtracted.
    """

    name: str
    elements: int
    nbytes: int
    group: int
    codes: tuple[Pieces, ...]
    scale: int
    scale_bits: int = 16
    scale_factors: tuple[Pieces, ...] = ()
    factor_flip: int = 0
    factor_bias: int = 0
    minimum: int | None = None
    minimum_factors: tuple[Pieces, ...] = ()
    minimum_sign: int = 1


def read_pieces(stored: bytes, pieces: Pieces) -> int:
    """The value that lies in pieces of a block."""
    return sum(((stored[piece.byte] >> piece.shift) & ((1 << piece.width) - 1)) << piece.at for piece in pieces)


def _nibbles(offset: int, half: int, elements: int = 32) -> list[Pieces]:
    """Runs of `half` bytes: their low halves first, then their high halves."""
    return [
        (Piece(byte=offset + i // (2 * half) * half + i % half, shift=4 * (i // half % 2), width=4),)
        for i in range(elements)
    ]


def _crumbs(offset: int) -> list[Pieces]:
    """256 elements of 2 bits in two runs of 32 bytes: the lowest bits of all bytes of a run first."""
    return [(Piece(byte=offset + i // 128 * 32 + i % 32, shift=2 * (i // 32 % 4), width=2),) for i in range(256)]


def _bits(offset: int, at: int) -> list[Pieces]:
    """256 elements of one bit in 32 bytes: bit 0 of all bytes first."""
    return [(Piece(byte=offset + i % 32, shift=i // 32, width=1, at=at),) for i in range(256)]


def _fifth(offset: int) -> list[Pieces]:
    """32 elements of one bit, in order."""
    return [(Piece(byte=offset + i // 8, shift=i % 8, width=1, at=4),) for i in range(32)]


def _both(low: Sequence[Pieces], high: Sequence[Pieces]) -> tuple[Pieces, ...]:
    return tuple(first + second for first, second in zip(low, high, strict=True))


def _six_bits(offset: int, minimum: bool) -> tuple[Pieces, ...]:
    """Scales or minimums of Q4_K and Q5_K: four in the low six bits of a byte, four in halves and leftover bits."""
    own, shift = (offset + 4, 4) if minimum else (offset, 0)
    first: list[Pieces] = [(Piece(byte=own + j, width=6),) for j in range(4)]
    last: list[Pieces] = [
        (Piece(byte=offset + 8 + j, shift=shift, width=4), Piece(byte=own + j, shift=6, width=2, at=4))
        for j in range(4)
    ]
    return tuple(first + last)


def _q3_scales(offset: int) -> tuple[Pieces, ...]:
    return tuple(
        (
            Piece(byte=offset + g % 8, shift=4 * (g // 8), width=4),
            Piece(byte=offset + 8 + g % 4, shift=2 * (g // 4), width=2, at=4),
        )
        for g in range(16)
    )


def _q6_codes() -> tuple[Pieces, ...]:
    high = [(Piece(byte=128 + i // 128 * 32 + i % 32, shift=2 * (i // 32 % 4), width=2, at=4),) for i in range(256)]
    return _both(_nibbles(0, 64, 256), high)


def _iq4_xs_scales() -> tuple[Pieces, ...]:
    return tuple(
        (
            Piece(byte=4 + g // 2, shift=4 * (g % 2), width=4),
            Piece(byte=2 + g // 4, shift=2 * (g % 4), width=2, at=4),
        )
        for g in range(8)
    )


def _whole(offset: int, groups: int, shift: int = 0, width: int = 8) -> tuple[Pieces, ...]:
    return tuple((Piece(byte=offset + g, shift=shift, width=width),) for g in range(groups))


PIECES: dict[str, tuple[GgufPieces, WeightFormat]] = {
    block.name: (block, parse_weight(text))
    for block, text in (
        (
            GgufPieces(name="Q5_0", elements=32, nbytes=22, group=32, scale=0, codes=_both(_nibbles(6, 16), _fifth(2))),
            "u5g32",
        ),
        (
            GgufPieces(
                name="Q5_1",
                elements=32,
                nbytes=24,
                group=32,
                scale=0,
                minimum=2,
                codes=_both(_nibbles(8, 16), _fifth(4)),
            ),
            "u5g32m",
        ),
        (
            GgufPieces(
                name="Q2_K",
                elements=256,
                nbytes=84,
                group=16,
                codes=tuple(_crumbs(16)),
                scale=80,
                scale_factors=_whole(0, 16, 0, 4),
                minimum=82,
                minimum_factors=_whole(0, 16, 4, 4),
                minimum_sign=-1,
            ),
            "u2g16m:f32",
        ),
        (
            GgufPieces(
                name="Q3_K",
                elements=256,
                nbytes=110,
                group=16,
                codes=_both(_crumbs(32), _bits(0, at=2)),
                scale=108,
                scale_factors=_q3_scales(96),
                factor_bias=32,
            ),
            "u3g16:f32",
        ),
        (
            GgufPieces(
                name="Q4_K",
                elements=256,
                nbytes=144,
                group=32,
                codes=tuple(_nibbles(16, 32, 256)),
                scale=0,
                scale_factors=_six_bits(4, minimum=False),
                minimum=2,
                minimum_factors=_six_bits(4, minimum=True),
                minimum_sign=-1,
            ),
            "u4g32m:f32",
        ),
        (
            GgufPieces(
                name="Q5_K",
                elements=256,
                nbytes=176,
                group=32,
                codes=_both(_nibbles(48, 32, 256), _bits(16, at=4)),
                scale=0,
                scale_factors=_six_bits(4, minimum=False),
                minimum=2,
                minimum_factors=_six_bits(4, minimum=True),
                minimum_sign=-1,
            ),
            "u5g32m:f32",
        ),
        (
            GgufPieces(
                name="Q6_K",
                elements=256,
                nbytes=210,
                group=16,
                codes=_q6_codes(),
                scale=208,
                scale_factors=_whole(192, 16),
                factor_flip=0x80,
                factor_bias=128,
            ),
            "u6g16:f32",
        ),
        (
            GgufPieces(name="IQ4_NL", elements=32, nbytes=18, group=32, scale=0, codes=tuple(_nibbles(2, 16))),
            "iq4nlg32",
        ),
        (
            GgufPieces(
                name="IQ4_XS",
                elements=256,
                nbytes=136,
                group=32,
                codes=tuple(_nibbles(8, 16, 256)),
                scale=0,
                scale_factors=_iq4_xs_scales(),
                factor_bias=32,
            ),
            "iq4nlg32:f32",
        ),
        (
            GgufPieces(
                name="MXFP4", elements=32, nbytes=17, group=32, scale=0, scale_bits=8, codes=tuple(_nibbles(1, 16))
            ),
            "e2m1g32:e8m0",
        ),
    )
}
"""Described block types: GGML name -> (where things are in a block, what they mean)."""
