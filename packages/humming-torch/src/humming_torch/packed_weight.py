"""A weight as the kernels read it: packed tensors, their layout version and what they mean.

Called by `pack.py`, which makes it, by the ops and by `Linear`, which use it.
Assumes the layout of `humming_kernels.packed_layout`; padding is inside the tensors and never in `n` or `k`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs
import torch
from humming_format.errors import FormatError
from humming_format.text import format_weight, parse_weight
from humming_format.weight import WeightFormat
from humming_format.zero_point import ZeroPointKind
from humming_kernels.packed_layout import BRICK_ROWS, LAYOUT_VERSION

from humming_torch.convert.canonical import TORCH_DTYPES, describe
from humming_torch.errors import WeightError

STRIP = BRICK_ROWS
"""Rows of a strip, and columns of a brick, with 16-bit operands."""

TENSOR_NAMES = ("weight", "weight_scale", "zero_point", "bias", "column_order")
"""Tensors of a packed weight, in the order of the op's arguments."""

DOCUMENT_NAME = "document"
"""Name of the state entry that holds format, shape and layout version (JSON text as bytes in a uint8 tensor)."""


@attrs.frozen(kw_only=True, eq=False)
class PackedWeight:
    """Packed tensors of a weight [n, k].

    * `weight`: int32 [ceil(n/64), ceil(k/64), 128 * bits], bricks of 64 x 64 codes.
    * `weight_scale`: [ceil(n/64), groups_k, 64] in the scale's number, 64 rows in lane order; a channel scale is f32
      [64 * ceil(n/64)] in row order (with minimums it is stored like one group instead).
    * `zero_point`: uint8 integer zero points, or minimums in the scale's number, as group scales.
    * `bias`: [n]. `column_order`: int64 [k], applied to the activations' columns before the product.
    """

    format: WeightFormat
    n: int
    k: int
    weight: torch.Tensor
    weight_scale: torch.Tensor
    zero_point: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    column_order: torch.Tensor | None = None
    layout_version: int = LAYOUT_VERSION
    text: str = attrs.field(init=False)  # text form of the format, made once: the operators take it as an argument

    @text.default
    def _text_of_format(self) -> str:
        return format_weight(self.format)

    def __attrs_post_init__(self) -> None:
        check_packed(self)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.weight.device

    @property
    def tensors(self) -> dict[str, torch.Tensor | None]:
        """The tensors by name, `None` where the format has none."""
        return {name: getattr(self, name) for name in TENSOR_NAMES}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, padding included."""
        return sum(tensor.nbytes for tensor in self.tensors.values() if tensor is not None)

    def to(self, device: torch.device | str) -> PackedWeight:
        """The same weight on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items() if tensor is not None}
        return packed_of(self.format, self.n, self.k, moved)

    def clone(self) -> PackedWeight:
        """The same weight in memory of its own."""
        cloned = {name: tensor.clone() for name, tensor in self.tensors.items() if tensor is not None}
        return packed_of(self.format, self.n, self.k, cloned)

    def state_dict(self, prefix: str = "") -> dict[str, torch.Tensor]:
        """Tensors and document under `prefix`; every value is a tensor, so safetensors can store it."""
        state = {prefix + name: tensor for name, tensor in self.tensors.items() if tensor is not None}
        state[prefix + DOCUMENT_NAME] = self.document_tensor()
        return state

    def document_tensor(self) -> torch.Tensor:
        """Format, shape and layout version as JSON bytes, uint8 on the CPU."""
        document = {
            "format": self.text,
            "k": self.k,
            "layout_version": self.layout_version,
            "n": self.n,
        }
        text = json.dumps(document, sort_keys=True)
        return torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")

    @classmethod
    def from_state_dict(cls, state: Mapping[str, torch.Tensor], prefix: str = "") -> PackedWeight:
        """Read what `state_dict` wrote. Raises WeightError for a missing entry or an unknown layout version."""
        if prefix + DOCUMENT_NAME not in state:
            raise WeightError(
                f"no packed weight under the prefix {prefix!r}",
                got="entries " + (", ".join(sorted(state)[:8]) or "none"),
                wanted=prefix + DOCUMENT_NAME,
                hint="A state written by another layer, or by another tool, must be converted first.",
            )
        weight_format, n, k = _read_document(state[prefix + DOCUMENT_NAME])
        tensors = {name: state[prefix + name] for name in TENSOR_NAMES if prefix + name in state}
        for name in ("weight", "weight_scale"):
            if name not in tensors:
                raise WeightError(f"packed weight without {prefix}{name}", got=", ".join(prefix + t for t in tensors))
        return packed_of(weight_format, n, k, tensors)


def _read_document(tensor: torch.Tensor) -> tuple[WeightFormat, int, int]:
    """Format, n and k; the layout version is looked at before anything else in it."""
    try:
        document = json.loads(bytes(tensor.to("cpu", torch.uint8).reshape(-1).tolist()))
    except ValueError as error:
        raise WeightError("the document of a packed weight is not JSON", got=describe(tensor)) from error
    if not isinstance(document, dict):
        raise WeightError("the document of a packed weight is not an object", got=type(document).__name__)
    check_layout_version(document.get("layout_version"))
    n, k, text = document.get("n"), document.get("k"), document.get("format")
    if not (isinstance(n, int) and isinstance(k, int) and isinstance(text, str) and n > 0 and k > 0):
        raise WeightError("the document of a packed weight is incomplete", got=str(document), wanted="n, k and format")
    try:
        weight_format = parse_weight(text)
    except FormatError as error:
        raise WeightError("the document of a packed weight names an unknown format", got=repr(text)) from error
    return weight_format, n, k


