"""Round a real weight to a quantized format: nearest code, scales from the largest or from both ends of a group.

Called by `Linear.from_float`, by tests and by benchmarks.
Assumes a finite weight [n, k]; the result has the same bits on every device.
"""

from __future__ import annotations

import torch
from humming_format.number import Number, NumberKind
from humming_format.scale import ScaleFormat
from humming_format.text import format_weight
from humming_format.weight import WeightFormat
from humming_format.zero_point import ZeroPointKind

from humming_torch.convert.canonical import TORCH_DTYPES, CanonicalWeight, check_carried, code_values, describe
from humming_torch.errors import WeightError


def quantize(weight: torch.Tensor, weight_format: WeightFormat, bias: torch.Tensor | None = None) -> CanonicalWeight:
    """Nearest representation of `weight` [n, k] in `weight_format`.

    Symmetric formats take the largest magnitude of a group to the largest value; integer zero points and minimums
    spread the codes over the group's whole range. The scale is rounded to its stored dtype *before* codes are chosen.
    A group of zeros has scale 0 and decodes to zeros.
    """
    scale_format = _scale_of(weight_format)
    if weight.ndim != 2 or not weight.is_floating_point() or 0 in weight.shape:
        raise WeightError("a weight to quantize is a matrix", got=describe(weight), wanted="a floating tensor [n, k]")
    if not bool(torch.isfinite(weight).all()):
        raise WeightError("the weight has infinite or NaN entries", wanted="finite numbers")
    n, k = weight.shape
    group = min(scale_format.group_k or k, k)
    groups = scale_format.groups_k(k)
    values = weight.detach().to(torch.float32)
    if groups * group > k:  # complete the last group with its own last column, which changes neither of its ends
        values = torch.cat([values, values[:, -1:].expand(n, groups * group - k)], dim=1)
    values = values.reshape(n, groups, group)
    dtype = TORCH_DTYPES[scale_format.number.name]
    number = weight_format.number
    kind = weight_format.zero_point.kind
    top = (1 << number.bits) - 1
    zero_point: torch.Tensor | None = None
    minimum: torch.Tensor | None = None
    if kind is ZeroPointKind.INTEGER:
        low = values.amin(2).clamp(max=0)
        scale = _rounded((values.amax(2).clamp(min=0) - low) / _on(values, top), dtype)
        zeros = torch.round(_divide(-low, scale)).clamp(0, top)
        codes = (torch.round(_divide(values, scale.unsqueeze(2))) + zeros.unsqueeze(2)).clamp(0, top)
        zero_point = zeros.to(torch.uint8)
    elif kind is ZeroPointKind.MINIMUM and weight_format.zero_point.number is not None:
        minimum = _rounded(values.amin(2), TORCH_DTYPES[weight_format.zero_point.number.name])
        low = minimum.to(torch.float32)
        scale = _rounded((values.amax(2) - low).clamp(min=0) / _on(values, top), dtype)
        codes = torch.round(_divide(values - low.unsqueeze(2), scale.unsqueeze(2))).clamp(0, top)
    elif number.kind in (NumberKind.UNSIGNED, NumberKind.SIGNED):
        signed = number.kind is NumberKind.SIGNED
        zero = 0 if signed else int(weight_format.zero_point.value or 0)
        low_code, high_code = (-(1 << (number.bits - 1)), top >> 1) if signed else (-zero, top - zero)
        scale = _rounded(values.abs().amax(2) / _on(values, max(high_code, 1)), dtype)
        codes = torch.round(_divide(values, scale.unsqueeze(2))).clamp(low_code, high_code)
        codes = codes.to(torch.int32) & top if signed else codes + zero
    else:
        scale = _rounded(values.abs().amax(2) / _on(values, float(number.largest)), dtype)
        codes = _nearest_magnitude(_divide(values, scale.unsqueeze(2)), number)
    return CanonicalWeight(
        format=weight_format,
        codes=codes.to(torch.uint8).reshape(n, groups * group)[:, :k].contiguous(),
        scale=scale.to(dtype),
        zero_point=zero_point,
        minimum=minimum,
        bias=bias,
    )


def _scale_of(weight_format: WeightFormat) -> ScaleFormat:
    """The scale of a format that weights can be rounded to; WeightError, with the part that is in the way, if not."""
    shown = format_weight(weight_format)
    hint = 'Try "u4g128", "u8c:f32" or "e2m1g32".'
    try:
        scale_format = check_carried(weight_format)
    except WeightError as error:
        what = f"cannot quantize to {shown}: it {error.what.removeprefix(f'format {shown} ')}"
        raise WeightError(what, wanted=error.wanted, hint=hint) from error
    if weight_format.number.kind is NumberKind.CODEBOOK:
        raise WeightError(
            f"cannot quantize to {shown}: the values of {weight_format.number.name} are those of a table",
            wanted="an integer, a sign and magnitude, or a float",
            hint=hint,
        )
    return scale_format


def _on(like: torch.Tensor, value: float) -> torch.Tensor:
    """A scalar on the device. Dividing by a Python number instead multiplies by its inverse there: other bits."""
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded to the stored dtype; refused where that overflows."""
    rounded = values.to(dtype)
    if not bool(torch.isfinite(rounded).all()):
        raise WeightError(
            f"a scale or minimum does not fit {str(dtype).removeprefix('torch.')}",
            got=f"{float(values.abs().max()):.4g}",
            hint='Use a format with a wider scale, for example "u4g128:bf16".',
        )
    return rounded


def _divide(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """values / scale in f32, and 0 where the scale is 0."""
    wide = scale.to(torch.float32)
    return torch.where(wide > 0, values / torch.where(wide > 0, wide, 1.0), 0.0)


def _nearest_magnitude(values: torch.Tensor, number: Number) -> torch.Tensor:
    """Codes of a sign-and-magnitude or floating number, nearest value, ties to the even code, never minus zero."""
    half = 1 << (number.bits - 1)
    table = code_values(number, values.device, torch.float32)[:half]
    table = table[torch.isfinite(table)]
    middles = (table[:-1] + table[1:]) / 2  # exact: neighbours of a small number differ by one of its own bits
    magnitude = values.abs().contiguous()
    code = torch.bucketize(magnitude, middles)  # a value on a middle gets the lower code
    on_middle = magnitude == middles[code.clamp(max=len(middles) - 1)]
    code = torch.where(on_middle & (code % 2 == 1) & (code < len(middles)), code + 1, code)
    return torch.where((values < 0) & (code > 0), code + half, code)
