"""Launch plans and schedules: every stage of every tile once, partial sums side by side, counters that count right.

Run by pytest.
Assumes tests.support.schedule_model, which restates the schedules; the CUDA text itself is compiled for the host and
compared with it where there is a C++ compiler.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from importlib import resources

import attrs
import pytest
from humming_kernels import emit
from humming_kernels.config import Pipeline, TuningConfig
from humming_kernels.errors import KernelError
from humming_kernels.launch import LARGEST_M, recipe
from humming_kernels.rules import LARGEST_K, LARGEST_N
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kernel_cases import MULTISTAGE, SPECIALIZED, layer_of
from tests.support.schedule_model import ScheduleModel

LAYER = layer_of("u4g128")
TUNINGS = {
    "whole": MULTISTAGE,
    "whole_raster": attrs.evolve(MULTISTAGE, raster_m=3),
    "split_2": attrs.evolve(MULTISTAGE, split_k=2),
    "split_3": attrs.evolve(MULTISTAGE, split_k=3, raster_m=8),
    "split_16": attrs.evolve(MULTISTAGE, split_k=16, warps_k=1),
    "stream_k": attrs.evolve(MULTISTAGE, split_k=0),
    "stream_k_2_blocks": attrs.evolve(MULTISTAGE, split_k=0, blocks_per_multiprocessor=2, warps_k=1, raster_m=8),
    "persistent": SPECIALIZED,
    "persistent_raster": attrs.evolve(SPECIALIZED, raster_m=8, stage_k=64),
    "persistent_split_2": attrs.evolve(SPECIALIZED, split_k=2),
    "persistent_stream_k": attrs.evolve(SPECIALIZED, split_k=0, raster_m=4),
    "cluster": attrs.evolve(SPECIALIZED, cluster_k=2, raster_m=2),
}
SHAPES = (
    (1, 1, 8),
    (1, 64, 64),
    (7, 130, 232),
    (17, 464, 704),
    (33, 576, 1536),
    (64, 4096, 128),
    (255, 8192, 8192),
    (300, 192, 576),
    (1024, 1536, 14336),
)
MULTIPROCESSORS = (1, 46, 132)


def launch(tuning: TuningConfig, m: int, n: int, k: int, multiprocessors: int) -> ScheduleModel:
    shape = recipe(LAYER, tuning).plan(m, n, k, multiprocessors)
    return ScheduleModel(tuning=tuning, shape=shape, m=m, n=n, k=k)


def check_launch(model: ScheduleModel) -> None:
    """All laws of one launch."""
    tuning, shape = model.tuning, model.shape
    runs: dict[int, list[tuple[int, int, int, bool]]] = defaultdict(list)
    assert shape.grid >= 1
    for block in range(shape.grid):
        segments = list(model.block(block))
        assert segments, f"block {block} has nothing to do"
        for segment in segments:
            assert 0 <= segment.tile < model.tiles
            assert (segment.tile_n, segment.tile_m) == model.place(segment.tile)
            assert segment.first_stage >= 0
            if segment.stages > 0:
                assert segment.first_stage + segment.stages <= model.stages
            runs[segment.tile].append((segment.first_stage, segment.stages, block, segment.whole))

    # Tiles: every one, and every (feature tile, token tile) once.
    assert sorted(runs) == list(range(model.tiles))
    places = {model.place(tile) for tile in runs}
    assert places == {(tile_n, tile_m) for tile_n in range(model.tiles_n) for tile_m in range(model.tiles_m)}

    # Stages: the runs of a tile follow each other and end at the last stage.
    slots: dict[int, int] = {}
    for tile, parts in runs.items():
        done = 0
        for first, stages, _, whole in sorted(parts):
            if stages > 0:
                assert first == done, f"tile {tile}: stage {done} is done {'twice' if first < done else 'never'}"
                done += stages
            assert not whole or len(parts) == 1
        assert done == model.stages
        if not tuning.is_split:
            assert len(parts) == (2 if tuning.cluster_k == 2 else 1)
            continue
        # Arrivals: the counter of a tile sees each of its blocks once; with one block there is no counter at all.
        blocks = [block for _, _, block, _ in sorted(parts)]
        assert blocks == list(range(model.first_block(tile), model.first_block(tile) + model.contributors(tile)))
        assert (len(parts) == 1) == parts[0][3]
        if len(parts) > 1:
            assert 4 * (tile + 1) <= shape.counter_bytes
            for block in blocks:
                slot = model.workspace_slot(tile, block)
                assert slots.setdefault(slot, tile) == tile, f"slot {slot} serves tiles {slots[slot]} and {tile}"
                assert (slot + 1) * tuning.block_n * tuning.block_m * 4 <= shape.workspace_bytes
    written = sum(len(parts) for parts in runs.values() if len(parts) > 1) if tuning.is_split else 0
    assert len(slots) == written


@pytest.mark.parametrize("name", sorted(TUNINGS))
def test_every_stage_is_done_once(name):
    for m, n, k in SHAPES:
        for multiprocessors in MULTIPROCESSORS:
            check_launch(launch(TUNINGS[name], m, n, k, multiprocessors))


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(TUNINGS)),
    m=st.integers(1, 700),
    n=st.integers(1, 3000),
    k=st.integers(1, 6000).map(lambda eighth: 8 * eighth),
    multiprocessors=st.integers(1, 200),
)
def test_every_stage_of_any_shape_is_done_once(name, m, n, k, multiprocessors):
    check_launch(launch(TUNINGS[name], m, n, k, multiprocessors))


@pytest.mark.parametrize("name", ["whole", "stream_k", "persistent", "persistent_stream_k"])
def test_a_prompt_of_many_tokens(name):
    """75 000 tokens of a 28 672 x 8192 layer: 2.15e9 outputs, past 31 bits, in launches that fit."""
    tuning = attrs.evolve(TUNINGS[name], block_n=128, block_m=128, warps_n=8, warps_k=1)
    check_launch(launch(tuning, 75_000, 28_672, 8192, 132))


@pytest.mark.parametrize("name", sorted(TUNINGS))
def test_work_that_31_bits_cannot_count_is_refused(name):
    with pytest.raises(KernelError, match=r"2\^31 - 1") as caught:
        recipe(LAYER, TUNINGS[name]).plan(LARGEST_M, LARGEST_N, LARGEST_K, 132)
    assert "split the tokens" in str(caught.value)


@pytest.mark.parametrize("m", [0, -1, LARGEST_M + 1])
def test_tokens_that_cannot_be_launched_are_refused(m):
    with pytest.raises(KernelError, match=f"got {m}"):
        recipe(LAYER, TUNINGS["whole"]).plan(m, 64, 64, 132)


@pytest.mark.parametrize("name", sorted(TUNINGS))
def test_the_largest_launch_of_a_range_suffices_for_every_m(name):
    """Stream-K's workspace does not grow steadily with m; what `largest` says holds for each of them."""
    for n, k in ((4096, 14336), (576, 1536)):
        found = recipe(LAYER, TUNINGS[name])
        workspace, counters = found.largest(33, 700, n, k, 108)
        shapes = [found.plan(m, n, k, 108) for m in range(33, 701)]
        assert workspace == max(shape.workspace_bytes for shape in shapes)
        assert counters == max(shape.counter_bytes for shape in shapes)


