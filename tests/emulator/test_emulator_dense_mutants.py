"""Mutation tests: one edit of a header of a composed kernel, and the emulator names the mistake.
Run by pytest.
Assumes each edited text stands exactly once in its header; a test that cannot find it asks to be brought up to date."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

from __future__ import annotations

import re

import attrs
import pytest
from humming_kernels.config import Pipeline, ScalePlace, TuningConfig

from tests.emulator import Fault
from tests.emulator.dense_cases import DenseCase, Inputs, run_case

# Several warps per group, several groups, three stages, tiles split along k, blocks with several segments.
SHARED_GROUP = TuningConfig(
    block_n=64,
    block_m=16,
    stage_k=64,
    warps_n=2,
    warps_m=1,
    warps_k=2,
    stages=3,
    scale_place=ScalePlace.ACCUMULATOR,
    split_k=0,
)
CASE = DenseCase(text="u4g64z:f16", activation="f16", target="sm_80", m=13, n=136, k=520, tuning=SHARED_GROUP)
# Two blocks only, so that a block has whole tiles, and more than one.
WHOLE = attrs.evolve(CASE, multiprocessors=2)
RAGGED = attrs.evolve(WHOLE, n=134)
WIDE = attrs.evolve(CASE, tuning=attrs.evolve(SHARED_GROUP, block_n=128))
LONE_WARPS = attrs.evolve(CASE, tuning=attrs.evolve(SHARED_GROUP, block_n=32, warps_n=1, warps_k=4))
PLAIN = attrs.evolve(CASE, target="sm_75")
SPECIALIZED = attrs.evolve(
    CASE,
    target="sm_90a",
    n=200,
    tuning=TuningConfig(
        block_n=128, block_m=16, stage_k=64, warps_n=8, warps_m=1, warps_k=1, stages=3, scale_place=ScalePlace.OPERAND,
        split_k=0, pipeline=Pipeline.WARP_SPECIALIZED,
    ),
)  # fmt: skip
CLUSTER = attrs.evolve(SPECIALIZED, tuning=attrs.evolve(SPECIALIZED.tuning, split_k=1, cluster_k=2))

MULTISTAGE, REDUCE, ARRIVAL = "pipeline/multistage.cuh", "epilogue/reduce.cuh", "epilogue/arrival.cuh"
STAGE, TILE, SHAPE = "copy/dense_stage.cuh", "mma/mma_sync_tile.cuh", "base/shape.cuh"
WGMMA, RING, BULK, REGISTER = (
    "kernels/dense_wgmma.cuh",
    "pipeline/ring.cuh",
    "copy/bulk_stage.cuh",
    "epilogue/register_tile.cuh",
)
EXCHANGE, MEMORY = "epilogue/cluster_exchange.cuh", "arch/sm75/memory.cuh"

# name: (case, header, text, replacement, kinds of fault, a word of the message)
MUTANTS = {
    "no barrier before a stage is used": (
        CASE, MULTISTAGE, "      synchronize(group);\n", "", "shared race|missing wait|uninitialised shared", "barrier"),
    "no warp barrier before a stage is used": (
        LONE_WARPS, MULTISTAGE, "      __syncwarp();\n", "", "shared race", "bar.warp.sync"),
    "plain stores instead of copies, no barrier": (
        PLAIN, MULTISTAGE, "      synchronize(group);\n", "", "shared race|uninitialised shared", "barrier"),
    "the barrier comes before the wait": (
        CASE, MULTISTAGE, "      Copier::template wait<kStages - 2>();\n      synchronize(group);\n",
        "      synchronize(group);\n      Copier::template wait<kStages - 2>();\n", "shared race|missing wait", ""),
    "one group too many left in flight": (
        CASE, MULTISTAGE, "wait<kStages - 2>()", "wait<kStages - 1>()", "missing wait", "cp.async"),
    "a stage is filled while it is read": (
        CASE, MULTISTAGE, "int free_slot = kStages - 1;", "int free_slot = 0;", "missing wait|shared race|uninitialised shared", ""),
    "no commit": (
        CASE, MULTISTAGE, "      Copier::commit();\n      use(slot);", "      use(slot);", "missing wait", "cp.async"),
    "sums overwrite the ring": (
        CASE, REDUCE, "      __syncthreads();  // the ring, or the slice before, has been read\n", "", "shared race", "no barrier between"),
    "sums are read before they are written": (
        CASE, REDUCE, "      write_slice(sums, slice);\n      __syncthreads();\n", "      write_slice(sums, slice);\n",
        "shared race|uninitialised shared", "barrier"),
    "the next tile fills shared memory too early": (
        WHOLE, REDUCE, "      __syncthreads();  // shared memory may be filled again\n", "", "shared race", "was read by warp"),
    "arrival before the partial sums": (
        CASE, ARRIVAL, "  __threadfence();\n  synchronize();\n  if (leader)", "  if (leader)",
        "shared race|uninitialised shared|uninitialised global|global race", ""),
    "the leader arrives before the other warps have written": (
        CASE, ARRIVAL, "  __threadfence();\n  synchronize();\n  if (leader)", "  __threadfence();\n  if (leader)",
        "shared race|global race|uninitialised global", ""),
    "the last block reads before its leader has arrived": (
        CASE, ARRIVAL, "  synchronize();\n  const bool last", "  const bool last", "shared race|uninitialised shared", "barrier"),
    "an arrival that orders nothing": (
        CASE, MEMORY, "atom.add.acq_rel.gpu.global.s32", "atom.add.relaxed.gpu.global.s32", "global race", "no release and acquire"),
    "the counter stays": (
        CASE, ARRIVAL, "    if (arrived == contributors - 1) *counter = 0;\n", "", "assertion", "left counters at"),
    "one contributor too few": (
        CASE, ARRIVAL, "if (arrived == contributors - 1)", "if (arrived == contributors)", "assertion", "left counters at"),
    "one token too many is stored": (
        WHOLE, REDUCE, "global_token < arguments.m &&", "global_token <= arguments.m &&", "out of bounds", "past the end of output"),
    "four features are stored where three are left": (
        RAGGED, "epilogue/store.cuh", "      if (feature + 4 <= arguments.n && is_aligned(output, 8)) {", "      if (is_aligned(output, 8)) {",
        "write outside output", "must not be written"),
    "k is not bounded": (
        CASE, STAGE, "first_k + column * 8 < arguments.k", "first_k + column * 8 <= arguments.k", "out of bounds|assertion", ""),
    "strips are not bounded": (
        WIDE, STAGE, "const bool valid = strip < strips_left && brick < bricks_left;", "const bool valid = true;", "out of bounds", "past the end of weight"),
    "a wrong swizzle": (
        CASE, STAGE, "(column ^ (row % 8)) * 16", "(column ^ (row % 4)) * 16", "assertion|uninitialised shared", ""),
    "a wrong lane of ldmatrix": (
        CASE, TILE, "lane / 8) ^ (lane % 8)", "lane / 8) ^ (lane % 8 / 2)", "assertion|uninitialised shared", ""),
    "the second ring begins too late": (
        CASE, "kernels/dense.cuh", "group * Shape::kRingBytes", "group * (Shape::kRingBytes + 128)", "out of bounds", "past the end"),
    # Hopper
    "a consumer does not wait for its stage": (
        SPECIALIZED,
        WGMMA,
        "ring.wait_full(); load(values, ring.stage, weight_offset, line_value); #pragma unroll 1",
        "load(values, ring.stage, weight_offset, line_value);\n#pragma unroll 1",
        "missing wait|uninitialised shared",
        "wait",
    ),
    "the producer does not wait for an empty stage": (
        SPECIALIZED, WGMMA, "        ring.wait_empty();\n", "", "missing wait|shared race|mbarrier misuse", ""),
    "a stage is released while its product runs": (
        SPECIALIZED, WGMMA, "            if (batch == 0 && used != 0 && lane == 0) arch::sm90::mbarrier_arrive(used);",
        "", "deadlock|missing wait|assertion", ""),
    "no wait for the product before": (
        SPECIALIZED, WGMMA, "arch::sm90::wgmma_wait<1>(); if (batch == 0", "if (batch == 0", "missing wait", "in flight"),
    "sums are stored before the product is done": (
        SPECIALIZED, WGMMA, "arch::sm90::wgmma_wait_sums(sums);", "", "missing wait", "in flight"),
    "no wgmma fence": (
        SPECIALIZED, WGMMA, "          arch::sm90::wgmma_fence();\n", "", "missing fence", "wgmma.fence"),
    "barriers are used before they are shown": (
        SPECIALIZED, WGMMA, "__syncthreads(); // Waited for", "// Waited for", "mbarrier misuse|shared race", "mbarrier"),
    "a barrier expects one warp more": (
        SPECIALIZED, WGMMA, "ring.initialise(kParts, Shape::kGroupWarps);", "ring.initialise(kParts, Shape::kGroupWarps + 1);",
        "deadlock", "arrivals missing"),
    "too few bytes are expected": (
        SPECIALIZED, BULK, "mbarrier_arrive_expect(barrier, Shape::kActivationBytes);", "mbarrier_arrive_expect(barrier, Shape::kActivationBytes - 128);",
        "deadlock|missing wait", ""),
    "the parity of the ring does not turn": (
        SPECIALIZED, RING, "      parity ^= 1;\n", "", "deadlock|missing wait|mbarrier misuse", ""),
    "the descriptor steps 16 bytes": (
        SPECIALIZED, "mma/wgmma_tile.cuh", "kStepOffset = 32 / 16", "kStepOffset = 16 / 16", "assertion", "wrong result"),
    "the descriptor names the 64-byte swizzle": (
        SPECIALIZED, "mma/wgmma_tile.cuh", "(1ull << 62)", "(2ull << 62)", "assertion|uninitialised shared", ""),
    "one token too many by registers": (
        SPECIALIZED, REGISTER, "arguments.m - first_token - lane / 4;", "arguments.m - first_token - lane / 4 + 1;",
        "out of bounds", "past the end of output"),
    "no wait for the other block's sums": (
        CLUSTER, EXCHANGE, "    while (!arch::sm90::mbarrier_try_wait(barrier, 0)) {\n    }\n", "", "missing wait|uninitialised shared|cluster lifetime", ""),
    "no barrier of the cluster": (
        CLUSTER, WGMMA, "if constexpr (kCluster) arch::sm90::cluster_wait();", "", "mbarrier misuse|shared race|cluster lifetime", ""),
    "the other block's barrier is not fenced": (
        CLUSTER, WGMMA, "arch::sm90::fence_barrier_init();", "", "shared race", "mbarrier"),
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs():
    cache = {}

    def get(case):
        key = (case.m, case.n, case.k, case.tuning.scale_place)
        if key not in cache:
            cache[key] = Inputs(case)
        return cache[key]

    return get


@pytest.mark.parametrize(
    "case",
    [CASE, WHOLE, RAGGED, WIDE, LONE_WARPS, PLAIN, SPECIALIZED, CLUSTER],
    ids=["group", "whole", "ragged", "wide", "warps", "plain", "wgmma", "cluster"],
)
def test_the_kernels_themselves_are_sound(case, inputs):
    run_case(case, inputs=inputs(case), profile=False)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant(name, inputs):
    case, header, text, replacement, kinds, word = MUTANTS[name]
    source = case.source()
    path = f"humming/{header}"
    pattern = r"\s+".join(re.escape(word) for word in text.split())  # any white space between the words
    found = len(re.findall(pattern, source.headers[path]))
    assert found == 1, f"{path} holds {text!r} {found} times, wanted once: bring this mutant up to date"
    headers = {**source.headers, path: re.sub(pattern, lambda _: replacement, source.headers[path])}
    with pytest.raises((Fault, AssertionError)) as caught:
        run_case(case, attrs.evolve(source, headers=headers), inputs(case), profile=False)
    message = str(caught.value)
    kind = caught.value.kind if isinstance(caught.value, Fault) else "assertion"
    assert kind in kinds.split("|"), message
    assert word in message, message
    if isinstance(caught.value, Fault):
        for part in ("kernel humming_dense", "block (", "PTX line"):
            assert part in message, message
