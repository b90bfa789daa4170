"""One stored tensor as a torch tensor, and the fields of a stream of words.

Called by the readers of this folder.
Assumes a TensorPlace of humming_format; reads that tensor alone, so memory follows the tensor, not the file.
"""

from __future__ import annotations

import math

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


def unpack_words(words: torch.Tensor, bits: int, axis: int, count: int) -> torch.Tensor:
    """The first `count` fields of int32 words, one little-endian bit stream along `axis` (0 or 1), as uint8.

    Fields may straddle words (3 bits: 32 fields in 3 words); beyond its result it needs about the size of `words`.
    """
    words = words if axis == 0 else words.t()
    common = math.gcd(32, bits)
    period, period_words = 32 // common, bits // common  # after so many fields, one begins at a word again
    missing = -words.shape[0] % period_words
    if missing:
        words = torch.cat([words, words.new_zeros((missing, words.shape[1]))])
    if words.shape[0] // period_words * period < count:
        raise ConversionError(
            "too few words for the fields they hold",
            got=f"{words.shape[0]} words",
            wanted=f"{count} fields of {bits} bits",
        )
    periods = words.reshape(-1, period_words, words.shape[1])
    fields = torch.empty((periods.shape[0], period, words.shape[1]), dtype=torch.uint8, device=words.device)
    mask = (1 << bits) - 1  # also drops the sign that a right shift drags into a negative word
    for index in range(period):
        word, shift = divmod(index * bits, 32)
        value = periods[:, word] >> shift
        if shift + bits > 32:
            value = (value & ((1 << (32 - shift)) - 1)) | (periods[:, word + 1] << (32 - shift))
        fields[:, index] = value & mask
    result = fields.reshape(-1, words.shape[1])[:count]
    return result if axis == 0 else result.t()
