"""Operators `humming_torch::dense_gemm` and `dense_gemm_out`: activation [m, k] times the transpose of a packed [n, k].

Called through `torch.ops.humming_torch`, by `Linear` while torch traces, and by `dense` below.
Assumes packed tensors as `PackedWeight` holds them; a call checks everything before it launches or allocates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from humming_torch.checks import check_activation, check_output, check_weight, read_format
from humming_torch.errors import UnsupportedError
from humming_torch.pack import unpack
from humming_torch.packed_weight import PackedWeight
from humming_torch.session import session_of


class Inputs(NamedTuple):
    """The arguments that both operators begin with."""

    activation: torch.Tensor
    weight: torch.Tensor
    weight_scale: torch.Tensor
    zero_point: torch.Tensor | None
    bias: torch.Tensor | None
    column_order: torch.Tensor | None
    format: str
    n: int
    k: int


_SCHEMA = (
    "Tensor activation, Tensor weight, Tensor weight_scale, Tensor? zero_point, Tensor? bias, Tensor? column_order, "
    "str format, int n, int k"
)
_TAGS = (torch.Tag.pt2_compliant_tag,)

_library = torch.library.Library("humming_torch", "DEF")  # type: ignore[no-untyped-call]
_library.define(f"dense_gemm({_SCHEMA}, ScalarType? output_dtype=None) -> Tensor", tags=_TAGS)  # type: ignore[no-untyped-call]
_library.define(f"dense_gemm_out({_SCHEMA}, Tensor(a!) out) -> ()", tags=_TAGS)  # type: ignore[no-untyped-call]


def dense(
    activation: torch.Tensor,
    packed: PackedWeight,
    *,
    output_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """activation [m, k] times the packed weight, plus its bias: [m, n].

    The result has the activation's dtype, or f32 where `output_dtype` says so; or it is written into `out` ([m, n],
    any strides, the activation's dtype or f32), which is returned. Raises a HummingTorchError before any launch when
    something does not fit.
    """
    inputs = Inputs(
        activation=activation,
        weight=packed.weight,
        weight_scale=packed.weight_scale,
        zero_point=packed.zero_point,
        bias=packed.bias,
        column_order=packed.column_order,
        format=packed.text,
        n=packed.n,
        k=packed.k,
    )
    if out is not None:
        torch.ops.humming_torch.dense_gemm_out(*inputs, out)
        return out
    result: torch.Tensor = torch.ops.humming_torch.dense_gemm(*inputs, output_dtype)
    return result


def _checked(arguments: tuple[Any, ...]) -> tuple[Inputs, torch.dtype]:
    """Inputs and output dtype of `dense_gemm`, whose last argument is left out when it has its default."""
    inputs = Inputs(*arguments[:9])
    output_dtype: torch.dtype | None = arguments[9] if len(arguments) > 9 else None
    _check_inputs(inputs, output_dtype)
    return inputs, output_dtype or inputs.activation.dtype


def _checked_out(arguments: tuple[Any, ...]) -> tuple[Inputs, torch.Tensor]:
    """Inputs and `out` of `dense_gemm_out`."""
    inputs = Inputs(*arguments[:9])
    out: torch.Tensor = arguments[9]
    _check_inputs(inputs, None)
    check_output(out, inputs.activation.shape[0], inputs.n, inputs.activation)
    return inputs, out


def _check_inputs(inputs: Inputs, output_dtype: torch.dtype | None) -> None:
    check_weight(inputs.weight, inputs.weight_scale, inputs.zero_point, inputs.format, inputs.n, inputs.k)
    check_activation(
        inputs.activation, inputs.n, inputs.k, inputs.weight.device, inputs.bias, inputs.column_order, output_dtype
    )


def _fake(*arguments: Any) -> torch.Tensor:
    """True n, never the padded width; contiguous."""
    inputs, output_dtype = _checked(arguments)
    return inputs.activation.new_empty((inputs.activation.shape[0], inputs.n), dtype=output_dtype)


def _fake_out(*arguments: Any) -> None:
    _checked_out(arguments)


def _reference(inputs: Inputs, output_dtype: torch.dtype) -> torch.Tensor:
    """f32 product with the dequantized weight, bias added in f32, rounded once to the output's dtype."""
    packed = PackedWeight(
        format=read_format(inputs.format),
        n=inputs.n,
        k=inputs.k,
        weight=inputs.weight,
        weight_scale=inputs.weight_scale,
        zero_point=inputs.zero_point,
        column_order=inputs.column_order,
    )
    result = inputs.activation.to(torch.float32) @ unpack(packed).dequantize().t()
    if inputs.bias is not None:
        result += inputs.bias.to(torch.float32)
    return result.to(output_dtype)


def _cpu(*arguments: Any) -> torch.Tensor:
    return _reference(*_checked(arguments))


def _cpu_out(*arguments: Any) -> None:
    inputs, out = _checked_out(arguments)
    out.copy_(_reference(inputs, out.dtype))


def _cuda(*arguments: Any) -> torch.Tensor:
    inputs, output_dtype = _checked(arguments)
    return _plan_and_run(inputs, output_dtype, None)


def _cuda_out(*arguments: Any) -> None:
    inputs, out = _checked_out(arguments)
    _plan_and_run(inputs, out.dtype, out)


def _plan_and_run(inputs: Inputs, output_dtype: torch.dtype, out: torch.Tensor | None) -> torch.Tensor:
    plan = session_of(inputs.activation.device).plan(
        inputs.format, inputs.n, inputs.k, inputs.activation.dtype, output_dtype, inputs.bias is not None
    )
    return plan.run(
        inputs.activation,
        inputs.weight,
        inputs.weight_scale,
        inputs.zero_point,
        inputs.bias,
        inputs.column_order,
        out,
    )


def _refuse_backward(context: Any, gradient: torch.Tensor) -> None:
    raise UnsupportedError(
        "dense_gemm has no backward",
        got="a gradient for its output",
        wanted="inference",
        hint="Run under torch.no_grad(), or detach the activation.",
    )


torch.library.register_fake("humming_torch::dense_gemm", _fake, lib=_library)
torch.library.register_fake("humming_torch::dense_gemm_out", _fake_out, lib=_library)
torch.library.register_autograd("humming_torch::dense_gemm", _refuse_backward, lib=_library)
_library.impl("dense_gemm", _cpu, "CPU")  # type: ignore[no-untyped-call]
_library.impl("dense_gemm_out", _cpu_out, "CPU")  # type: ignore[no-untyped-call]
_library.impl("dense_gemm", _cuda, "CUDA")  # type: ignore[no-untyped-call]
_library.impl("dense_gemm_out", _cuda_out, "CUDA")  # type: ignore[no-untyped-call]
