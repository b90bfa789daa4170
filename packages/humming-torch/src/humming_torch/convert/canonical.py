"""The canonical form of a quantized weight: one code per byte, one meaning, whatever tool exported it.

Called by the readers and `quantize`, which make it, and by `pack.py`, which consumes it.
Assumes a number of at most 8 bits with one scale per row and column group (or per row).
"""

from __future__ import annotations

import functools

import attrs
import torch
from humming_format.number import Number, NumberKind
from humming_format.scale import ScaleFormat
from humming_format.text import format_weight
from humming_format.weight import WeightFormat
from humming_format.zero_point import ZeroPointKind

from humming_torch.errors import WeightError

TORCH_DTYPES: dict[str, torch.dtype] = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
"""Torch's names for the wide numbers that scales, minimums and activations are stored in."""


@attrs.frozen(kw_only=True, eq=False)
class CanonicalWeight:
    """A weight [n, k] as codes, scales and zero points.

    * `codes`: uint8 [n, k], one unsigned code of `format.number` per byte.
    * `scale`: [n, groups_k] in the format's scale number; groups_k = ceil(k / group_k), 1 for a channel scale.
    * `zero_point`: uint8 [n, groups_k], only for integer zero points. `minimum`: like `scale`, only for float minimums.
    * `bias`: [n], any floating dtype.
    * `column_order`: int64 [k]. Column j of `codes` is column `column_order[j]` of the real weight, and belongs to
      group j // group_k ("act-order" checkpoints). None: the columns are in their own order.

    Raises WeightError when the tensors do not fit the format, naming both sides of what differs.
    """

    format: WeightFormat
    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None = None
    minimum: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    column_order: torch.Tensor | None = None

    def __attrs_post_init__(self) -> None:
        _check(self)

    @property
    def n(self) -> int:
        """Output features."""
        return self.codes.shape[0]

    @property
    def k(self) -> int:
        """Input features."""
        return self.codes.shape[1]

    @property
    def group_k(self) -> int:
        """Columns that share a scale."""
        return self.k if self.format.scale is None or self.format.scale.group_k is None else self.format.scale.group_k

    def to(self, device: torch.device | str) -> CanonicalWeight:
        """The same weight on another device."""

        def move(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.to(device)

        return CanonicalWeight(
            format=self.format,
            codes=self.codes.to(device),
            scale=self.scale.to(device),
            zero_point=move(self.zero_point),
            minimum=move(self.minimum),
            bias=move(self.bias),
            column_order=move(self.column_order),
        )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The real weight [n, k], columns in their own order.

        Computed in f32 with the exporters' own order of operations, or in f64 when that is asked for; narrower
        dtypes round the f32 result once.
        """
        working = torch.float64 if dtype == torch.float64 else torch.float32
        values = decode_values(
            self.codes, self.scale, self.zero_point, self.minimum, self.format, dtype=working, group_k=self.group_k
        )
        if self.column_order is not None:
            values = values.index_select(1, torch.argsort(self.column_order))
        return values.to(dtype)


def decode_values(
    codes: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    minimum: torch.Tensor | None,
    weight_format: WeightFormat,
    *,
    dtype: torch.dtype,
    group_k: int,
) -> torch.Tensor:
    """Value of every code of [n, k], in `dtype` (f32 or f64): (code - zero) * scale, or code * scale + minimum."""
    if weight_format.number.kind is NumberKind.UNSIGNED:
        values = codes.to(dtype)
    else:
        values = code_values(weight_format.number, codes.device, dtype)[codes.to(torch.int32)]
    zero = weight_format.zero_point
    full = codes.shape[1] // group_k * group_k
    for start, end, width in ((0, full, group_k), (full, codes.shape[1], codes.shape[1] - full)):
        if start == end:
            continue
        groups = slice(start // group_k, -(-end // group_k))
        part = values[:, start:end].view(codes.shape[0], -1, width)  # a view: one row, its groups, their columns
        if zero.kind is ZeroPointKind.CONSTANT and zero.value:
            part -= zero.value
        elif zero_point is not None:
            part -= zero_point[:, groups, None].to(dtype)
        part *= scale[:, groups, None].to(dtype)
        if minimum is not None:
            part += minimum[:, groups, None].to(dtype)
    return values


@functools.lru_cache(maxsize=64)
def code_values(number: Number, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The value of every code of a number, exact, as a table on the device."""
    table = [float(value) for value in number.values()]
    return torch.tensor(table, dtype=torch.float64, device="cpu").to(device, dtype)


def check_carried(weight_format: WeightFormat) -> ScaleFormat:
    """The scale of a format whose every part a CanonicalWeight holds; raises WeightError, by name, for any other.

    A part that is not held would be left out of the values in silence: an outer scale, a float zero point.
    """
    shown = format_weight(weight_format)
    scale, zero = weight_format.scale, weight_format.zero_point
    if weight_format.number.bits > 8:
        raise WeightError(f"format {shown} is not a quantized one", wanted="a number of at most 8 bits")
    if weight_format.outer_scale is not None:
        raise WeightError(
            f"format {shown} has two levels of scales",
            wanted="one level",
            hint="An outer scale is not carried here; where the products are exact in one number, multiply them first.",
        )
    if zero.kind is ZeroPointKind.FLOAT:
        raise WeightError(
            f"format {shown} has float zero points",
            wanted="integer zero points (z) or minimums (m)",
            hint="(code - zero) * scale with a float zero is not carried here, and -zero * scale rounds.",
        )
    if scale is None or scale.group_n != 1:
        raise WeightError(f"format {shown} has no scale per row", wanted="a group scale (g<K>) or a channel scale (c)")
    for what, number in (("scales", scale.number), ("minimums", zero.number)):
        if number is not None and number.name not in TORCH_DTYPES:
            raise WeightError(f"format {shown} has {what} in {number.name}", wanted=", ".join(TORCH_DTYPES))
    return scale


def _check(weight: CanonicalWeight) -> None:
    shown = format_weight(weight.format)
    codes, scale = weight.codes, weight.scale
    scale_format = check_carried(weight.format)
    if codes.dtype != torch.uint8 or codes.ndim != 2 or 0 in codes.shape:
        raise WeightError("codes of the wrong form", got=describe(codes), wanted="uint8 [n, k], both at least 1")
    n, k = codes.shape
    groups = scale_format.groups_k(k)
    wanted = f"[{n}, {groups}] (n = {n}; k = {k} in groups of {weight.group_k} makes {groups})"
    check_tensor("scale", scale, (n, groups), TORCH_DTYPES[scale_format.number.name], wanted)
    kind = weight.format.zero_point.kind
    for name, value, belongs in (
        ("zero_point", weight.zero_point, kind is ZeroPointKind.INTEGER),
        ("minimum", weight.minimum, kind is ZeroPointKind.MINIMUM),
    ):
        if (value is not None) != belongs:
            raise WeightError(
                f"format {shown} {'needs' if belongs else 'has no'} {name}",
                got="none" if value is None else describe(value),
            )
    if weight.zero_point is not None:
        check_tensor("zero point", weight.zero_point, (n, groups), torch.uint8, wanted)
    if weight.minimum is not None and weight.format.zero_point.number is not None:
        dtype = TORCH_DTYPES[weight.format.zero_point.number.name]
        check_tensor("minimum", weight.minimum, (n, groups), dtype, wanted)
    if weight.bias is not None and (weight.bias.shape != (n,) or not weight.bias.is_floating_point()):
        raise WeightError("bias of the wrong form", got=describe(weight.bias), wanted=f"a floating tensor [{n}]")
    if weight.column_order is not None:
        check_tensor("column order", weight.column_order, (k,), torch.int64, f"[{k}]")
        if not torch.equal(weight.column_order.sort().values, torch.arange(k, device=weight.column_order.device)):
            raise WeightError("column order is not a permutation", wanted=f"each of 0 to {k - 1} once")
    if weight.format.number.bits < 8 and int(codes.max()) >> weight.format.number.bits:
        raise WeightError(
            f"a code does not fit {weight.format.number.name}",
            got=str(int(codes.max())),
            wanted=f"at most {(1 << weight.format.number.bits) - 1}",
        )


def check_tensor(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, wanted_shape: str
) -> None:
    """Raise WeightError unless the tensor has that shape and dtype."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise WeightError(
            f"{name} does not fit the weight",
            got=describe(tensor),
            wanted=f"{dtype} {wanted_shape}".removeprefix("torch."),
            hint="The scale and zero point need one entry per row and group: ceil(k / group) groups.",
        )


def describe(tensor: torch.Tensor) -> str:
    """Dtype and shape of a tensor in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
