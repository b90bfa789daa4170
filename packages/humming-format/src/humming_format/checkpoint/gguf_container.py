"""The GGUF container: metadata and the place of each tensor, read with the standard library through a memory map.
Called by the GGUF reader.
Assumes nothing about the file: every length is checked against what is left of it before anything is read or counted.

    "GGUF", version u32, tensor count u64, metadata count u64
    metadata:  key string, type u32, value             string: length u64, bytes     array: type u32, count u64, items
    tensors:   name string, rank u32, sides u64 (fastest first), type u32, offset u64 from the start of the data
    data:      from the next multiple of general.alignment (32 when not stated)
"""

from __future__ import annotations

import itertools
import mmap
import struct
from pathlib import Path
from typing import Any

import attrs

from ..errors import CheckpointError, shown

# GGML type number -> (name, elements per block, bytes per block)
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}

# metadata type number -> struct letter; 8 is a string, 9 an array
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LARGEST_RANK = 4
_DEEPEST_ARRAY = 4


@attrs.frozen(kw_only=True)
class GgufTensor:
    """One tensor: `shape` slowest side first, as in numpy and torch; `offset` from the start of the file."""

    name: str
    type_name: str
    block_elements: int
    block_bytes: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@attrs.frozen(kw_only=True)
class GgufFile:
    """The contents of a GGUF file. `metadata` holds numbers, strings and, for an array, its length as `array[n]`."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_container(path: Path) -> GgufFile:
    """Metadata and tensors of a GGUF file. Raises CheckpointError."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).read()
    except ValueError as error:  # mmap refuses an empty file
        raise CheckpointError(f"{path} is not a GGUF file: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


class _Reader:
    """Reads forward through the map; `at` is the position."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 0

    def read(self) -> GgufFile:
        if self.take(4) != b"GGUF":
            raise CheckpointError(f"{self.path} is not a GGUF file", got=shown(self.data[:4]), wanted="b'GGUF'")
        version = self.unsigned(4)
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            raise CheckpointError(
                f"{self.path}: GGUF version not described",
                got="a big-endian file" if swapped in (2, 3) else str(version),
                wanted="2 or 3, little-endian",
            )
        tensor_count, metadata_count = self.unsigned(8), self.unsigned(8)
        # A metadata entry takes at least 13 bytes, a tensor entry at least 24.
        if metadata_count * 13 + tensor_count * 24 > self.size - self.at:
            raise CheckpointError(
                f"{self.path}: more entries than the file has room for",
                got=f"{metadata_count} metadata entries and {tensor_count} tensors in {self.size} bytes",
                remedy="the file is cut off or damaged",
            )
        metadata: dict[str, Any] = {}
        for _ in range(metadata_count):
            key = self.string("a metadata key")
            if key in metadata:
                raise CheckpointError(f"{self.path}: metadata key {shown(key)} appears twice")
            metadata[key] = self.value(self.unsigned(4), key)
        alignment = metadata.get("general.alignment", 32)
        if isinstance(alignment, bool) or not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise CheckpointError(f"{self.path}: general.alignment is not a sensible number", got=shown(alignment))
        heads = [self.tensor_head() for _ in range(tensor_count)]
        data_start = -(-self.at // alignment) * alignment
        tensors = tuple(self.tensor(head, data_start, alignment) for head in heads)
        self.check_overlap(tensors)
        return GgufFile(version=version, metadata=metadata, tensors=tensors)

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise CheckpointError(
                f"{self.path} ends too early",
                got=f"{self.size - self.at} bytes left at byte {self.at}",
                wanted=f"{count} bytes",
                remedy="the file is cut off or damaged",
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def unsigned(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def string(self, what: str) -> str:
        raw = self.take(self.unsigned(8))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {what} is not UTF-8", got=shown(raw)) from error

    def value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            letter = _SCALARS[kind]
            return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]
        if kind == _STRING:
            return self.take(self.unsigned(8)).decode("utf-8", "replace")
        if kind == _ARRAY:
            return f"array[{self.skip_array(key, 1)}]"
        raise CheckpointError(f"{self.path}: metadata {shown(key)} has an unknown type", got=str(kind))

    def skip_array(self, key: str, depth: int) -> int:
        kind, count = self.unsigned(4), self.unsigned(8)
        if kind in _SCALARS:
            self.skip(count * struct.calcsize("<" + _SCALARS[kind]))
        elif kind == _STRING and count * 8 <= self.size - self.at:
            for _ in range(count):
                self.skip(self.unsigned(8))
        elif kind == _ARRAY and count * 12 <= self.size - self.at and depth < _DEEPEST_ARRAY:
            for _ in range(count):
                self.skip_array(key, depth + 1)
        else:
            raise CheckpointError(
                f"{self.path}: array {shown(key)} in the metadata cannot be read", got=f"{count} items of type {kind}"
            )
        return count

    def skip(self, count: int) -> None:
        if count > self.size - self.at:
            self.take(count)  # raises
        self.at += count

    def tensor_head(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string("a tensor name")
        rank = self.unsigned(4)
        if not 1 <= rank <= _LARGEST_RANK:
            raise CheckpointError(
                f"{self.path}: tensor {shown(name)} has an impossible rank",
                got=str(rank),
                wanted=f"1 to {_LARGEST_RANK}",
            )
        sides = tuple(self.unsigned(8) for _ in range(rank))
        return name, sides, self.unsigned(4), self.unsigned(8)

    def tensor(self, head: tuple[str, tuple[int, ...], int, int], data_start: int, alignment: int) -> GgufTensor:
        name, sides, kind, offset = head
        what = f"{self.path}: tensor {shown(name)}"
        if kind not in GGML_TYPES:
            raise CheckpointError(f"{what} has an unknown type", got=str(kind), wanted="a GGML type that still exists")
        type_name, block_elements, block_bytes = GGML_TYPES[kind]
        if sides[0] % block_elements:
            raise CheckpointError(
                f"{what} has rows that are not whole {type_name} blocks",
                got=f"{sides[0]} columns",
                wanted=f"a multiple of {block_elements}",
            )
        nbytes = sides[0] // block_elements * block_bytes
        for side in sides[1:]:
            nbytes *= side
        if offset % alignment or nbytes > self.size - data_start - offset:
            raise CheckpointError(
                f"{what} lies outside the file or off its alignment",
                got=f"{nbytes} bytes from {offset} of the data",
                wanted=f"within {max(0, self.size - data_start)} bytes, from a multiple of {alignment}",
                remedy="the file is cut off or damaged",
            )
        return GgufTensor(
            name=name,
            type_name=type_name,
            block_elements=block_elements,
            block_bytes=block_bytes,
            shape=tuple(reversed(sides)),
            offset=data_start + offset,
            nbytes=nbytes,
        )

    def check_overlap(self, tensors: tuple[GgufTensor, ...]) -> None:
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise CheckpointError(f"{self.path} names the same tensor twice")
        ordered = sorted(tensors, key=lambda tensor: tensor.offset)
        for before, after in itertools.pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise CheckpointError(
                    f"{self.path}: tensors {shown(before.name)} and {shown(after.name)} overlap",
                    remedy="the file is damaged",
                )
