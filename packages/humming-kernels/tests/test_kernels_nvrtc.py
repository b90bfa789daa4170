"""Every format, every tuning of the heuristic and a sample of what the rules accept compile, for every target.

Run by the nox session `nvrtc`, once for each CUDA version; about a thousand units.
Assumes humming_compile, and an NVRTC that knows the targets of ARCHS.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from humming_compile.request import CompileRequest
from humming_compile.service import CompileService
from humming_compile.settings import Settings
from humming_format.text import parse_weight
from humming_kernels import rules
from humming_kernels.arch import ARCHS, Arch, DeviceFacts
from humming_kernels.components import DECODERS
from humming_kernels.compose import KernelSource, compose
from humming_kernels.config import ComputeConfig, LayerConfig, Pipeline, TuningConfig
from humming_kernels.heuristic import choose, ranges

pytestmark = [pytest.mark.nvrtc, pytest.mark.timeout(1800)]

WEIGHTS = tuple(
    parse_weight(f"{number}{scale}{zero_point}:{scale_number}")
    for number in DECODERS
    for scale in ("g32", "g128", "c")
    for zero_point in (("", "z", "m") if number.startswith("u") else ("",))
    for scale_number in ("f16", "bf16")
)
ACTIVATIONS = ("f16", "bf16")
SAMPLED = 24  # tunings of the sample, for each target


def layers(arch: Arch) -> Iterator[tuple[LayerConfig, ComputeConfig]]:
    """Every format of this file that the rules accept on the target, with the same output as activation."""
    for weight in WEIGHTS:
        for activation in ACTIVATIONS:
            layer = LayerConfig(n=4096, k=4096, weight=weight, bias=weight.zero_point.number is not None)
            compute = ComputeConfig(activation=activation, output=activation)
            if not rules.check_layer(layer, compute, arch):
                yield layer, compute


def units(arch: Arch) -> dict[str, KernelSource]:
    """Each unit once: two sizes of every format, every tuning of a few formats, f32 outputs, sampled tunings."""
    device = DeviceFacts(arch=arch, multiprocessors=108)
    sources: dict[str, KernelSource] = {}

    def add(layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig) -> None:
        source = compose(layer, compute, tuning, arch)
        sources.setdefault(source.unit_text, source)

    for layer, compute in layers(arch):
        for m in (1, 512):
            add(layer, compute, choose(layer, compute, device, m))
    for text in ("u4g128", "u4g32m", "u8c", "e2m1g32"):
        layer = LayerConfig(n=4096, k=4096, weight=parse_weight(text))
        for output in ("f16", "f32"):
            compute = ComputeConfig(activation="f16", output=output)
            for _, _, tuning in ranges(layer, compute, device, 4096):
                add(layer, compute, tuning)
    for layer, compute, tuning in sampled(arch):
        add(layer, compute, tuning)
    return sources


def sampled(arch: Arch) -> Iterator[tuple[LayerConfig, ComputeConfig, TuningConfig]]:
    """Tunings that no heuristic need offer and the rules accept; the same ones at every run."""
    numbers = random.Random(f"tunings of {arch.name}")
    served = list(layers(arch))
    found = 0
    for _ in range(20000):
        layer, compute = numbers.choice(served)
        tuning = TuningConfig(
            block_n=numbers.choice((16, 32, 64, 128, 256)),
            block_m=numbers.choice((8, 16, 24, 32, 64, 128, 256)),
            stage_k=numbers.choice((64, 128, 192)),
            warps_n=numbers.choice((1, 2, 4, 8)),
            warps_m=numbers.choice((1, 2)),
            warps_k=numbers.choice((1, 2, 4, 8)),
            stages=numbers.choice((2, 3, 4, 6)),
            scale_place=numbers.choice(rules.scale_places(layer, compute)),
            raster_m=numbers.choice((1, 4)),
            evict_first=numbers.random() < 0.5,
            split_k=numbers.choice((0, 1, 4)),
            pipeline=numbers.choice(tuple(Pipeline)),
        )
        if not rules.check(layer, compute, tuning, arch):
            yield layer, compute, tuning
            found += 1
            if found == SAMPLED:
                return
    pytest.fail(
        f"the rules accepted {found} of 20000 sampled tunings on {arch.name}; wanted {SAMPLED}: mend the sample"
    )


@pytest.mark.parametrize("arch", ARCHS, ids=[arch.name for arch in ARCHS])
def test_every_unit_compiles(arch: Arch, tmp_path: Path) -> None:
    sources = units(arch)
    requests = [
        CompileRequest(
            unit_text=source.unit_text,
            headers=source.headers,
            target=source.target,
            options=source.options,
            name=source.symbol,
        )
        for source in sources.values()
    ]
    with CompileService(Settings(cache_folder=tmp_path)) as service:
        artifacts = service.compile_many(requests)  # raises the first failure, with its name and NVRTC's log
    assert len(artifacts) == len(sources) >= SAMPLED
    for source, artifact in zip(sources.values(), artifacts, strict=True):
        assert artifact.data.startswith(b"\x7fELF")
        assert source.symbol.encode() in artifact.data
