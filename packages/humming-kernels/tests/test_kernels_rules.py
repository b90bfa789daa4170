"""The rules: every reason can be provoked and is worded for users, several come at once, nothing refused is composed.

Run by pytest.
Assumes that reasons are written in rules.py as texts given to `reasons.append` or put into a tuple of reasons.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import re

import attrs
import pytest
from humming_kernels import rules
from humming_kernels.arch import ARCHS, find_arch
from humming_kernels.compose import compose
from humming_kernels.config import ComputeConfig, LayerConfig, Pipeline, ScalePlace, TuningConfig
from humming_kernels.errors import KernelError, UnsupportedConfigError
from humming_kernels.rules import check, check_layer, check_tuning, estimated_registers, scale_places, stage_sizes

from tests.support.kernel_cases import GROUPS, MULTISTAGE, NUMBERS, SCALES, SPECIALIZED, WEIGHTS, layer_of, many_tunings

LAYER = layer_of("u4g128")
BF16 = ComputeConfig(activation="bf16")
HOPPER = find_arch("sm_90a")


@attrs.frozen(kw_only=True)
class Refused:
    """Configs that cannot run, and the words of the reason."""

    words: str
    layer: LayerConfig = LAYER
    compute: ComputeConfig = BF16
    tuning: TuningConfig = MULTISTAGE
    target: str = "sm_90a"

    def reasons(self) -> tuple[str, ...]:
        return check(self.layer, self.compute, self.tuning, find_arch(self.target))


def tuned(words: str, target: str = "sm_90a", layer: LayerConfig = LAYER, **fields: object) -> Refused:
    return Refused(words=words, tuning=attrs.evolve(MULTISTAGE, **fields), target=target, layer=layer)


def specialized(words: str, target: str = "sm_90a", **fields: object) -> Refused:
    return Refused(words=words, tuning=attrs.evolve(SPECIALIZED, **fields), target=target)


REFUSED = [
    Refused(words="n of a layer must be positive", layer=attrs.evolve(LAYER, n=0)),
    Refused(words="k of a layer must be positive", layer=attrs.evolve(LAYER, k=2**31)),
    Refused(words="operands of 8 bits", layer=attrs.evolve(LAYER, operand_bits=8)),
    Refused(words="no decoder for weights of u3", layer=layer_of("u3g128")),
    Refused(words="no decoder for weights of e4m3", layer=layer_of("e4m3c")),
    Refused(words="got 7 for u4, wanted 8", layer=layer_of("u4g128z7")),
    Refused(words="float zero points", layer=layer_of("u4g128f")),
    Refused(words="two levels of scales", layer=layer_of("e2m1g16:e4m3*t")),
    Refused(words="weights without a scale", layer=layer_of("e2m1")),
    Refused(words="shared along n", layer=layer_of("u4t")),
    Refused(words="shared along n", layer=layer_of("e2m1b128x128")),
    Refused(words="group scales, and channel scales with a minimum, of f32", layer=layer_of("u4g128:f32")),
    Refused(words="channel scales of e4m3", layer=layer_of("u4c:e4m3")),
    Refused(words="scale groups of 24 along k", layer=layer_of("u4g24")),
    Refused(words="scale groups of 80 along k", layer=layer_of("u4g80")),
    Refused(words="minima must have the number", layer=layer_of("u4g32m:f16,f32")),
    Refused(words="activations of e4m3", compute=ComputeConfig(activation="e4m3", output="bf16")),
    Refused(words="has no bf16 matrix multiply; use f16", target="sm_75"),
    Refused(words="outputs of e4m3", compute=ComputeConfig(activation="bf16", output="e4m3")),
    Refused(words="no bf16 arithmetic", compute=ComputeConfig(activation="f16", output="bf16"), target="sm_75"),
    *(tuned(f"{name} must be positive; got 0", **{name: 0}) for name in rules.POSITIVE_FIELDS),
    tuned("2 stages or more; got 1", stages=1),
    tuned("split_k must be 0", split_k=-1),
    tuned("cluster_k is 1 or 2", cluster_k=4),
    tuned("only warp-specialised kernels exchange sums", cluster_k=2),
    tuned("block_n must be 16, 32 or a multiple of 64", block_n=48),
    tuned("block_n must be 16, 32 or a multiple of 64", block_n=96),
    tuned("block_n = 32, warps_n = 4", block_n=32, warps_n=4),
    tuned("block_m must be a multiple of 8 x warps_m", block_m=12),
    tuned("block_m = 24, warps_m = 2", block_m=24, warps_m=2),
    tuned("stage_k must be one of 64, 128 for", stage_k=192),
    tuned("at most 32 warps; got 33", warps_k=33),
    tuned("a barrier each, at most 15; got 16", warps_n=2, warps_k=16, stages=2),
    tuned("scale_place must be one of ACCUMULATOR, OPERAND", scale_place=ScalePlace.EPILOGUE),
    tuned("scale_place must be one of EPILOGUE for u4c", layer=layer_of("u4c")),
    Refused(
        words="is 65536 bytes; this tuning needs",
        compute=ComputeConfig(activation="f16"),
        tuning=attrs.evolve(MULTISTAGE, stages=8),
        target="sm_75",
    ),
    tuned("8 blocks of this tuning need", blocks_per_multiprocessor=8),
    tuned("this tuning needs about", block_n=128, block_m=128, warps_k=1),
    specialized("need wgmma, which sm_80 does not have", target="sm_80"),
    specialized("need wgmma, which sm_100a does not have", target="sm_100a"),
    specialized("got block_n = 64, warps_n = 4", block_n=64, warps_n=4),
    specialized("got warps_k = 4, cluster_k = 1, block_m = 64", warps_k=4),
    specialized("at most 256 tokens; got block_m = 264", block_m=264),
    specialized("multiply group scales onto the operand", scale_place=ScalePlace.ACCUMULATOR),
    Refused(
        words="stages of 64 or 128 k; got stage_k = 192",
        layer=layer_of("u4c"),
        tuning=attrs.evolve(SPECIALIZED, stage_k=192, scale_place=ScalePlace.EPILOGUE),
    ),
    specialized("a cluster halves k and the tokens", cluster_k=2, split_k=2),
    specialized("a cluster halves k and the tokens", cluster_k=2, block_m=24),
]


@pytest.mark.parametrize("case", REFUSED, ids=[case.words for case in REFUSED])
def test_each_reason_is_given_and_nothing_is_composed(case):
    reasons = case.reasons()
    assert sum(case.words in reason for reason in reasons) == 1, reasons
    with pytest.raises(UnsupportedConfigError) as caught:
        compose(case.layer, case.compute, case.tuning, find_arch(case.target))
    assert caught.value.reasons == reasons and isinstance(caught.value, KernelError)


@pytest.mark.parametrize("case", REFUSED, ids=[case.words for case in REFUSED])
def test_reasons_are_for_users(case):
    """One sentence that begins in lower case, with what was found and what to do instead."""
    for reason in case.reasons():
        assert "\n" not in reason and not reason.endswith(".") and "None" not in reason.replace("groups of None", "")
        assert re.search(r"got|wanted|use|lower|need", reason), reason


def reason_patterns() -> list[str]:
    """A regular expression for every reason that rules.py can give, from its source."""
    patterns = []
    for node in ast.walk(ast.parse(inspect.getsource(rules))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "reasons.append":
            (text,) = node.args
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            assert all(isinstance(part, (ast.Constant, ast.FormattedValue)) for part in parts), ast.unparse(text)
            patterns.append("".join(re.escape(p.value) if isinstance(p, ast.Constant) else ".*" for p in parts))
    return patterns


def test_every_reason_in_the_source_is_provoked_here():
    patterns = reason_patterns()
    given = [reason for case in REFUSED for reason in case.reasons()]
    assert len(patterns) > 25
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, reason) for reason in given)] == []


def test_all_reasons_come_at_once():
    layer = LayerConfig(n=-1, k=0, weight=layer_of("u3t").weight, operand_bits=8)
    compute = ComputeConfig(activation="e4m3", output="u4")
    reasons = check_layer(layer, compute, find_arch("sm_75"))
    for words in ("n of", "k of", "8 bits", "u3", "along n", "activations of e4m3", "outputs of u4"):
        assert any(words in reason for reason in reasons), words
    assert len(reasons) == len(set(reasons)) == 7

    tuning = attrs.evolve(MULTISTAGE, block_n=40, block_m=12, stage_k=100, scale_place=ScalePlace.EPILOGUE, cluster_k=3)
    assert len(check_tuning(LAYER, BF16, tuning, HOPPER)) == 5
    tuning = attrs.evolve(MULTISTAGE, block_n=0, warps_k=-1, stages=0, split_k=-2)
    assert len(check_tuning(LAYER, BF16, tuning, HOPPER)) == 4


def test_a_layer_that_nobody_serves_is_refused_before_its_tuning():
    layer = attrs.evolve(LAYER, n=0)
    assert check(layer, BF16, attrs.evolve(MULTISTAGE, stages=0), HOPPER) == check_layer(layer, BF16, HOPPER)


def test_require_raises_with_every_reason():
    layer = attrs.evolve(LAYER, n=0, k=0)
    rules.require(LAYER, BF16, MULTISTAGE, HOPPER)
    with pytest.raises(UnsupportedConfigError) as caught:
        rules.require(layer, BF16, MULTISTAGE, HOPPER)
    assert caught.value.reasons == check(layer, BF16, MULTISTAGE, HOPPER) and len(caught.value.reasons) == 2
    assert str(caught.value) == "; ".join(caught.value.reasons)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.reasons == caught.value.reasons


def test_the_walked_weights_are_all_that_is_served():
    """WEIGHTS, which the compile tests walk, misses no number, group kind, zero point or scale that the rules serve."""
    spellings = {
        f"{number}{group}{zero}:{scale}"
        for number in (
            "u1",
            "u2",
            "u3",
            "u4",
            "u5",
            "u6",
            "u7",
            "u8",
            "s4",
            "s8",
            "e0m1",
            "e0m3",
            "e0m7",
            "e2m1",
            "e4m3",
        )
        for group in (*GROUPS, "t", "b64x64")
        for zero in (("", "z", "m", "f") if number[0] == "u" else ("",))
        for scale in (*SCALES, "e4m3")
    }
    served = {
        text
        for text in spellings
        if not check_layer(layer_of(text), ComputeConfig(activation="bf16"), HOPPER)
        or not check_layer(layer_of(text), ComputeConfig(activation="f16"), HOPPER)
    }
    assert served == set(WEIGHTS)
    assert set(NUMBERS) == set(rules.DECODERS)


@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: arch.name)
def test_activations_and_outputs_of_a_target(arch):
    for activation in ("f16", "bf16"):
        for output in (None, "f16", "bf16", "f32"):
            compute = ComputeConfig(activation=activation, output=output)
            needs_bf16 = "bf16" in (activation, compute.output_number)
            assert (check_layer(LAYER, compute, arch) == ()) == (not needs_bf16 or arch.name != "sm_75")


def test_stage_sizes_hold_whole_groups_or_lie_in_one():
    assert stage_sizes(None) == rules.STAGE_SIZES
    for group in range(1, 1025):
        sizes = [size for size in rules.STAGE_SIZES if (size % group == 0 or group % size == 0) and group % 16 == 0]
        assert list(stage_sizes(group)) == sizes
    assert stage_sizes(32) == (64, 128, 192) and stage_sizes(96) == (192,) and stage_sizes(80) == ()


def test_scale_places_name_the_exact_one_first():
    places = {
        ("u4g128", "bf16"): (ScalePlace.ACCUMULATOR, ScalePlace.OPERAND),
        ("u4g128:bf16", "f16"): (ScalePlace.ACCUMULATOR,),
        ("u4g128m", "bf16"): (ScalePlace.OPERAND,),
        ("u4cm", "bf16"): (ScalePlace.OPERAND,),
        ("u4c", "bf16"): (ScalePlace.EPILOGUE,),
        ("u8cz:f32", "f16"): (ScalePlace.EPILOGUE,),
    }
    for (weight, activation), expected in places.items():
        assert scale_places(layer_of(weight), ComputeConfig(activation=activation)) == expected


def test_the_estimate_grows_with_the_tile():
    small = estimated_registers(LAYER, MULTISTAGE)
    for name, value in (("block_n", 128), ("block_m", 32), ("warps_n", 1)):
        assert estimated_registers(LAYER, attrs.evolve(MULTISTAGE, **{name: value})) >= small
    assert estimated_registers(LAYER, attrs.evolve(MULTISTAGE, scale_place=ScalePlace.OPERAND)) != small


def test_accepted_tunings_fit_the_target():
    """Threads, shared memory and registers of a block, restated from the limits of every compute capability."""
    for arch in ARCHS:
        compute = ComputeConfig(activation="f16")
        for tuning in many_tunings(LAYER, compute, arch):
            source = compose(LAYER, compute, tuning, arch)
            assert source.recipe.threads <= 1024
            assert source.recipe.shared_bytes <= arch.shared_memory
            if tuning.pipeline is Pipeline.MULTISTAGE:
                assert estimated_registers(LAYER, tuning) * source.recipe.threads <= 65536
