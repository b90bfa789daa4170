"""One stored tensor as a torch tensor, and the two bit tricks that stored tensors need.

Called by the readers of this folder.
Assumes a TensorPlace of humming_format; reads that tensor alone, so memory follows the tensor, not the file.
"""

from __future__ import annotations

import torch
from humming_format.checkpoint.entry import LayerEntry, TensorPlace

from humming_torch.errors import ConversionError

_DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}


def read_tensor(place: TensorPlace, device: torch.device | str = "cpu") -> torch.Tensor:
    """The stored tensor, as it lies in the file."""
    dtype = _DTYPES.get(place.dtype)
    if dtype is None:
        raise ConversionError(
            f"tensor {place.tensor} of {place.file} has a dtype that no reader takes",
            got=place.dtype,
            wanted=", ".join(_DTYPES),
        )
    data = bytearray(place.nbytes)
    filled = 0
    for piece in place.read_pieces(1 << 24):
        data[filled : filled + len(piece)] = piece
        filled += len(piece)
    if not data:
        return torch.empty(place.shape, dtype=dtype, device=device)
    return torch.frombuffer(data, dtype=dtype).reshape(place.shape).to(device)


def role(entry: LayerEntry, name: str) -> TensorPlace:
    """Where the tensor of that role lies. Raises ConversionError when the layer has none."""
    if name not in entry.tensors:
        raise ConversionError(
            f"layer {entry.name} ({entry.method}) has no {name}", got=", ".join(entry.tensors), wanted=name
        )
    return entry.tensors[name]


def unpack_words(words: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """Fields of int32 words, little-endian along `axis` (0 or 1), as uint8; `bits` divides 32."""
    if 32 % bits:
        raise ConversionError(
            f"{bits}-bit fields straddle 32-bit words", wanted="1, 2, 4 or 8 bits", hint="Only those are read so far."
        )
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    mask = (1 << bits) - 1  # also drops the sign that a right shift drags into a negative word
    shape = list(words.shape)
    shape[axis] *= 32 // bits
    fields = words.unsqueeze(axis + 1) >> (shifts[:, None] if axis == 0 else shifts)
    return (fields & mask).to(torch.uint8).reshape(shape)
