"""How GPTQ tensors and GGUF blocks hold codes, scales and zero points, as data.
Called by the readers, which attach one to each layer, and by whoever turns stored tensors into codes.
Assumes little-endian words and the tensor roles of LayerEntry.

GPTQ, layer [N, K], b bits, G groups:

    codes        int32 [K*b/32, N]  each column is one bit stream along K, code 0 in the lowest bits of the first word
    scale        float [G, N]
    zero_point   int32 [G, N*b/32]  each row is one bit stream along N; zero = (stored + zero_offset) mod 2**b
    group_index  int32 [K]          group of each column; may be absent, then column // group_size
    value[n, k] = (code - zero[group, n]) * scale[group, n]

GGUF, layer [N, K]: each row is K/32 blocks, one after the other (offsets in bytes):

    Q4_0   0 scale f16   2 codes (16 bytes)                  value = (code - 8) * scale
    Q4_1   0 scale f16   2 minimum f16   4 codes (16 bytes)  value = code * scale + minimum
    Q8_0   0 scale f16   2 codes (32 bytes)                  value = (code - 128) * scale, code = stored byte ^ 0x80
    4 bits: low nibble of byte i is element i, its high nibble element i + 16
"""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class GptqLayout:
    """GPTQ tensors of one layer.

    The zero point rule: `zero = (stored + zero_offset) mod 2**bits`, field by field, never carrying into a neighbour.
    "gptq" (v1) stores the zero point minus one, so zero_offset is 1 and a stored 15 (4 bits) is the zero point 0;
    "gptq_v2" stores the zero point itself.

    Public tools differ on the stored 15 of v1. Some kernels compute 16 and some wrap to 0, as here; wrapping alone
    gives v1 and v2 of the same weights the same meaning. Others subtract and add 1 on whole words, which borrows from
    and carries into the next field wherever a zero point is 0; such files cannot be told apart from field-by-field
    ones, so the reader leaves a note when an asymmetric v1 layer stores all ones.
    """

    bits: int
    zero_offset: int
    stream_axis_codes: int = 0
    stream_axis_zero_point: int = 1

    def zero_of(self, stored: int) -> int:
        """The zero point of a stored field."""
        return (stored + self.zero_offset) % (1 << self.bits)


@attrs.frozen(kw_only=True)
class GgufBlock:
    """One GGUF block of `elements` weights in `nbytes` bytes.

    `scale_offset` and `minimum_offset` (None without minimum) are byte offsets of little-endian f16 values.
    Codes begin at `codes_offset`; `code_bits` is 4 or 8. With 4 bits the low nibbles of the bytes hold the first half
    of the block and the high nibbles the second half. A canonical unsigned code is `stored ^ code_flip`: 0x80 turns
    two's complement bytes into offset binary, exactly, and 0 leaves codes alone.
    """

    name: str
    elements: int
    nbytes: int
    scale_offset: int
    minimum_offset: int | None
    codes_offset: int
    code_bits: int
    code_flip: int = 0

    def code_place(self, element: int) -> tuple[int, int]:
        """Byte within the block, and shift within the byte, of an element's stored code."""
        if self.code_bits == 8:
            return self.codes_offset + element, 0
        half = self.elements // 2
        return self.codes_offset + element % half, 4 * (element // half)
