"""How large an error a result may have, and why: output rounding and what the kernel states of its operands.

Called by the quickstart command.
Assumes a bias-free product; everything here is computed in f64.
"""

from __future__ import annotations

import torch
from humming_kernels.config import ScalePlace

from humming_torch.convert.canonical import CanonicalWeight, decode_values

ALLOWANCE = 1.2
"""Room above the error of the roundings alone, for the order and width of f32 sums."""


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """||result - exact|| / ||exact|| in f64; infinite where the result is not finite."""
    error = float(torch.linalg.vector_norm(result.double() - exact) / torch.linalg.vector_norm(exact))
    return error if error == error else float("inf")


def error_limit(
    weight: CanonicalWeight, activation: torch.Tensor, exact: torch.Tensor, place: ScalePlace | None
) -> float:
    """1.2 times the error of rounding the result to the activation's dtype, with operands rounded as the kernel says.

    `place` says where the kernel multiplies the scale; None is the CPU reference, which rounds no operand.
    """
    product = exact
    if place is ScalePlace.OPERAND:
        product = activation.double() @ _operand(weight, activation.dtype).t()
    return ALLOWANCE * relative_error(product.to(activation.dtype), exact)


def _operand(weight: CanonicalWeight, dtype: torch.dtype) -> torch.Tensor:
    """The weight as the tensor cores get it when scales are multiplied onto the operand, in f64.

    Scale (and minimum) in the operand's type, one rounding of their product with the code; with f16 minimums that
    happens in f16, and the sum is rounded once more to the operand's type; bf16 minimums of an f16 operand are added in
    f32, and only the sum is rounded.
    """
    arithmetic = dtype
    if weight.minimum is not None:
        arithmetic = torch.float16 if weight.minimum.dtype == torch.float16 else torch.float32
        if dtype == torch.bfloat16 and weight.minimum.dtype == torch.bfloat16:
            arithmetic = dtype
    values = decode_values(
        weight.codes,
        weight.scale.to(arithmetic),
        weight.zero_point,
        None if weight.minimum is None else weight.minimum.to(arithmetic),
        weight.format,
        dtype=torch.float64,
        group_k=weight.group_k,
    )
    if weight.column_order is not None:
        values = values.index_select(1, torch.argsort(weight.column_order))
    return values.to(arithmetic).to(dtype).double()
