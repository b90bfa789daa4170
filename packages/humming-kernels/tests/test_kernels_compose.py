"""Composed units: deterministic text, complete headers, one symbol per text, no trace of the shape.

Run by pytest.
Assumes many_tunings as a walk over what the rules accept.
"""

import itertools
import re
import subprocess
import sys
import textwrap

import attrs
import pytest
from humming_kernels.arch import ARCHS, find_arch
from humming_kernels.components import DECODERS, DENSE_KERNELS
from humming_kernels.compose import compose
from humming_kernels.config import ComputeConfig, Pipeline
from humming_kernels.errors import UnsupportedConfigError
from humming_kernels.rules import check

from tests.support.kernel_cases import MULTISTAGE, SPECIALIZED, WEIGHTS, layer_of, many_tunings, served

HOPPER = find_arch("sm_90a")
BF16 = ComputeConfig(activation="bf16")
INCLUDE = re.compile(r"#include <(humming/[^>]+)>")


def test_the_same_configs_give_the_same_source():
    first, second = (compose(layer_of("u4g128"), BF16, MULTISTAGE, HOPPER) for _ in range(2))
    assert first == second and list(first.headers) == sorted(first.headers)


def test_the_text_does_not_depend_on_the_process():
    """Another hash seed, another process: the same bytes, so the compile key holds."""
    script = """
        from humming_kernels.arch import find_arch
        from humming_kernels.compose import compose
        from humming_kernels.config import ComputeConfig
        from tests.support.kernel_cases import MULTISTAGE, layer_of
        source = compose(layer_of("u4g128"), ComputeConfig(activation="bf16"), MULTISTAGE, find_arch("sm_90a"))
        import hashlib
        print(hashlib.sha256(repr((source.unit_text, list(source.headers.items()))).encode()).hexdigest())
    """
    digests = {
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("tuning", [MULTISTAGE, SPECIALIZED], ids=["multistage", "warp_specialized"])
def test_the_headers_are_exactly_what_is_reached(tuning):
    source = compose(layer_of("u4g128"), BF16, tuning, HOPPER)
    reached, waiting = set(), INCLUDE.findall(source.unit_text)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += INCLUDE.findall(source.headers[name])
    assert reached == set(source.headers)


def test_a_unit_reaches_only_its_own_family():
    """Editing a Hopper header leaves the key of an Ampere unit alone."""
    ampere = compose(layer_of("u4g128"), BF16, MULTISTAGE, find_arch("sm_80"))
    assert not [name for name in ampere.headers if "wgmma" in name or "/sm90/" in name]
    for number, header in DECODERS.items():
        source = compose(layer_of(f"{number}g128"), BF16, MULTISTAGE, HOPPER)
        others = {f"humming/{other}" for other in DECODERS.values()} - {f"humming/{header}"}
        assert f"humming/{header}" in source.headers and not others & set(source.headers)


@pytest.mark.parametrize("tuning", [MULTISTAGE, SPECIALIZED], ids=["multistage", "warp_specialized"])
def test_kernels_do_not_depend_on_the_shape(tuning):
    sources = {
        (source.unit_text, source.symbol, source.recipe)
        for n, k in ((4096, 4096), (130, 232), (1, 8), (28672, 75000))
        for source in [compose(layer_of("u4g128", n, k), BF16, tuning, HOPPER)]
    }
    assert len(sources) == 1


def test_different_units_have_different_symbols():
    """Over formats, activations, outputs, biases and tunings of a target: one symbol never names two texts."""
    texts: dict[str, str] = {}
    tunings = list(
        dict.fromkeys(
            tuning
            for weight in ("u4g128", "u4g64m", "u8c:f32")
            for tuning in itertools.islice(many_tunings(layer_of(weight), BF16, HOPPER), 0, None, 5)
        )
    )
    for weight, activation, output, bias in itertools.product(WEIGHTS, ("f16", "bf16"), ("bf16", "f32"), (False, True)):
        layer, compute = layer_of(weight, bias=bias), ComputeConfig(activation=activation, output=output)
        for tuning in tunings if weight in ("u4g128:f16", "u8g64z:bf16") else tunings[::25]:
            if check(layer, compute, tuning, HOPPER):
                continue
            source = compose(layer, compute, tuning, HOPPER)
            assert re.fullmatch(r"[A-Za-z_]\w*", source.symbol), source.symbol
            assert len(source.symbol) <= 128
            assert texts.setdefault(source.symbol, source.unit_text) == source.unit_text, source.symbol
    assert len(texts) > 1000


@pytest.mark.parametrize("tuning", [MULTISTAGE, SPECIALIZED], ids=["multistage", "warp_specialized"])
def test_any_field_that_changes_the_text_changes_the_symbol(tuning):
    layer = layer_of("u4g128")
    source = compose(layer, BF16, tuning, HOPPER)
    changed = {
        "block_n": (16, 128),
        "block_m": (8, 32, 128),
        "stage_k": (64,),
        "warps_n": (2,),
        "warps_m": (2,),
        "warps_k": (2, 8),
        "stages": (3, 4),
        "raster_m": (2, 8),
        "evict_first": (True,),
        "split_k": (0, 2, 3),
        "blocks_per_multiprocessor": (2,),
        "cluster_k": (2,),
        "scale_place": tuple(type(tuning.scale_place)),
        "pipeline": tuple(Pipeline),
    }
    assert set(changed) == {field.name for field in attrs.fields(type(tuning))}
    tried = 0
    for name, values in changed.items():
        for value in values:
            other = attrs.evolve(tuning, **{name: value})
            try:
                changed_source = compose(layer, BF16, other, HOPPER)
            except UnsupportedConfigError:
                continue
            tried += 1
            assert (changed_source.unit_text == source.unit_text) == (changed_source.symbol == source.symbol), name
    assert tried >= 8


def test_the_unit_says_what_the_recipe_says():
    for tuning in (MULTISTAGE, SPECIALIZED, attrs.evolve(SPECIALIZED, cluster_k=2)):
        source = compose(layer_of("u4g128"), BF16, tuning, HOPPER)
        text = source.unit_text
        header, template = DENSE_KERNELS[tuning.pipeline]
        assert f"#include <humming/{header}>" in text and f"humming::kernels::{template}<" in text
        assert text.count(f"{source.symbol}(const __grid_constant__ DenseArguments arguments") == 1
        assert f"__launch_bounds__({source.recipe.threads}, 1)" in text
        assert (
            f"kThreads == {source.recipe.threads}" in text and f"kSharedBytes == {source.recipe.shared_bytes}" in text
        )
        assert ("TensorMap activation_map" in text) == (source.recipe.tensor_box is not None)
        assert ("__cluster_dims__(2, 1, 1)" in text) == (tuning.cluster_k == 2)
        assert source.target == "sm_90a" and source.options == ()


def test_every_served_weight_is_composed_on_every_target():
    """What rules list, compose writes: WEIGHTS x activations x targets, with a tuning that fits all of them."""
    composed = 0
    for arch, weight, activation in itertools.product(ARCHS, WEIGHTS, ("f16", "bf16")):
        layer, compute = layer_of(weight), ComputeConfig(activation=activation)
        tuning = next(iter(many_tunings(layer, compute, arch)), None) if served(weight, activation, arch) else None
        if tuning is None:
            assert not served(weight, activation, arch), (arch.name, weight, activation)
            continue
        assert compose(layer, compute, tuning, arch).target == arch.name
        composed += 1
    assert composed > 1000
