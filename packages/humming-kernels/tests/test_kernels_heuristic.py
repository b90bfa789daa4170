"""The heuristics over all targets, formats, shapes and tokens: valid choices, few kernels, ranges without a gap.

Run by pytest.
Assumes faked numbers of multiprocessors; nothing here asks what is fast.
"""

from __future__ import annotations

import itertools
import time

import pytest
from humming_kernels.arch import ARCHS, Arch, DeviceFacts, find_arch
from humming_kernels.compose import compose
from humming_kernels.config import ComputeConfig, LayerConfig, Pipeline
from humming_kernels.errors import UnsupportedConfigError
from humming_kernels.heuristic import choose, ranges
from humming_kernels.rules import check, check_layer

from tests.support.kernel_cases import MULTIPROCESSORS, WEIGHTS, layer_of

# Square, wide, tall, SmolLM2's, sizes that no tile divides, and the smallest layer there is.
SHAPES = ((4096, 4096), (28672, 8192), (1024, 14336), (192, 576), (130, 232), (464, 704), (8, 8))
MAX_M = 8192
MOST_KERNELS = 10


def walked(arch: Arch) -> list[tuple[LayerConfig, ComputeConfig, DeviceFacts]]:
    """Layers, computations and devices of one target: every weight, with shapes, activations and devices in turn."""
    turns = itertools.cycle(itertools.product(SHAPES, MULTIPROCESSORS[arch.name], ("f16", "bf16")))
    cases = []
    for weight in WEIGHTS:
        for (n, k), multiprocessors, activation in itertools.islice(turns, 1):
            if arch.name == "sm_75":
                activation = "f16"
            layer, compute = layer_of(weight, n, k), ComputeConfig(activation=activation)
            if not check_layer(layer, compute, arch):
                cases.append((layer, compute, DeviceFacts(arch=arch, multiprocessors=multiprocessors)))
    return cases


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_every_choice_runs_and_every_m_has_one(arch):
    cases = walked(arch)
    assert len(cases) == len(WEIGHTS)
    for layer, compute, device in cases:
        found = ranges(layer, compute, device, MAX_M)
        assert found[0][0] == 1 and found[-1][1] == MAX_M
        for (first, last, tuning), following in itertools.zip_longest(found, found[1:]):
            assert first <= last and (following is None or following[0] == last + 1)
            assert following is None or following[2] != tuning
            assert check(layer, compute, tuning, arch) == ()
            assert tuning.pipeline is Pipeline.MULTISTAGE or arch.has("wgmma")
        # One compiled kernel for each text; counts what a layer has to compile before it serves every M.
        symbols = {compose(layer, compute, tuning, arch).unit_text for _, _, tuning in dict.fromkeys(found)}
        assert len(symbols) <= MOST_KERNELS


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_choose_agrees_with_ranges(arch):
    for layer, compute, device in walked(arch)[::17]:
        for first, last, tuning in ranges(layer, compute, device, MAX_M):
            for m in {first, (first + last) // 2, last}:
                assert choose(layer, compute, device, m) == tuning


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_every_choice_can_be_launched(arch):
    """The plan of both ends of each range: a grid, and no more memory than a few tiles for each multiprocessor."""
    for layer, compute, device in walked(arch)[::7]:
        for first, last, tuning in ranges(layer, compute, device, MAX_M):
            recipe = compose(layer, compute, tuning, arch).recipe
            for m in (first, last):
                shape = recipe.plan(m, layer.n, layer.k, device.multiprocessors)
                assert shape.grid >= 1 and shape.workspace_bytes < 2**31
                tiles = -(-layer.n // tuning.block_n) * -(-m // tuning.block_m)
                if shape.workspace_bytes:
                    assert shape.counter_bytes == 4 * tiles


@pytest.mark.parametrize("max_m", [1, 2, 8, 9, 16, 100, 8191, 8192, 8193, 100_000, 2**31 - 1])
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_ranges_end_at_the_bound(name, max_m):
    device = DeviceFacts(arch=find_arch(name), multiprocessors=108)
    layer, compute = layer_of("u4g128"), ComputeConfig(activation="f16")
    found = ranges(layer, compute, device, max_m)
    assert (found[0][0], found[-1][1]) == (1, max_m)
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(found))


def test_the_most_tokens_change_nothing_below_them():
    """Preparing for more tokens keeps every smaller choice: results of a prepared layer do not depend on max_m."""
    device = DeviceFacts(arch=find_arch("sm_90a"), multiprocessors=132)
    layer, compute = layer_of("u4g128"), ComputeConfig(activation="bf16")
    for m in (1, 9, 100, 1000):
        chosen = {
            next(t for first, last, t in ranges(layer, compute, device, max_m) if first <= m <= last)
            for max_m in (m, 2 * m, MAX_M, 10**6)
        }
        assert chosen == {choose(layer, compute, device, m)}


def test_bias_and_output_do_not_change_the_tile():
    device = DeviceFacts(arch=find_arch("sm_90a"), multiprocessors=132)
    for m in (1, 64, 4096):
        tunings = {
            choose(layer_of("u4g128", bias=bias), ComputeConfig(activation="bf16", output=output), device, m)
            for bias in (False, True)
            for output in (None, "f32")
        }
        assert len(tunings) == 1


def test_what_no_kernel_serves_is_refused_with_every_reason():
    device = DeviceFacts(arch=find_arch("sm_75"), multiprocessors=40)
    layer, compute = layer_of("u3t"), ComputeConfig(activation="bf16")
    for call in (lambda: choose(layer, compute, device, 1), lambda: ranges(layer, compute, device, 8)):
        with pytest.raises(UnsupportedConfigError) as caught:
            call()
        assert caught.value.reasons == check_layer(layer, compute, device.arch)
        assert len(caught.value.reasons) == 4


def test_the_choice_follows_the_device():
    """An H20 (78 multiprocessors) and an H100 (132) need different blocks for some layer and some M."""
    layer, compute = layer_of("u4g128", 4096, 4096), ComputeConfig(activation="bf16")
    by_device = [
        ranges(layer, compute, DeviceFacts(arch=find_arch("sm_90a"), multiprocessors=count), MAX_M)
        for count in (78, 132)
    ]
    assert by_device[0] != by_device[1]


def test_choosing_is_quick():
    """A layer of a new shape is planned in much less time than one of its kernels takes to compile."""
    device = DeviceFacts(arch=find_arch("sm_90a"), multiprocessors=131)
    seconds = []
    for n in (4160, 4224, 4288):
        started = time.perf_counter()
        ranges(layer_of("u4g128", n, 4096), ComputeConfig(activation="bf16"), device, MAX_M)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.25
