"""The public package humming-kernels 0.1.20 (import name `humming`), through the layer its description shows.

Called by benchmarks.dense when that package is on the path (benchmarks/README.md says how to fetch it).
Assumes only its documented layer class, its `weight_config` schema and the tensor names that the layer itself lists.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

from tests.support.weight_cases import WeightCase

# Our number names -> the names its schema takes.
NUMBERS = {"u4": "uint4", "u8": "uint8", "e2m1": "float4e2m1", "e0m3": "float4e0m3"}
SCALES = {"f16": "float16", "bf16": "bfloat16"}


def is_present() -> bool:
    return importlib.util.find_spec("humming") is not None


def unsupported(case: WeightCase) -> str | None:
    """Why this peer cannot run the case, or None."""
    weight_format = case.weight_format
    if weight_format.number.name not in NUMBERS:
        return f"no name known for {weight_format.number.name}"
    if weight_format.scale.group_k is None:
        return "channel scales are not set up for this peer"
    if case.zero_point is not None or case.minimum is not None:
        return "stored zero points are not set up for this peer"
    return None


def make_layer(case: WeightCase, activation_dtype: torch.dtype) -> torch.nn.Module:
    """A layer that holds the very codes and scales of `case`."""
    from humming.layer import HummingLayer

    weight_format = case.weight_format
    layer = HummingLayer(
        shape_n=case.n,
        shape_k=case.k,
        weight_config={
            "quant_method": "humming",
            "b_dtype": NUMBERS[weight_format.number.name],
            "bs_dtype": SCALES[weight_format.scale.number.name],
            "weight_scale_group_size": weight_format.scale.group_k,
        },
        torch_dtype=activation_dtype,
    ).cuda()
    layer.load_from_tensors({"weight": packed_words(case), "weight_scale": case.scale})
    layer.transform()
    return layer


def checked_layer(case: WeightCase, activation_dtype: torch.dtype) -> torch.nn.Module:
    """A layer whose result was compared with the exact weights: a peer that computes something else is no peer."""
    from tests.support.error_bounds import relative_error
    from tests.support.weight_cases import make_activation

    layer = make_layer(case, activation_dtype)
    rows = make_activation(16, case.k, activation_dtype)
    error = relative_error(layer(rows), rows.double() @ case.exact().t())
    if not error < 0.01:
        raise ValueError(f"its result is off by {error:.3g} from the same weights, so it was given something else")
    return layer


def packed_words(case: WeightCase) -> torch.Tensor:
    """Codes along k in 32-bit words, lowest bits first: int32 [n, k * bits / 32]."""
    bits = case.weight_format.number.bits
    per_word = 32 // bits
    codes = case.codes.long().view(case.n, case.k // per_word, per_word)
    shifts = torch.arange(per_word, device=codes.device) * bits
    words = (codes << shifts).sum(dim=2)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def matmul(layer: torch.nn.Module, activation: torch.Tensor, output: torch.Tensor) -> Callable[[], object]:
    """One call of its layer, writing into `output`."""
    return lambda: layer(activation, outputs=output)
