"""The one place that says how large an error may be, and why.

Called by tests/gpu and by benchmarks/.
Assumes a WeightCase and activations on one device; every emulation below runs in float64.

A kernel states one of two operand roundings:

* `accumulator` and `epilogue`: codes go to the tensor cores exactly (every code less its zero point has at most eight
  significant bits) and the scale multiplies f32 sums. Nothing is rounded but the output.
* `operand`: the scale is rounded to the operand type, multiplied onto the weight in registers, and the product is
  rounded once to the operand type (a minimum is added in the same fused operation). Then the output is rounded.
  f16 minimums for a bf16 operand are added in f16, and that sum is rounded once more, to bf16; bf16 minimums for an f16
  operand are added in f32, and only the sum is rounded.

The bound of a result is 1.2 times the error that these roundings alone make, measured on the very same inputs:
||emulated - exact|| / ||exact||. The 0.2 is for the order and width of f32 accumulation.
"""

from __future__ import annotations

import torch

from tests.support.weight_cases import WeightCase

ALLOWANCE = 1.2
SCALE_PLACES = ("accumulator", "epilogue", "operand")


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """||result - exact|| / ||exact||; infinite when any element of the result is not finite."""
    if exact.numel() == 0:
        return 0.0
    error = float(torch.linalg.vector_norm(result.double() - exact) / torch.linalg.vector_norm(exact))
    return error if error == error else float("inf")


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return values.to(dtype).double()


def operand_weight(case: WeightCase, dtype: torch.dtype) -> torch.Tensor:
    """The weight as the tensor cores see it when scales are multiplied onto the operand, float64 [n, k]."""
    if case.minimum is not None and case.minimum.dtype == torch.bfloat16 and dtype == torch.float16:
        return rounded(case.exact(), dtype)
    through_f16 = case.minimum is not None and case.minimum.dtype == torch.float16
    arithmetic = torch.float16 if through_f16 else dtype
    weight = case.unscaled() * case.spread(rounded(case.scale.double(), arithmetic))
    if case.minimum is not None:
        weight = weight + case.spread(rounded(case.minimum.double(), arithmetic))
    return rounded(rounded(weight, arithmetic), dtype)


class Reference:
    """Exact results of one weight and one block of activations, and the bound for any leading rows of them."""

    def __init__(self, case: WeightCase, activation: torch.Tensor, scale_place: str) -> None:
        if scale_place not in SCALE_PLACES:
            raise ValueError(f"scale_place is {scale_place!r}, wanted one of {SCALE_PLACES}")
        bias = 0.0 if case.bias is None else case.bias.double()
        self.output_dtype = activation.dtype
        values = activation.double()
        self.exact = values @ case.exact().t() + bias
        self.emulated = self.exact
        if scale_place == "operand":
            self.emulated = values @ operand_weight(case, activation.dtype).t() + bias

    def bound(self, rows: slice) -> float:
        exact = self.exact[rows]
        return ALLOWANCE * relative_error(rounded(self.emulated[rows], self.output_dtype), exact)

    def error(self, result: torch.Tensor, rows: slice) -> float:
        return relative_error(result, self.exact[rows])