@pytest.mark.parametrize("name", ["whole", "stream_k", "persistent"])
def test_the_last_launch_that_31_bits_count(name):
    """2^30 tiles of two stages are 2^31 units, one too many; a column of tiles less fits."""
    tuning = attrs.evolve(TUNINGS[name], warps_k=1)
    n, m = tuning.block_n * 2**18, tuning.block_m * 2**12
    one_less = recipe(LAYER, tuning).plan(m, n - tuning.block_n, 2 * tuning.stage_k, 132)
    assert one_less.units_per_tile * 2**12 * (2**18 - 1) == 2**31 - 2**13
    with pytest.raises(KernelError, match=str(2**31)):
        recipe(LAYER, tuning).plan(m, n, 2 * tuning.stage_k, 132)


@pytest.mark.parametrize("name", sorted(TUNINGS))
def test_the_grid_fits_the_device(name):
    """Warp-specialised and Stream-K grids are one wave; others are bounded by CUDA's 2^31 - 1."""
    tuning = TUNINGS[name]
    shape = recipe(LAYER, tuning).plan(1024, 8192, 8192, 132)
    persistent = tuning.pipeline is Pipeline.WARP_SPECIALIZED and tuning.cluster_k == 1 and not tuning.is_split
    if persistent or tuning.split_k == 0:
        assert shape.grid <= 132 * tuning.blocks_per_multiprocessor
    assert shape.grid < 2**31


def test_only_split_launches_need_memory():
    for name, tuning in TUNINGS.items():
        shape = recipe(LAYER, tuning).plan(1, 1024, 8192, 132)
        assert (shape.workspace_bytes > 0) == (shape.counter_bytes > 0) == tuning.is_split, name


def test_a_split_finds_no_block_without_work():
    """split_k is an upper bound: no more blocks than k has stages for all groups of warps."""
    shape = recipe(LAYER, attrs.evolve(MULTISTAGE, split_k=16)).plan(1, 64, 256, 132)
    assert (shape.grid, shape.workspace_bytes) == (1, 0)


