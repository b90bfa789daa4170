"""GGUF blocks of one layer to the canonical form: Q4_0, Q4_1 and Q8_0.

Called by `read_layer` with an entry of `humming_format.checkpoint.gguf`.
Assumes the entry's GgufBlock says where scale, minimum and codes of a block lie.
"""

from __future__ import annotations

import torch
from humming_format.checkpoint.entry import LayerEntry
from humming_format.checkpoint.layout import GgufBlock
from humming_format.weight import WeightFormat

from humming_torch.convert.canonical import CanonicalWeight
from humming_torch.convert.stored import read_tensor, role
from humming_torch.errors import ConversionError


def read_gguf(
    entry: LayerEntry, block: GgufBlock, weight_format: WeightFormat, device: torch.device | str
) -> CanonicalWeight:
    """The layer's canonical weight."""
    n, k = entry.n, entry.k
    raw = read_tensor(role(entry, "blocks"), device)
    if k % block.elements or raw.numel() != n * (k // block.elements) * block.nbytes:
        raise ConversionError(
            f"layer {entry.name}: {block.name} blocks of the wrong size",
            got=f"{raw.numel()} bytes",
            wanted=f"{n} rows of {k} / {block.elements} blocks of {block.nbytes} bytes",
        )
    blocks = raw.reshape(n, k // block.elements, block.nbytes)
    stored = blocks[..., block.codes_offset : block.codes_offset + block.elements * block.code_bits // 8]
    if block.code_bits == 4:  # low nibbles are the first half of the block, high nibbles the second
        stored = torch.cat([stored & 0xF, stored >> 4], dim=2)
    elif block.code_bits != 8:
        raise ConversionError(f"layer {entry.name}: {block.code_bits}-bit {block.name} codes", wanted="4 or 8 bits")
    codes = stored ^ block.code_flip if block.code_flip else stored
    return CanonicalWeight(
        format=weight_format,
        codes=codes.reshape(n, k).contiguous(),
        scale=_half(blocks, block.scale_offset),
        minimum=None if block.minimum_offset is None else _half(blocks, block.minimum_offset),
    )


def _half(blocks: torch.Tensor, offset: int) -> torch.Tensor:
    """The f16 at a byte offset of every block: [n, blocks]."""
    return blocks[..., offset : offset + 2].contiguous().view(torch.float16).squeeze(-1)
