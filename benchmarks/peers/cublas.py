"""The vendor library: torch.mm in the activation's own type, on the dequantized weight.

Called by benchmarks.dense and benchmarks.launch.
Assumes that torch dispatches a 16-bit mm to cuBLAS, which it does on every NVIDIA GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def matmul(weight: torch.Tensor, activation: torch.Tensor, output: torch.Tensor) -> Callable[[], object]:
    """One call of torch.mm into `output`; `weight` is [n, k] as a layer holds it."""
    transposed = weight.t()
    return lambda: torch.mm(activation, transposed, out=output)
