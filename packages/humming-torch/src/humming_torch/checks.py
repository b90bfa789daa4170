"""What a dense call must look like: checks before any launch, and the aligned copy of an activation that needs one.

Called by `ops/dense.py` for every call and by `launch.py` for the aligned copy.
Assumes nothing about its arguments; works on fake tensors too, so it looks at no data.
"""

from __future__ import annotations

import functools

import torch
from humming_format.errors import FormatError
from humming_format.text import parse_weight
from humming_format.weight import WeightFormat

from humming_torch.convert.canonical import describe
from humming_torch.errors import ActivationError, UnsupportedError, WeightError
from humming_torch.packed_weight import packed_shapes

ACTIVATION_NAMES: dict[torch.dtype, str] = {torch.float16: "f16", torch.bfloat16: "bf16"}
"""Activations that kernels take."""

OUTPUT_NAMES: dict[torch.dtype, str] = {**ACTIVATION_NAMES, torch.float32: "f32"}
"""Outputs that kernels write: the activation's dtype or f32."""

ALIGNMENT = 16
"""Bytes that an activation's start and its rows are aligned to; K is a multiple of as many bytes."""

K_STEP = 8


@functools.lru_cache(maxsize=1024)
def read_format(text: str) -> WeightFormat:
    """The weight format of a text, as the op's string argument carries it."""
    try:
        return parse_weight(text)
    except FormatError as error:
        raise WeightError("unknown weight format", got=repr(text), hint=str(error)) from error


@functools.lru_cache(maxsize=4096)
def _wanted(text: str, n: int, k: int) -> dict[str, tuple[tuple[int, ...], torch.dtype] | None]:
    if n < 1 or k < 1:
        raise WeightError("a weight has at least one row and one column", got=f"n = {n}, k = {k}")
    return packed_shapes(read_format(text), n, k)


def check_weight(
    weight: torch.Tensor, weight_scale: torch.Tensor, zero_point: torch.Tensor | None, text: str, n: int, k: int
) -> None:
    """Raise WeightError unless the packed tensors fit the format, n and k."""
    wanted = _wanted(text, n, k)
    for name, tensor in (("weight", weight), ("weight_scale", weight_scale), ("zero_point", zero_point)):
        entry = wanted[name]
        if entry is None or tensor is None:
            if entry is not None or tensor is not None:
                raise WeightError(
                    f"{name} of a {text} weight",
                    got="none" if tensor is None else describe(tensor),
                    wanted="none" if entry is None else f"{entry[1]} {list(entry[0])}",
                )
            continue
        shape, dtype = entry
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise WeightError(
                f"{name} does not fit a {text} weight with n = {n}, k = {k}",
                got=f"{describe(tensor)}, strides {tuple(tensor.stride())}",
                wanted=f"{str(dtype).removeprefix('torch.')} {list(shape)}, contiguous{_groups(text, k)}",
                hint="Pack the weight again, or pass the format, n and k it was packed with.",
            )
        if tensor.device != weight.device:
            raise WeightError(
                f"{name} is on another device than the weight", got=str(tensor.device), wanted=str(weight.device)
            )


def _groups(text: str, k: int) -> str:
    scale = read_format(text).scale
    if scale is None or scale.group_k is None:
        return ""
    return f" ({scale.groups_k(k)} groups: k = {k} in groups of {scale.group_k})"


