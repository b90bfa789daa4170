"""One weight from its file to a cubin and a result, through all four packages and with no GPU.

Run by pytest.
Assumes NVRTC (in wheels) and the little checkpoint of tests/support/tiny_gptq.py, whose codes and scales are known.
"""

from pathlib import Path

import pytest
import torch
from humming_compile.request import CompileRequest
from humming_compile.service import CompileService
from humming_compile.settings import Settings
from humming_format.checkpoint import read_checkpoint
from humming_format.checkpoint.entry import LayerEntry
from humming_format.text import format_weight
from humming_kernels.arch import DeviceFacts, find_arch
from humming_kernels.compose import compose
from humming_kernels.config import ComputeConfig, LayerConfig
from humming_kernels.heuristic import ranges
from humming_torch import Linear
from humming_torch.convert import read_layer
from humming_torch.pack import pack, unpack

from tests.support.tiny_gptq import GROUP, SYMMETRIC_ZERO, K, N, make_codes, make_scales, write_tiny_gptq


@pytest.fixture
def entry(tmp_path: Path) -> LayerEntry:
    (layer,) = read_checkpoint(write_tiny_gptq(tmp_path / "model")).quantized
    return layer


@pytest.fixture
def exact_weight() -> torch.Tensor:
    """[n, k] in float64, from the numbers that the maker wrote and none of the code under test."""
    scales = torch.tensor(make_scales(), dtype=torch.float64).repeat_interleave(GROUP, dim=1)
    return (torch.tensor(make_codes(), dtype=torch.float64) - SYMMETRIC_ZERO) * scales


def test_file_to_canonical_to_packed_is_exact(entry: LayerEntry, exact_weight: torch.Tensor) -> None:
    assert entry.weight is not None and format_weight(entry.weight) == "u4g128"
    canonical = read_layer(entry)
    assert torch.equal(canonical.dequantize(torch.float64), exact_weight)
    packed = pack(canonical)
    assert (packed.n, packed.k) == (N, K)
    assert torch.equal(unpack(packed).dequantize(torch.float64), exact_weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_layer_computes_what_the_file_says(
    entry: LayerEntry, exact_weight: torch.Tensor, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(7)
    activation = torch.randn(17, K, generator=generator, dtype=torch.float64).to(dtype)
    output = Linear(pack(read_layer(entry)), dtype=dtype)(activation)
    exact = activation.double() @ exact_weight.T
    assert output.dtype == dtype and output.shape == (17, N)
    rounding = torch.finfo(dtype).eps / 2
    # The weight is rounded to the activation's type before the product, the result after it; both in the 2-norm.
    assert (output.double() - exact).norm() <= 2.5 * rounding * exact.norm()


def test_its_kernels_compile_for_a_gpu_that_is_not_here(entry: LayerEntry, tmp_path: Path) -> None:
    assert entry.weight is not None
    device = DeviceFacts(arch=find_arch("sm_90a"), multiprocessors=132)
    layer = LayerConfig(n=entry.n, k=entry.k, weight=entry.weight)
    compute = ComputeConfig(activation="f16", output="f16")
    tunings = {tuning for _, _, tuning in ranges(layer, compute, device, 256)}
    sources = [compose(layer, compute, tuning, device.arch) for tuning in tunings]
    requests = [
        CompileRequest(unit_text=source.unit_text, headers=source.headers, target=source.target, options=source.options)
        for source in sources
    ]
    with CompileService(Settings(cache_folder=tmp_path / "cache")) as service:
        artifacts = service.compile_many(requests)
        again = service.compile_many(requests)
    assert len(artifacts) >= 1
    for source, artifact in zip(sources, artifacts, strict=True):
        assert artifact.data.startswith(b"\x7fELF") and artifact.origin == "compiled"
        assert source.symbol.encode() in artifact.data
    assert {artifact.origin for artifact in again} == {"memory"}
