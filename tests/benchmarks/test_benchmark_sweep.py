"""The sweep offers valid configs of every pipeline, and a config survives the way through a row.

Called by pytest; needs no GPU.
Assumes torch, since the modules under test import it.
"""

from __future__ import annotations

import json

import pytest
from humming_kernels.arch import DeviceFacts, find_arch
from humming_kernels.heuristic import choose
from humming_kernels.rules import check

from benchmarks.dense import parse
from benchmarks.sweep import Space, document
from tests.support.layers import compute_config, layer_config
from tests.support.tunings import tuning_from_document


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("m", [1, 16, 100, 4096])
def test_sample_is_valid_and_survives_a_row(target: str, m: int) -> None:
    facts = DeviceFacts(arch=find_arch(target), multiprocessors=132)
    layer, compute = layer_config("u4g128:bf16", 8192, 8192), compute_config("bf16")
    start = choose(layer, compute, facts, m)
    space = Space(layer, compute, facts.arch, m, start)
    sample = space.sample(12)
    assert sample[0] == start
    assert len(sample) == len(set(sample)) == 13
    assert not [reason for tuning in sample for reason in check(layer, compute, tuning, facts.arch)]
    assert {tuning.pipeline for tuning in sample} >= set(space.fields)
    for tuning in sample:
        assert tuning_from_document(json.loads(document(tuning))) == tuning
        near = list(space.neighbours(tuning))
        assert tuning not in near
        assert not [reason for other in near for reason in check(layer, compute, other, facts.arch)]


def test_options_of_the_dense_benchmark() -> None:
    options = parse(["--shapes", "64x128,8x16", "--m", "1,2", "--peers", "none"])
    assert options.shapes == [(64, 128), (8, 16)]
    assert options.m == (1, 2)
    assert options.peers == []
    assert len(parse(["--quick"]).shapes) == 1
