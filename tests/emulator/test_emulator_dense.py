"""The composed dense kernels run in the emulator with every checker on, and match the reference.
Run by pytest; the whole support table with `-m nvrtc`.
Assumes NVRTC; no GPU."""

from __future__ import annotations

import attrs
import pytest
import torch

from tests.emulator.dense_cases import ARCHS, TARGETS, DenseCase, Inputs, random_tunings, run_case
from tests.support.weight_cases import FORMAT_TEXTS

ALL = [
    DenseCase(text=text, activation=activation, target=target)
    for text in FORMAT_TEXTS
    for activation in ("f16", "bf16")
    for target in TARGETS
]
SERVED = [case for case in ALL if case.is_served()]
TOKENS = (5, 1, 24, 40, 9, 70)
# One case per format in every run: target, activation and number of tokens take turns.
SAMPLE = [
    attrs.evolve(next(c for c in SERVED[i:] + SERVED if c.text == text), m=TOKENS[j % 6])
    for j, text in enumerate(FORMAT_TEXTS)
    for i in (SERVED.index(next(c for c in SERVED if c.text == text)) + j % 4,)
]


def name(case: DenseCase) -> str:
    return f"{case.text}-{case.activation}-{case.target}-m{case.m}"


@pytest.mark.parametrize("case", SAMPLE, ids=name)
def test_every_format(case):
    run_case(case, profile=False)


@pytest.mark.parametrize("target", [arch.name for arch in ARCHS if arch.name not in TARGETS])
def test_every_other_target(target):
    run_case(DenseCase(text="u4g128z:f16", activation="f16", target=target, m=9), profile=False)


@pytest.mark.nvrtc
@pytest.mark.parametrize("tokens", [5, 40])
@pytest.mark.parametrize("case", SERVED, ids=name)
def test_the_support_table(case, tokens):
    run_case(attrs.evolve(case, m=tokens), profile=False)


TUNED = [
    attrs.evolve(base, tuning=tuning)
    for seed, base in enumerate(
        (
            DenseCase(text="u4g128:f16", activation="f16", target="sm_80", m=37, n=136, k=264),
            DenseCase(text="u8g32z:bf16", activation="bf16", target="sm_90a", m=37, n=136, k=264),
            DenseCase(text="e2m1c:f32", activation="f16", target="sm_75", m=19, n=72, k=264),
            DenseCase(text="u4g32m:f16", activation="f16", target="sm_90a", m=37, n=136, k=264),
        )
    )
    for tuning in random_tunings(5, seed, base.layer, base.compute, base.target)
]


@pytest.mark.parametrize("index", range(len(TUNED)))
def test_any_tuning_that_the_rules_accept(index):
    """Compiles, fits, launches and gives the same result within the bound, in a random order of its blocks."""
    run_case(TUNED[index], profile=False, order=("sequence", "reverse", "interleaved")[index % 3])


def split_case(**fields) -> DenseCase:
    case = DenseCase(text="u4g128:f16", activation="f16", target="sm_80", m=20, n=136, k=520)
    tunings = random_tunings(200, 5, case.layer, case.compute, case.target)
    return attrs.evolve(case, tuning=next(t for t in tunings if t.split_k == 0 and t.block_m == 24), **fields)


def test_the_sum_of_split_tiles_does_not_depend_on_the_order_of_blocks():
    case = split_case()
    inputs = Inputs(case)
    results = [run_case(case, inputs=inputs, order=order).output for order in ("sequence", "reverse", "interleaved")]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_counters_are_ready_for_the_next_launch():
    run_case(split_case(), launches=2)


def test_a_small_gemm_is_quick():
    import time

    case = DenseCase(text="u4g128:f16", activation="f16", target="sm_80")
    inputs, source = Inputs(case), case.source()
    run_case(case, source, inputs)  # compiles and decodes
    start = time.perf_counter()
    report = run_case(case, source, inputs).report
    assert time.perf_counter() - start < 2.0
    assert report.opcode("mma.sync") > 0 and report.opcode("ldmatrix") > 0


def test_weights_come_in_16_byte_copies_without_bank_conflicts():
    case = DenseCase(text="u4g128:f16", activation="f16", target="sm_80", m=16, n=256, k=512)
    report = run_case(case).report
    assert report.wide_fraction("global async load") == 1.0
    assert report.replays("ldmatrix") == 0
    assert report.replays("ld.shared.v4") == 0
