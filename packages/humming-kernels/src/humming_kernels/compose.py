"""Three configs and a target -> the text of a CUDA unit and how to launch it.
Called by humming_torch, which compiles the text with humming_compile.
Assumes nothing of the device; what cannot be served is refused by rules.require before any text is written."""

from __future__ import annotations

import attrs

from . import emit
from .arch import Arch
from .components import DECODERS, DENSE_KERNELS
from .config import ComputeConfig, LayerConfig, TuningConfig
from .headers import reached_headers
from .launch import LaunchRecipe, recipe
from .names import dense_symbol
from .rules import require
from .wgmma_header import wgmma_header_name


@attrs.frozen(kw_only=True)
class KernelSource:
    """A unit to compile: its text, the texts of every header that it reaches, and the launch recipe of its symbol."""

    unit_text: str
    headers: dict[str, str]
    symbol: str
    target: str
    options: tuple[str, ...]
    recipe: LaunchRecipe


def compose(layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig, arch: Arch) -> KernelSource:
    """The dense GEMM kernel for these configs. Raises UnsupportedConfigError with every reason.

    The shape of the layer is not part of the text: layers of one format share their kernels.
    """
    require(layer, compute, tuning, arch)
    symbol = dense_symbol(layer, compute, tuning)
    launch = recipe(layer, tuning)
    header, template = DENSE_KERNELS[tuning.pipeline]
    includes = [DECODERS[layer.weight.number.name], header]
    parameters, arguments = ["DenseArguments arguments"], ["arguments"]
    if launch.tensor_box is not None:
        includes.insert(1, wgmma_header_name(tuning.block_m, compute.activation).removeprefix("humming/"))
        parameters.append("TensorMap activation_map")
        arguments.append("activation_map")
    cluster = f"__cluster_dims__({tuning.cluster_k}, 1, 1) " if tuning.cluster_k > 1 else ""
    bounds = f"__launch_bounds__({launch.threads}, {tuning.blocks_per_multiprocessor})"
    unit_text = "\n".join(
        [
            f"// {symbol} for {arch.name}, written by humming_kernels.compose.",
            *(f"#include <humming/{name}>" for name in includes),
            "",
            "namespace {",
            "using namespace humming::base;",
            emit.layer_initialiser(layer),
            emit.compute_initialiser(compute),
            emit.tuning_initialiser(tuning),
            emit.target_initialiser(arch),
            f"using Kernel = humming::kernels::{template}<kLayer, kCompute, kTuning, kTarget>;",
            f'static_assert(Kernel::kThreads == {launch.threads}, "threads differ from the launch recipe");',
            f'static_assert(Kernel::kSharedBytes == {launch.shared_bytes}, "bytes differ from the launch recipe");',
            "}  // namespace",
            "",
            f'extern "C" __global__ void {cluster}{bounds}',
            f"{symbol}({', '.join(f'const __grid_constant__ {parameter}' for parameter in parameters)}) {{",
            f"  Kernel::run({', '.join(arguments)});",
            "}",
            "",
        ]
    )
    return KernelSource(
        unit_text=unit_text,
        headers=reached_headers(unit_text),
        symbol=symbol,
        target=arch.name,
        options=(),
        recipe=launch,
    )
