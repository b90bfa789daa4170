"""Run a composed dense kernel in the emulator: the same KernelSource and launch recipe as on a device, CPU tensors.
Called by tests.
Assumes humming_compile for the PTX and humming_torch's packed tensors; nothing needs a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from humming_compile.request import CompileRequest
from humming_compile.service import default_service
from humming_kernels.compose import KernelSource
from humming_kernels.launch import TENSOR_MAP_OFFSET, pack_arguments
from humming_torch.packed_weight import PackedWeight

from tests.emulator.api import run
from tests.emulator.memory import Memory
from tests.emulator.report import Report


def ptx_request(source: KernelSource) -> CompileRequest:
    return CompileRequest(
        unit_text=source.unit_text,
        headers=source.headers,
        target=source.target,
        options=(*source.options, "-lineinfo"),
        output="ptx",
        name=source.symbol,
    )


def ptx_of(source: KernelSource) -> str:
    """The PTX text of a composed kernel, from humming_compile's cache or NVRTC."""
    return default_service().compile(ptx_request(source)).data.decode()


@dataclass
class DenseRun:
    output: torch.Tensor
    report: Report
    memory: Memory


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a CPU tensor as numpy (bfloat16 as uint16)."""
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def run_dense(
    source: KernelSource,
    packed: PackedWeight,
    activation: torch.Tensor,
    *,
    output_dtype: torch.dtype | None = None,
    multiprocessors: int = 4,
    ptx: str | None = None,
    launches: int = 1,
    counters: np.ndarray | None = None,
    **options,
) -> DenseRun:
    """Launch once (or several times in a row) and return the output, the last report and the memory.

    activation: [m, k] on the CPU. The output has a margin on its right that must stay untouched; workspace is
    uninitialised; counters are checked to be zero again. `options` go to `emulator.run`.
    """
    m, k = activation.shape
    n = packed.n
    output_dtype = output_dtype or activation.dtype
    plan = source.recipe.plan(m, n, k, multiprocessors)
    memory = Memory()
    pointers = {
        "activation": memory.add("activation", as_array(activation)).address,
        "weight": memory.add("weight", as_array(packed.weight)).address,
        "weight_scale": memory.add("weight_scale", as_array(packed.weight_scale)).address,
    }
    for name in ("zero_point", "bias"):
        tensor = getattr(packed, name)
        pointers[name] = 0 if tensor is None else memory.add(name, as_array(tensor)).address
    stride = n + 8
    blank = as_array(torch.zeros((m, stride), dtype=output_dtype))
    output = memory.add("output", blank, "output")
    output.allow_writes(np.arange(stride) < n)
    pointers["output"] = output.address
    words = max(plan.workspace_bytes // 4, 4)
    pointers["workspace"] = memory.add("workspace", np.zeros(words, np.float32), "workspace", initialised=False).address
    zeros = np.zeros(max(plan.counter_bytes // 4, 4), np.int32)
    counter = memory.add("counters", zeros if counters is None else counters, "inout")
    pointers["counters"] = counter.address
    arguments = pack_arguments(
        **pointers,
        activation_stride=k,
        output_stride=stride,
        m=m,
        n=n,
        k=k,
        units_per_tile=plan.units_per_tile,
        units_per_block=plan.units_per_block,
    )
    box = source.recipe.tensor_box
    if box is not None:
        # the tokens as a tensor map with the 128-byte swizzle, after the arguments
        encoded = memory.add_tensor_map(memory["activation"], (k, m), (2 * k,), box, 2, swizzle=128)
        arguments = arguments.ljust(TENSOR_MAP_OFFSET, b"\0") + encoded
    text = ptx_of(source) if ptx is None else ptx
    for _ in range(launches):
        report = run(
            text, source.symbol, plan.grid, source.recipe.threads, source.recipe.shared_bytes, arguments, memory,
            multiprocessors=multiprocessors, **options,
        )  # fmt: skip
    written = output.initialised[output.span].reshape(m, stride, -1)[:, :n] != 0
    if not written.all():
        token, feature, _ = np.argwhere(~written)[0]
        raise AssertionError(
            f"kernel {source.symbol} left {int((~written).sum())} output bytes unwritten, first at token {token}, "
            f"feature {feature}"
        )
    if counter.read().any():
        raise AssertionError(f"kernel {source.symbol} left counters at {counter.read().tolist()}, wanted zeros")
    values = torch.from_numpy(output.read()[:, :n].copy())
    if output_dtype == torch.bfloat16:
        values = values.view(torch.int16).view(torch.bfloat16)
    return DenseRun(values, report, memory)
