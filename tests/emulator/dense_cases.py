"""Makes composed dense kernels and their inputs for the emulator, and judges the result.
Called by test_emulator_dense.py and test_emulator_dense_mutants.py.
Assumes the exact values and error bounds of tests.support, which do not come from the code under test."""

from __future__ import annotations

import itertools
import random

import attrs
import torch
from humming_format.text import parse_weight
from humming_kernels.arch import ARCHS, DeviceFacts, find_arch
from humming_kernels.compose import KernelSource, compose
from humming_kernels.config import ComputeConfig, LayerConfig, Pipeline, TuningConfig
from humming_kernels.heuristic import choose
from humming_kernels.rules import check, check_layer, scale_places
from humming_torch.convert.canonical import CanonicalWeight
from humming_torch.pack import pack

from tests.emulator.dense import DenseRun, run_dense
from tests.support.error_bounds import Reference
from tests.support.tunings import place_of
from tests.support.weight_cases import make_activation, make_case

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
TARGETS = ("sm_75", "sm_80", "sm_90a")
MULTIPROCESSORS = 4


@attrs.frozen(kw_only=True)
class DenseCase:
    """One kernel and one ragged problem. `tuning` None: what the heuristic takes."""

    text: str
    activation: str
    target: str
    m: int = 5
    n: int = 72
    k: int = 136
    bias: bool = True
    tuning: TuningConfig | None = None
    multiprocessors: int = MULTIPROCESSORS

    @property
    def layer(self) -> LayerConfig:
        return LayerConfig(n=self.n, k=self.k, weight=parse_weight(self.text), bias=self.bias)

    @property
    def compute(self) -> ComputeConfig:
        return ComputeConfig(activation=self.activation)

    def is_served(self) -> bool:
        return not check_layer(self.layer, self.compute, find_arch(self.target))

    def resolved(self) -> DenseCase:
        if self.tuning is not None:
            return self
        device = DeviceFacts(arch=find_arch(self.target), multiprocessors=self.multiprocessors)
        return attrs.evolve(self, tuning=choose(self.layer, self.compute, device, self.m))

    def source(self) -> KernelSource:
        return compose(self.layer, self.compute, self.resolved().tuning, find_arch(self.target))


class Inputs:
    """Packed weight, activations and the reference of a case."""

    def __init__(self, case: DenseCase) -> None:
        dtype = DTYPES[case.activation]
        weights = make_case(case.text, case.n, case.k, device="cpu", bias_dtype=dtype if case.bias else None)
        self.packed = pack(
            CanonicalWeight(
                format=weights.weight_format, codes=weights.codes, scale=weights.scale, zero_point=weights.zero_point,
                minimum=weights.minimum, bias=weights.bias,
            )
        )  # fmt: skip
        self.activation = make_activation(case.m, case.k, dtype, device="cpu")
        self.reference = Reference(weights, self.activation, place_of(case.resolved().tuning))


def run_case(case: DenseCase, source: KernelSource | None = None, inputs: Inputs | None = None, **options) -> DenseRun:
    """Emulate and compare with the exact result; raises AssertionError beyond the error bound."""
    inputs = inputs or Inputs(case)
    options.setdefault("multiprocessors", case.multiprocessors)
    result = run_dense(source or case.source(), inputs.packed, inputs.activation, **options)
    everything = slice(None)
    error, bound = inputs.reference.error(result.output.double(), everything), inputs.reference.bound(everything)
    if not error <= bound:
        raise AssertionError(f"wrong result: relative error {error:.2e}, bound {bound:.2e}, for {case}")
    return result


def random_tunings(
    count: int, seed: int, layer: LayerConfig, compute: ComputeConfig, target: str
) -> list[TuningConfig]:
    """Different TuningConfigs that the rules accept, small enough to emulate quickly."""
    generator, arch, found = random.Random(seed), find_arch(target), []
    pipelines = list(Pipeline) if arch.has("wgmma") else [Pipeline.MULTISTAGE]
    for _ in itertools.repeat(None, 20000):
        specialized = generator.choice(pipelines) is Pipeline.WARP_SPECIALIZED
        tuning = TuningConfig(
            block_n=128 if specialized else generator.choice((16, 32, 64, 128)),
            block_m=generator.choice((8, 16, 24, 32, 64)),
            stage_k=generator.choice((64, 128, 192)),
            warps_n=8 if specialized else generator.choice((1, 2, 4)),
            warps_m=1 if specialized else generator.choice((1, 2)),
            warps_k=generator.choice((1, 2)) if specialized else generator.choice((1, 2, 3, 4, 8)),
            stages=generator.choice((2, 3, 4)),
            scale_place=generator.choice(scale_places(layer, compute)),
            raster_m=generator.choice((1, 2, 8)),
            evict_first=generator.choice((False, True)) and target != "sm_75",
            split_k=generator.choice((0, 1, 1, 2, 3)),
            pipeline=Pipeline.WARP_SPECIALIZED if specialized else Pipeline.MULTISTAGE,
            cluster_k=generator.choice((1, 2)) if specialized else 1,
        )
        if tuning not in found and not check(layer, compute, tuning, arch):
            found.append(tuning)
            if len(found) == count:
                break
    return found


__all__ = ["ARCHS", "DenseCase", "Inputs", "random_tunings", "run_case"]
