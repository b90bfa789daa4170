"""Launches one composed kernel with a TuningConfig of the caller's choice, past the heuristic and the torch op.

Called by tests/gpu (any config gives the same result) and by benchmarks (tuning sweeps).
Assumes CUDA, packed tensors as humming_kernels.packed_layout describes them, and activations that need no copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from humming_compile.module import ArgumentBuffer, Function, load_function
from humming_compile.request import CompileRequest
from humming_compile.service import default_service
from humming_kernels.arch import DeviceFacts, arch_of_capability
from humming_kernels.compose import KernelSource, compose
from humming_kernels.config import ComputeConfig, LayerConfig, TuningConfig
from humming_kernels.heuristic import ranges
from humming_kernels.launch import pack_arguments
from humming_torch.packed_weight import PackedWeight


def device_facts() -> DeviceFacts:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    arch = arch_of_capability(properties.major, properties.minor)
    return DeviceFacts(arch=arch, multiprocessors=properties.multi_processor_count)


def request_of(source: KernelSource) -> CompileRequest:
    return CompileRequest(
        unit_text=source.unit_text,
        headers=source.headers,
        target=source.target,
        options=source.options,
        name=source.symbol,
    )


def compile_all(sources: Iterable[KernelSource]) -> list[bytes]:
    """Cubins of all sources, compiled side by side on every core; what is cached already is not compiled."""
    return [artifact.data for artifact in default_service().compile_many([request_of(source) for source in sources])]


def compose_for(layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig, facts: DeviceFacts) -> KernelSource:
    return compose(layer, compute, tuning, facts.arch)


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


class DirectKernel:
    """One kernel with one TuningConfig, ready to launch on any shape of its format."""

    def __init__(
        self,
        layer: LayerConfig,
        compute: ComputeConfig,
        tuning: TuningConfig,
        facts: DeviceFacts,
        cubin: bytes | None = None,
    ) -> None:
        self.layer, self.compute, self.tuning, self.facts = layer, compute, tuning, facts
        self.source = compose(layer, compute, tuning, facts.arch)
        data = compile_all([self.source])[0] if cubin is None else cubin
        self.function: Function = load_function(data, self.source.symbol, torch.cuda.current_device())
        self.function.allow_shared_bytes(self.source.recipe.shared_bytes)

    def bind(self, tensors: PackedWeight, activation: torch.Tensor, output: torch.Tensor) -> BoundKernel:
        return BoundKernel(self, tensors, activation, output)


class BoundKernel:
    """A kernel with its pointers filled in; calling it enqueues one launch on the current stream."""

    def __init__(
        self, kernel: DirectKernel, tensors: PackedWeight, activation: torch.Tensor, output: torch.Tensor
    ) -> None:
        m = activation.shape[0]
        layer, recipe = kernel.layer, kernel.source.recipe
        plan = recipe.plan(m, layer.n, activation.shape[1], kernel.facts.multiprocessors)
        device = activation.device
        # Held for as long as launches may run. The workspace is poisoned; kernels leave the counters at zero.
        self.workspace = torch.full((max(plan.workspace_bytes, 16),), 0xFF, dtype=torch.uint8, device=device)
        self.counters = torch.zeros((max(plan.counter_bytes, 16),), dtype=torch.uint8, device=device)
        self.kept: Sequence[torch.Tensor | None] = (
            tensors.weight,
            tensors.weight_scale,
            tensors.zero_point,
            tensors.bias,
            activation,
            output,
        )
        self.grid = (plan.grid, 1, 1)
        self.threads, self.shared_bytes = recipe.threads, recipe.shared_bytes
        self.function = kernel.function
        self.arguments = ArgumentBuffer.from_bytes(
            pack_arguments(
                units_per_tile=plan.units_per_tile,
                activation=activation.data_ptr(),
                weight=tensors.weight.data_ptr(),
                weight_scale=tensors.weight_scale.data_ptr(),
                zero_point=0 if tensors.zero_point is None else tensors.zero_point.data_ptr(),
                bias=0 if tensors.bias is None else tensors.bias.data_ptr(),
                output=output.data_ptr(),
                workspace=self.workspace.data_ptr(),
                counters=self.counters.data_ptr(),
                activation_stride=activation.stride(0),
                output_stride=output.stride(0),
                m=m,
                n=layer.n,
                k=activation.shape[1],
                units_per_block=plan.units_per_block,
            )
        )

    def __call__(self) -> None:
        self.function.launch(
            self.grid, self.threads, self.shared_bytes, torch.cuda.current_stream().cuda_stream, self.arguments
        )
