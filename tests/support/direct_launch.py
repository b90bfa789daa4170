"""Runs a dense layer with a TuningConfig of the caller's choice: the same plan and launch, past the heuristic alone.

Called by tests/gpu (any config gives the same result) and by benchmarks (tuning sweeps, --config).
Assumes CUDA wherever something is launched; composing and compiling need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from unittest import mock

import torch
from humming_compile.service import default_service
from humming_kernels.arch import DeviceFacts, arch_of_capability
from humming_kernels.compose import KernelSource, compose
from humming_kernels.config import ComputeConfig, LayerConfig, TuningConfig
from humming_kernels.heuristic import ranges
from humming_torch import plan as plan_module
from humming_torch.packed_weight import PackedWeight
from humming_torch.plan import Plan, RangeSource
from humming_torch.session import compile_request, session_of

from tests.support.weight_cases import TORCH_DTYPES


def device_facts() -> DeviceFacts:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    arch = arch_of_capability(properties.major, properties.minor)
    return DeviceFacts(arch=arch, multiprocessors=properties.multi_processor_count)


def compile_all(sources: Iterable[KernelSource]) -> None:
    """Compiles all sources side by side on every core; later look-ups come from the service's memory."""
    default_service().compile_many([compile_request(source) for source in sources])


def heuristic_sources(
    layers: Iterable[tuple[LayerConfig, ComputeConfig]], max_m: int, device: DeviceFacts
) -> list[KernelSource]:
    """The kernels that the heuristic would use for these layers at up to max_m tokens, each once."""
    sources: dict[str, KernelSource] = {}
    for layer, compute in layers:
        for _, _, tuning in ranges(layer, compute, device, max_m):
            source = compose(layer, compute, tuning, device.arch)
            sources.setdefault(source.unit_text, source)
    return list(sources.values())


def forced_call(
    layer: LayerConfig,
    compute: ComputeConfig,
    tuning: TuningConfig,
    packed: PackedWeight,
    activation: torch.Tensor,
    output: torch.Tensor,
) -> Callable[[], object]:
    """A call of the layer's plan with this one kernel for every M, from `activation` into `output`."""
    source = compose(layer, compute, tuning, device_facts().arch)
    plan = Plan(session_of(torch.device("cuda")), layer, compute, TORCH_DTYPES[compute.output_number])

    def one_kernel(_layer: object, _compute: object, _facts: object, max_m: int) -> tuple[RangeSource, ...]:
        return (RangeSource(last_m=max_m, source=source),)

    with mock.patch.object(plan_module, "range_sources", one_kernel):
        plan.prepare(activation.shape[0])
    return partial(
        plan.run,
        activation,
        packed.weight,
        packed.weight_scale,
        packed.zero_point,
        packed.bias,
        packed.column_order,
        output,
    )
