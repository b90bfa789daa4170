"""Tensor maps: what cuTensorMapEncodeTiled describes, and the shared-memory swizzles.
Made by tests through `Memory.add_tensor_map`, read by the room bulk.
Assumes tiled mode without interleave; a kernel sees 128 opaque bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from tests.emulator.errors import EmulatorError

MAGIC = b"emulated tensor map\0"
SWIZZLE_BITS = {0: 0, 32: 1, 64: 2, 128: 3}


def swizzle_address(address, width):
    """Shared address of a byte whose unswizzled address is given; width 0, 32, 64 or 128 bytes.

    The 16-byte chunk number within the row of `width` bytes is XORed with bits 7 and up of the address:

        128: bits 4..6 ^= bits 7..9      64: bits 4..5 ^= bits 7..8      32: bit 4 ^= bit 7
    """
    mask = (1 << SWIZZLE_BITS[width]) - 1
    return address ^ (((address >> 7) & mask) << 4)


@dataclass
class TensorMap:
    allocation: object
    element: int  # bytes
    sizes: tuple  # innermost first, in elements
    strides: tuple  # bytes, of dimensions 1.. (innermost is dense)
    box: tuple  # innermost first
    swizzle: int = 0  # bytes
    offset: int = 0  # bytes from the start of the allocation
    fill: str = "zero"  # or "nan"
    dtype: str = ""  # for reductions: f16, bf16, f32, s32, u32
    code: bytes = b""

    def __post_init__(self):
        rank = len(self.sizes)
        problems = []
        if len(self.box) != rank or len(self.strides) != rank - 1:
            problems.append(f"{rank} sizes need {rank} box sizes and {rank - 1} strides")
        if any(b < 1 or b > 256 for b in self.box):
            problems.append(f"box sizes must be 1 to 256, got {self.box}")
        inner = self.box[0] * self.element
        if inner % 16:
            problems.append(f"the inner box size must be a multiple of 16 bytes, got {inner}")
        if self.swizzle and inner > self.swizzle:
            problems.append(f"the inner box size {inner} must not pass the swizzle width {self.swizzle}")
        if any(s % 16 for s in self.strides):
            problems.append(f"strides must be multiples of 16 bytes, got {self.strides}")
        if (self.allocation.base + self.offset) % 16:
            problems.append("the global address must be a multiple of 16")
        last = (
            self.offset
            + self.sizes[0] * self.element
            + sum((n - 1) * s for n, s in zip(self.sizes[1:], self.strides, strict=True))
        )
        if last > self.allocation.size:
            problems.append(f"the tensor ends {last - self.allocation.size} bytes past {self.allocation}")
        if problems:
            raise EmulatorError("tensor map: " + "; ".join(problems))

    @property
    def box_bytes(self):
        return int(np.prod(self.box)) * self.element

    def element_offsets(self, coordinates):
        """(byte offsets in the allocation, inside mask), both of the box's shape, outermost first."""
        rank = len(self.sizes)
        strides = (self.element, *self.strides)
        offsets = np.full(tuple(reversed(self.box)), self.offset, np.int64)
        inside = np.ones(offsets.shape, bool)
        for axis in range(rank):
            position = np.arange(self.box[axis], dtype=np.int64) + int(coordinates[axis])
            shape = [1] * rank
            shape[rank - 1 - axis] = self.box[axis]
            position = position.reshape(shape)
            offsets = offsets + position * strides[axis]
            inside = inside & (position >= 0) & (position < self.sizes[axis])
        return offsets, inside

    def shared_addresses(self, base):
        """Shared address of every element of the box (flat, in box order), swizzled."""
        linear = base + np.arange(int(np.prod(self.box)), dtype=np.int64) * self.element
        return swizzle_address(linear, self.swizzle)


def encode(number):
    """128 opaque bytes that name a map."""
    return (MAGIC + struct.pack("<Q", number)).ljust(128, b"\xa5")


def number_of(data):
    """Number of an encoded map, or None."""
    if not bytes(data).startswith(MAGIC):
        return None
    return struct.unpack_from("<Q", bytes(data), len(MAGIC))[0]