HARNESS = """
#include <cstdio>
#define __device__
#define __forceinline__ inline
struct Index { unsigned x; };
static Index blockIdx, gridDim;
#include <humming/schedule/cluster_split.cuh>
#include <humming/schedule/data_parallel.cuh>
#include <humming/schedule/persistent.cuh>
#include <humming/schedule/stream_k.cuh>
using namespace humming::base;
using namespace humming::schedule;

template <class Schedule>
void walk(const DenseArguments& arguments, unsigned grid, unsigned step, bool split) {
  gridDim.x = grid;
  for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x += step) {
    Schedule schedule(arguments);
    Segment s;
    while (schedule.next(s)) {
      long long slot = -1;
      int first = -1, contributors = -1;
      if constexpr (requires { schedule.first_block(0); }) {
        if (split) {
          slot = schedule.workspace_slot(s.tile, blockIdx.x);
          first = schedule.first_block(s.tile);
          contributors = schedule.contributors(s.tile);
        }
      }
      std::printf("%u %d %d %d %d %d %d %lld %d %d\\n", blockIdx.x, s.tile, s.tile_n, s.tile_m, s.first_stage,
                  s.stages, s.whole, slot, first, contributors);
    }
  }
  std::puts("end");
}

int main() {
  int which;
  unsigned grid, step;
  DenseArguments a{};
  while (std::scanf("%d %d %d %d %u %d %d %u", &which, &a.m, &a.n, &a.k, &grid, &a.units_per_tile, &a.units_per_block,
                    &step) == 8) {
    switch (which) {
CASES
    }
  }
}
"""


def schedule_name(tuning: TuningConfig) -> str:
    if tuning.is_split:
        return "StreamK"
    if tuning.cluster_k == 2:
        return "ClusterSplit"
    return "Persistent" if tuning.pipeline is Pipeline.WARP_SPECIALIZED else "DataParallel"


@pytest.fixture(scope="module")
def host_schedules(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The CUDA text of the schedules as a host program; overflow of an int ends it."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("schedules")
    cases, configs = [], []
    for index, tuning in enumerate(TUNINGS.values()):
        configs.append(emit.tuning_initialiser(tuning).replace("kTuning ", f"kTuning{index} "))
        cases.append(
            f"case {index}: walk<{schedule_name(tuning)}<kTuning{index}>>(a, grid, step, "
            f"{str(tuning.is_split).lower()}); break;"
        )
    source = HARNESS.replace("int main", "\n".join(configs) + "\nint main", 1).replace("CASES", "\n".join(cases))
    (folder / "schedules.cpp").write_text(source)
    include = resources.files("humming_kernels").joinpath("include")
    command = [compiler, "-std=c++20", "-O1", "-w", "-fsanitize=undefined", "-fno-sanitize-recover"]
    built = subprocess.run(
        [*command, f"-I{include}", "schedules.cpp", "-o", "schedules"], cwd=folder, capture_output=True, text=True
    )
    if built.returncode != 0 and ("ubsan" in built.stderr or "unrecognized" in built.stderr):
        pytest.skip(f"the C++ compiler is too old or has no sanitizer: {built.stderr[:200]}")
    assert built.returncode == 0, built.stderr
    return str(folder / "schedules")


def test_the_cuda_schedules_do_what_the_model_says(host_schedules):
    models = [
        launch(tuning, m, n, k, multiprocessors)
        for tuning in TUNINGS.values()
        for m, n, k in SHAPES[:-1]
        for multiprocessors in (16, 132)
    ]
    launches = [(model, list(TUNINGS.values()).index(model.tuning), 1) for model in models]
    for model, blocks in zip(models, host_run(host_schedules, launches), strict=True):
        assert blocks == [line for block in range(model.shape.grid) for line in model_lines(model, block)]


def test_the_cuda_schedules_at_the_edge_of_31_bits(host_schedules):
    """Close to 2^31 work units, every 9973rd block: the unsigned arithmetic of the schedules holds."""
    problems = {
        "whole": (2**20, 2**17, 1920),
        "split_16": (2**19 - 16, 2**16, 8192),
        "stream_k": (2**19 - 16, 2**16, 8192),
        "persistent": (2**20, 2**17, 1024),
        "cluster": (2**20, 2**17, 1024),
    }
    models, step = [], 9973
    for name, (m, n, k) in problems.items():
        models.append((launch(TUNINGS[name], m, n, k, 2**20 - 3), list(TUNINGS).index(name), step))
    for (model, _, _), blocks in zip(models, host_run(host_schedules, models), strict=True):
        assert blocks == [line for block in range(0, model.shape.grid, step) for line in model_lines(model, block)]


def model_lines(model: ScheduleModel, block: int) -> list[tuple[int, ...]]:
    lines = []
    for segment in model.block(block):
        extra = (-1, -1, -1)
        if model.tuning.is_split:
            tile = segment.tile
            extra = (model.workspace_slot(tile, block), model.first_block(tile), model.contributors(tile))
        lines.append((block, *attrs.astuple(segment)[:5], int(segment.whole), *extra))
    return lines


def host_run(program: str, launches: list[tuple[ScheduleModel, int, int]]) -> list[list[tuple[int, ...]]]:
    """The lines that the host program prints for each launch."""
    problems = "".join(
        f"{which} {model.m} {model.n} {model.k} {model.shape.grid} {model.shape.units_per_tile} "
        f"{model.shape.units_per_block} {step}\n"
        for model, which, step in launches
    )
    done = subprocess.run([program], input=problems, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("end\n")[:-1]
    assert len(answers) == len(launches)
    return [[tuple(map(int, line.split())) for line in answer.splitlines()] for answer in answers]