def packed_of(weight_format: WeightFormat, n: int, k: int, tensors: Mapping[str, torch.Tensor]) -> PackedWeight:
    """A packed weight from tensors by name; those that the format does not need may be absent."""
    return PackedWeight(
        format=weight_format,
        n=n,
        k=k,
        weight=tensors["weight"],
        weight_scale=tensors["weight_scale"],
        zero_point=tensors.get("zero_point"),
        bias=tensors.get("bias"),
        column_order=tensors.get("column_order"),
    )


def check_layout_version(version: object) -> None:
    """Raise WeightError for any layout version but ours."""
    if version != LAYOUT_VERSION:
        raise WeightError(
            "unknown layout version of a packed weight",
            got=repr(version),
            wanted=str(LAYOUT_VERSION),
            hint="It was packed by another version of humming-torch: pack it again from the checkpoint.",
        )


def channel_scale_in_row_order(weight_format: WeightFormat) -> bool:
    """Whether the scale is applied per row after the product, and so stored f32 in plain row order."""
    scale = weight_format.scale
    return scale is not None and scale.group_k is None and weight_format.zero_point.kind is not ZeroPointKind.MINIMUM


def packed_shapes(weight_format: WeightFormat, n: int, k: int) -> dict[str, tuple[tuple[int, ...], torch.dtype] | None]:
    """Shape and dtype that `weight`, `weight_scale` and `zero_point` must have; None where there is none.

    Raises WeightError for a format that the packed layout does not hold.
    """
    shown = format_weight(weight_format)
    scale = weight_format.scale
    bits = weight_format.number.bits
    if bits not in (4, 8):
        raise WeightError(f"the packed layout does not hold {shown}", got=f"{bits} bits", wanted="4 or 8 bits")
    if weight_format.outer_scale is not None or weight_format.zero_point.kind is ZeroPointKind.FLOAT:
        raise WeightError(
            f"the packed layout does not hold {shown}",
            got="two levels of scales" if weight_format.outer_scale is not None else "float zero points",
            wanted="one level of scales, with integer zero points or minimums",
        )
    if scale is None or scale.group_n != 1 or scale.number.name not in TORCH_DTYPES:
        raise WeightError(
            f"the packed layout does not hold {shown}", wanted="f16 or bf16 group scales, or f16, bf16 or f32 channel"
        )
    strips, bricks = -(-n // STRIP), -(-k // STRIP)
    lanes = (strips, scale.groups_k(k), STRIP)
    dtype = TORCH_DTYPES[scale.number.name]
    in_rows = channel_scale_in_row_order(weight_format)
    if not in_rows and dtype is torch.float32:
        raise WeightError(
            f"the packed layout does not hold {shown}",
            got="f32 scales inside the product",
            wanted="f16 or bf16 scales",
            hint="Write the format with :f16 or :bf16, or use a channel scale without minimums.",
        )
    zero: tuple[tuple[int, ...], torch.dtype] | None = None
    if weight_format.zero_point.kind is ZeroPointKind.INTEGER:
        zero = (lanes, torch.uint8)
    elif weight_format.zero_point.number is not None:
        if weight_format.zero_point.number != scale.number:
            raise WeightError(
                f"the packed layout does not hold {shown}",
                got=f"minimums in {weight_format.zero_point.number.name}, scales in {scale.number.name}",
                wanted="both in the same number",
            )
        zero = (lanes, dtype)
    return {
        "weight": ((strips, bricks, 128 * bits), torch.int32),
        "weight_scale": ((strips * STRIP,), torch.float32) if in_rows else (lanes, dtype),
        "zero_point": zero,
    }


def check_packed(packed: PackedWeight) -> None:
    """Raise WeightError unless all tensors fit format, n and k, lie on one device and are contiguous."""
    check_layout_version(packed.layout_version)
    shapes = packed_shapes(packed.format, packed.n, packed.k)
    place = f"of a {packed.text} weight with n = {packed.n}, k = {packed.k}"
    wanted_of: dict[str, tuple[tuple[int, ...], torch.dtype] | None] = dict(shapes)
    if packed.bias is not None:
        if not packed.bias.is_floating_point():
            raise WeightError("bias of the wrong form", got=describe(packed.bias), wanted=f"a floating [{packed.n}]")
        wanted_of["bias"] = ((packed.n,), packed.bias.dtype)
    if packed.column_order is not None:
        wanted_of["column_order"] = ((packed.k,), torch.int64)
    for name, tensor in packed.tensors.items():
        wanted = wanted_of.get(name)
        if (tensor is None) != (wanted is None):
            raise WeightError(f"{name} {place}", got="none" if tensor is None else describe(tensor))
        if tensor is None or wanted is None:
            continue
        shape, dtype = wanted
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            groups = packed.format.scale.groups_k(packed.k) if packed.format.scale is not None else 0
            raise WeightError(
                f"{name} {place} has the wrong form",
                got=describe(tensor),
                wanted=f"{str(dtype).removeprefix('torch.')} {list(shape)} ({groups} groups along k)",
            )
        if tensor.device != packed.device or not tensor.is_contiguous():
            raise WeightError(
                f"{name} {place} must be contiguous and on the weight's device",
                got=f"{tensor.device}, strides {tensor.stride()}",
                wanted=f"{packed.device}, contiguous",
            )
