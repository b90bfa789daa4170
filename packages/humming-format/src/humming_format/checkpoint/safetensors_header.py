"""Headers of safetensors files, read with the standard library: name, dtype, shape and place of each tensor.
Called by read_checkpoint for every *.safetensors file.
Assumes nothing about the file: sizes, offsets and shapes must agree with one another and with the file's length."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, shown
from .entry import TensorPlace
from .json_file import LARGEST_JSON_BYTES, parse_object

# safetensors spelling -> (torch spelling, bits of one element)
DTYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F6_E2M3": ("float6_e2m3", 6),
    "F6_E3M2": ("float6_e3m2", 6),
    "F4": ("float4_e2m1fn", 4),
}

LARGEST_RANK = 16


def read_header(path: Path) -> dict[str, TensorPlace]:
    """Places of all tensors of a safetensors file, by name. Raises CheckpointError."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise CheckpointError(f"{path} is too short for a safetensors file", got=f"{size} bytes", wanted=">= 8")
            length = int.from_bytes(prefix, "little")
            if length > size - 8 or length > LARGEST_JSON_BYTES:
                raise CheckpointError(
                    f"{path}: the header claims more bytes than there can be",
                    got=f"a header of {length} bytes in a file of {size}",
                    wanted=f"at most {min(size - 8, LARGEST_JSON_BYTES)}",
                    remedy="the file is cut off, or not a safetensors file",
                )
            header = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if len(header) < length:
        raise CheckpointError(f"{path} became shorter while it was read")
    data_start = 8 + length
    places = {
        name: _place(path, name, entry, data_start, size - data_start)
        for name, entry in parse_object(header, f"the header of {path}").items()
        if name != "__metadata__"
    }
    _check_cover(path, places, data_start, size)
    return places


def _place(path: Path, name: str, entry: Any, data_start: int, data_bytes: int) -> TensorPlace:
    what = f"{path}: tensor {shown(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{what} is not described as safetensors does",
            got=shown(entry),
            wanted="dtype, shape and data_offsets",
        )
    stored_dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(stored_dtype, str) or stored_dtype not in DTYPES:
        raise CheckpointError(f"{what} has an unknown dtype", got=shown(stored_dtype), wanted=", ".join(DTYPES))
    if not isinstance(shape, list) or len(shape) > LARGEST_RANK or not all(_is_size(side) for side in shape):
        raise CheckpointError(
            f"{what} has a shape that is not a list of sizes", got=shown(shape), wanted=f"at most {LARGEST_RANK} sizes"
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise CheckpointError(f"{what} has data_offsets that are not two sizes", got=shown(offsets))
    begin, end = offsets
    if not begin <= end <= data_bytes:
        raise CheckpointError(
            f"{what} lies outside the file",
            got=f"bytes {begin} to {end}",
            wanted=f"within the {data_bytes} bytes of data",
            remedy="the file is cut off or its header is wrong",
        )
    dtype, bits = DTYPES[stored_dtype]
    total = bits
    for side in shape:
        total *= side
    if total != 8 * (end - begin):
        raise CheckpointError(
            f"{what} has a shape and a size that disagree",
            got=f"{stored_dtype} {shown(shape)} in {end - begin} bytes",
            wanted=f"{total / 8:g} bytes" if total < 1 << 70 else "a shape that fits the file",
        )
    return TensorPlace(
        file=path, tensor=name, dtype=dtype, shape=tuple(shape), offset=data_start + begin, nbytes=end - begin
    )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _check_cover(path: Path, places: dict[str, TensorPlace], start: int, size: int) -> None:
    """The tensors must cover the data without gap or overlap, as the format demands."""
    at, before = start, "the header"
    for place in sorted(places.values(), key=lambda place: (place.offset, place.nbytes)):
        if place.offset != at:
            raise CheckpointError(
                f"{path}: tensor {shown(place.tensor)} {'overlaps' if place.offset < at else 'leaves a gap after'} "
                f"{shown(before)}",
                got=f"offset {place.offset}",
                wanted=str(at),
            )
        at, before = place.offset + place.nbytes, place.tensor
    if at != size:
        raise CheckpointError(
            f"{path} is longer than its tensors", got=f"{size} bytes", wanted=f"{at}", remedy="the header is wrong"
        )
