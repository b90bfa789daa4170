"""GPTQ tensors of one layer to the canonical form: v1 and v2 zero points, act-order.

Called by `read_layer` with an entry of `humming_format.checkpoint.gptq`.
Assumes the entry's GptqLayout says how the fields lie; the reader has checked symmetric zero points.
"""

from __future__ import annotations

import torch
from humming_format.checkpoint.entry import LayerEntry
from humming_format.checkpoint.layout import GptqLayout
from humming_format.weight import WeightFormat
from humming_format.zero_point import ZeroPointKind

from humming_torch.convert.canonical import TORCH_DTYPES, CanonicalWeight
from humming_torch.convert.stored import read_tensor, role, unpack_words
from humming_torch.errors import ConversionError


def read_gptq(
    entry: LayerEntry, layout: GptqLayout, weight_format: WeightFormat, device: torch.device | str
) -> CanonicalWeight:
    """The layer's canonical weight, or a ConversionError that names what cannot be kept exactly."""
    n, k = entry.n, entry.k
    if (layout.stream_axis_codes, layout.stream_axis_zero_point) != (0, 1) or weight_format.scale is None:
        raise ConversionError(f"layer {entry.name}: a GPTQ layout that this version does not read", got=str(layout))
    codes = unpack_words(read_tensor(role(entry, "codes"), device), layout.bits, 0, k).t().contiguous()
    groups = weight_format.scale.groups_k(k)
    scale = read_tensor(role(entry, "scale"), device).t().contiguous()
    _check_groups(entry, "scale", scale, groups, weight_format)
    wanted_dtype = TORCH_DTYPES[weight_format.scale.number.name]
    if scale.dtype != wanted_dtype:
        raise ConversionError(
            f"layer {entry.name}: scales of another dtype", got=str(scale.dtype), wanted=str(wanted_dtype)
        )

    zero_point: torch.Tensor | None = None
    if weight_format.zero_point.kind is ZeroPointKind.INTEGER:
        stored = unpack_words(read_tensor(role(entry, "zero_point"), device), layout.bits, 1, n)
        # zero = (stored + offset) mod 2^bits, field by field: the sum is taken after unpacking, so nothing carries.
        zeros = ((stored.to(torch.int32) + layout.zero_offset) & ((1 << layout.bits) - 1)).to(torch.uint8)
        zero_point = zeros.t().contiguous()
        _check_groups(entry, "zero point", zero_point, groups, weight_format)

    order = _column_order(entry, weight_format, groups, device)
    if order is not None:
        codes = codes.index_select(1, order)
    return CanonicalWeight(
        format=weight_format,
        codes=codes,
        scale=scale,
        zero_point=zero_point,
        column_order=order,
    )


def _check_groups(entry: LayerEntry, name: str, tensor: torch.Tensor, groups: int, weight_format: WeightFormat) -> None:
    """[n, groups]: both counts are named when they differ."""
    if tuple(tensor.shape) != (entry.n, groups):
        group_k = weight_format.scale.group_k if weight_format.scale is not None else None
        raise ConversionError(
            f"layer {entry.name}: {name} has another number of groups than declared",
            got=f"{tensor.shape[1]} groups for {tensor.shape[0]} rows",
            wanted=f"{groups} groups for {entry.n} rows (k = {entry.k}, group size {group_k or entry.k})",
            hint="The checkpoint's config and its tensors disagree.",
        )


def _column_order(
    entry: LayerEntry, weight_format: WeightFormat, groups: int, device: torch.device | str
) -> torch.Tensor | None:
    """Columns sorted by group, or None where they are in order. Every group must have the columns its place has."""
    if "group_index" not in entry.tensors:
        return None
    index = read_tensor(entry.tensors["group_index"], device).to(torch.int64)
    k = entry.k
    group_k = (weight_format.scale.group_k if weight_format.scale is not None else None) or k
    in_order = torch.arange(k, device=index.device) // group_k
    if index.shape != (k,):
        raise ConversionError(f"layer {entry.name}: group index", got=str(list(index.shape)), wanted=f"[{k}]")
    if torch.equal(index, in_order):
        return None
    order = torch.argsort(index, stable=True)
    if not torch.equal(index[order], in_order):
        low, high = int(index.min()), int(index.max())
        raise ConversionError(
            f"layer {entry.name}: groups of the group index are not of the declared size",
            got=f"groups {low} to {high}, sizes {sorted(set(torch.bincount(index.clamp(min=0)).tolist()))[:8]}",
            wanted=f"{groups} groups of {group_k} columns, the last one with what is left",
            hint="Such layers have no exact form with one scale per group of columns.",
        )
    return order
