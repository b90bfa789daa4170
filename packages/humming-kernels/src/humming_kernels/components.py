"""Which CUDA files and enumerators serve which numbers: the one table that a new weight number is added to.
Called by the rules (is it served?), the emitter (its enumerator) and the composer (its header).
Assumes the files of include/humming."""

from __future__ import annotations

from humming_format.zero_point import ZeroPointKind

from .config import Pipeline

DECODERS: dict[str, str] = {
    "u4": "decode/unsigned_integer.cuh",
    "u8": "decode/unsigned_integer.cuh",
    "e0m3": "decode/sign_magnitude.cuh",
    "e2m1": "decode/small_float.cuh",
}
"""Weight number -> the header whose decoder places its codes in f16 and bf16 operands."""

ENUMERATORS: dict[str, str] = {
    "u4": "kU4",
    "u8": "kU8",
    "e0m3": "kE0m3",
    "e2m1": "kE2m1",
    "f16": "kF16",
    "bf16": "kBf16",
    "f32": "kF32",
}
"""Number -> its enumerator in base/config.cuh."""

ZERO_POINT_ENUMERATORS: dict[ZeroPointKind, str] = {
    ZeroPointKind.NONE: "kNone",
    ZeroPointKind.CONSTANT: "kConstant",
    ZeroPointKind.INTEGER: "kInteger",
    ZeroPointKind.MINIMUM: "kMinimum",
}

DENSE_KERNELS: dict[Pipeline, tuple[str, str]] = {
    Pipeline.MULTISTAGE: ("kernels/dense.cuh", "Dense"),
    Pipeline.WARP_SPECIALIZED: ("kernels/dense_wgmma.cuh", "DenseWgmma"),
}
"""Pipeline -> the header of its dense kernel and the name of the template in it."""
