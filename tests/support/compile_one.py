"""Composes and compiles one dense kernel with the installed packages, as a user's program would.

Called by the wheels session as `python tests/support/compile_one.py`, to show that the wheels hold the CUDA headers.
Assumes NVRTC; no GPU and no PyTorch.
"""

import sys

from humming_compile.request import CompileRequest
from humming_compile.service import CompileService
from humming_format.text import parse_weight
from humming_kernels.arch import DeviceFacts, find_arch
from humming_kernels.compose import compose
from humming_kernels.config import ComputeConfig, LayerConfig
from humming_kernels.heuristic import choose


def main() -> None:
    device = DeviceFacts(arch=find_arch("sm_90a"), multiprocessors=132)
    layer = LayerConfig(n=4096, k=4096, weight=parse_weight("u4g128"))
    compute = ComputeConfig(activation="bf16", output="bf16")
    source = compose(layer, compute, choose(layer, compute, device, 16), device.arch)
    request = CompileRequest(
        unit_text=source.unit_text, headers=source.headers, target=source.target, options=source.options
    )
    with CompileService() as service:
        artifact = service.compile(request)
    sys.stdout.write(f"{source.symbol}: {len(artifact.data)} bytes for {source.target}, {artifact.origin}\n")


if __name__ == "__main__":
    main()