def check_activation(
    activation: torch.Tensor,
    n: int,
    k: int,
    device: torch.device,
    bias: torch.Tensor | None,
    column_order: torch.Tensor | None,
    output_dtype: torch.dtype | None,
) -> None:
    """Raise unless activation, bias, column order and output dtype fit a weight [n, k] on `device`."""
    if activation.dtype not in ACTIVATION_NAMES:
        raise ActivationError(
            "activation of a dtype that no kernel takes",
            got=str(activation.dtype),
            wanted="torch.float16 or torch.bfloat16",
            hint="Cast it, for example activation.to(torch.bfloat16).",
        )
    if activation.ndim != 2 or activation.shape[1] != k:
        raise ActivationError(
            "activation of the wrong shape",
            got=str(list(activation.shape)),
            wanted=f"[m, {k}] for a weight with n = {n}, k = {k}",
        )
    if activation.device != device:
        raise ActivationError(
            "activation and weight are on different devices",
            got=str(activation.device),
            wanted=str(device),
            hint="Move one of them with .to(device).",
        )
    if activation.layout is not torch.strided:
        raise ActivationError("activation is not a strided tensor", got=str(activation.layout), wanted="torch.strided")
    if output_dtype is not None and output_dtype not in (activation.dtype, torch.float32):
        raise ActivationError(
            "output of a dtype that no kernel writes",
            got=str(output_dtype),
            wanted=f"{activation.dtype} or torch.float32",
        )
    if bias is not None and (
        tuple(bias.shape) != (n,) or bias.dtype != activation.dtype or bias.device != device or not bias.is_contiguous()
    ):
        raise ActivationError(
            "bias does not fit",
            got=f"{describe(bias)} on {bias.device}",
            wanted=f"contiguous {str(activation.dtype).removeprefix('torch.')} [{n}] on {device}",
            hint="The bias has the activation's dtype: bias.to(activation.dtype), or layer.to(dtype) for a Linear.",
        )
    if column_order is not None and (
        tuple(column_order.shape) != (k,) or column_order.dtype != torch.int64 or column_order.device != device
    ):
        raise WeightError(
            "column order does not fit", got=f"{describe(column_order)} on {column_order.device}", wanted=f"int64 [{k}]"
        )


def check_output(out: torch.Tensor, m: int, n: int, activation: torch.Tensor) -> None:
    """Raise ActivationError unless `out` can take an [m, n] result."""
    if (
        tuple(out.shape) != (m, n)
        or out.dtype not in (activation.dtype, torch.float32)
        or out.device != activation.device
    ):
        raise ActivationError(
            "out does not fit",
            got=f"{describe(out)} on {out.device}",
            wanted=f"{activation.dtype} or torch.float32 [{m}, {n}] on {activation.device}",
        )
    if out.requires_grad:
        raise ActivationError("out requires grad", wanted="a tensor outside autograd", hint="Pass out.detach().")
    row_stride, column_stride = out.stride()
    if n == 1 or m <= 1:
        overlapping = (column_stride if n > 1 else row_stride if m > 1 else 1) < 1
    else:  # the wider of the two strides must step over all that the narrower one reaches
        (narrow, count), (wide, _) = sorted(((column_stride, n), (row_stride, m)))
        overlapping = narrow < 1 or wide < (count - 1) * narrow + 1
    if overlapping:
        raise ActivationError(
            "entries of out share memory", got=f"strides {out.stride()}", wanted="every entry at its own address"
        )


def aligned_activation(activation: torch.Tensor) -> torch.Tensor:
    """The activation itself where a kernel can read it as it lies, else an aligned copy, zero-padded to K % 8 == 0.

    As it lies: unit stride along K, rows that do not overlap, start and row stride multiples of 16 bytes, K % 8 == 0.
    """
    m, k = activation.shape
    row_stride, column_stride = activation.stride()
    if k % K_STEP == 0:
        if (
            column_stride == 1
            and (m == 1 or (row_stride >= k and row_stride * activation.element_size() % ALIGNMENT == 0))
            and activation.data_ptr() % ALIGNMENT == 0
        ):
            return activation
        return torch.empty((m, k), dtype=activation.dtype, device=activation.device).copy_(activation)
    padded = torch.zeros((m, -(-k // K_STEP) * K_STEP), dtype=activation.dtype, device=activation.device)
    padded[:, :k] = activation
    return padded


def refuse_device(device: torch.device) -> UnsupportedError:
    """The error for a device that has no kernels."""
    return UnsupportedError(
        "no dense kernels for this device", got=str(device), wanted="cuda or cpu", hint="Move layer and activation."
    )
