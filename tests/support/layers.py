"""From a weight case to a prepared humming_torch layer, and to the configs and tensors below it.

Called by tests/gpu and benchmarks.
Assumes a CUDA device wherever a layer is made; configs need none.
"""

from __future__ import annotations

import torch
from humming_format.text import format_weight, parse_weight
from humming_kernels.config import ComputeConfig, LayerConfig, TuningConfig
from humming_kernels.heuristic import choose
from humming_torch.convert.canonical import CanonicalWeight
from humming_torch.modules import Linear
from humming_torch.pack import pack
from humming_torch.packed_weight import PackedWeight

from tests.support.direct_launch import device_facts
from tests.support.tunings import place_of
from tests.support.weight_cases import WeightCase


def layer_config(text: str, n: int, k: int, *, bias: bool = False) -> LayerConfig:
    return LayerConfig(n=n, k=k, weight=parse_weight(text), bias=bias)


def compute_config(activation: str) -> ComputeConfig:
    return ComputeConfig(activation=activation, output=activation)


def tuning_of(case: WeightCase, activation: str, m: int) -> TuningConfig:
    """What the heuristic takes for m tokens on this device."""
    layer = layer_config(case.text, case.n, case.k, bias=case.bias is not None)
    return choose(layer, compute_config(activation), device_facts(), m)


def scale_place(case: WeightCase, activation: str, m: int) -> str:
    """The operand rounding that the kernel for m tokens states."""
    return place_of(tuning_of(case, activation, m))


def canonical(case: WeightCase) -> CanonicalWeight:
    return CanonicalWeight(
        format=case.weight_format,
        codes=case.codes,
        scale=case.scale,
        zero_point=case.zero_point,
        minimum=case.minimum,
        bias=case.bias,
    )


class LayerUnderTest:
    """A prepared layer; `forward_into` is the call that is tested and timed."""

    def __init__(self, packed: PackedWeight, dtype: torch.dtype, max_m: int) -> None:
        self.packed = packed
        self.module = Linear(packed, dtype=dtype)
        self.module.prepare(max_m)

    def forward_into(self, activation: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return self.module(activation, out=output)


def make_linear(case: WeightCase, dtype: torch.dtype, *, max_m: int) -> LayerUnderTest:
    return LayerUnderTest(pack(canonical(case)), dtype, max_m)


def op_arguments(packed: PackedWeight, activation: torch.Tensor) -> tuple[object, ...]:
    """The arguments that dense_gemm and dense_gemm_out begin with."""
    return (activation, *packed.tensors.values(), format_weight(packed.format), packed.n, packed.k)
