"""Branches, loops, barriers, warp exchanges, blocks that wait for each other.
Run by pytest.
Assumes the CUDA sources compile with the NVRTC at hand."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.emulator import Fault, Memory, compile_ptx, run
from tests.emulator.snippets import evaluate, run_text

TARGET = "compute_80"


def launch(source, symbol, grid, block, shared, buffers, scalars=(), **options):
    memory = Memory()
    addresses = [memory.add(name, array, role).address for name, array, role in buffers]
    arguments = b"".join(struct.pack("<Q", a) for a in addresses) + b"".join(struct.pack("<i", s) for s in scalars)
    report = run(compile_ptx(source, TARGET), symbol, grid, block, shared, arguments, memory, **options)
    return memory, report


def test_divergent_loops_give_each_lane_its_own_count():
    source = """extern "C" __global__ void collatz(int* out) {
      int x = threadIdx.x + 1, steps = 0;
      while (x != 1) { if (x % 2) x = 3 * x + 1; else x /= 2; ++steps; }
      out[threadIdx.x] = steps; }"""
    memory, _ = launch(source, "collatz", 1, 96, 0, [("out", np.zeros(96, np.int32), "output")])

    def collatz(x):
        steps = 0
        while x != 1:
            x = 3 * x + 1 if x % 2 else x // 2
            steps += 1
        return steps

    assert memory["out"].read().tolist() == [collatz(i + 1) for i in range(96)]


def test_warps_reconverge_after_a_branch():
    """Both sides run once per warp, and what follows runs once, not once per side."""
    text = """.reg .b64 %p; .reg .b32 %t, %v; .reg .pred %q; .reg .b64 %o;
      mov.u32 %t, %tid.x; and.b32 %v, %t, 1; setp.eq.u32 %q, %v, 0;
      @%q bra EVEN; mov.u32 %v, 7; bra JOIN;
      EVEN: mov.u32 %v, 9;
      JOIN: ld.param.u64 %p, [args]; mul.wide.u32 %o, %t, 4; add.s64 %p, %p, %o; st.global.u32 [%p], %v; ret;"""
    report, memory = run_text(text, threads=64, buffers=[("out", np.zeros(64, np.uint32), "output")])
    assert memory["out"].read().tolist() == [9, 7] * 32
    assert report.counts["st.global.u32"] == 2


def test_indexed_branch_and_switch():
    source = """extern "C" __global__ void pick(int* out) { int t = threadIdx.x, v;
      switch (t % 8) { case 0: v = t * 3; break; case 1: v = t ^ 5; break; case 2: v = t - 9; break; case 3: v = -t; break;
        case 4: v = t * t; break; case 5: v = t / 3; break; case 6: v = t << 3; break; default: v = 1000; }
      out[t] = v; }"""
    memory, _ = launch(source, "pick", 1, 64, 0, [("out", np.zeros(64, np.int32), "output")])
    functions = [
        lambda t: t * 3,
        lambda t: t ^ 5,
        lambda t: t - 9,
        lambda t: -t,
        lambda t: t * t,
        lambda t: t // 3,
        lambda t: t << 3,
        lambda t: 1000,
    ]
    assert memory["out"].read().tolist() == [functions[t % 8](t) for t in range(64)]
    text = """.reg .b64 %p, %o; .reg .b32 %t, %v, %i; mov.u32 %t, %tid.x; and.b32 %i, %t, 1; mov.u32 %v, 5;
      TABLE: .branchtargets A, B;
      brx.idx %i, TABLE;
      A: mov.u32 %v, 1; bra OUT;
      B: mov.u32 %v, 2;
      OUT: ld.param.u64 %p, [args]; mul.wide.u32 %o, %t, 4; add.s64 %p, %p, %o; st.global.u32 [%p], %v; ret;"""
    _, memory = run_text(text, buffers=[("out", np.zeros(32, np.uint32), "output")])
    assert memory["out"].read().tolist() == [1, 2] * 16


def test_labels_in_asm_scopes_do_not_clash():
    text = """.reg .b32 %d; mov.u32 %d, 0;
      { .reg .b32 x; .reg .pred p; mov.u32 x, 0; AGAIN: add.u32 x, x, 1; setp.lt.u32 p, x, 3; @p bra AGAIN; add.u32 %d, %d, x; }
      { .reg .b32 x; .reg .pred p; mov.u32 x, 0; AGAIN: add.u32 x, x, 1; setp.lt.u32 p, x, 5; @p bra AGAIN; add.u32 %d, %d, x; }
      """
    assert set(evaluate(text.replace(".reg .b32 %d;", ""), {"d": "b32"}).tolist()) == {8}


def test_shuffles():
    lane = np.arange(32, dtype=np.uint32)
    text = """shfl.sync.bfly.b32 %x|%p, %a, 5, 0x1f, -1; shfl.sync.up.b32 %u|%q, %a, 3, 0, -1;
      shfl.sync.down.b32 %w, %a, 2, 0x1f, -1; shfl.sync.idx.b32 %i, %a, 9, 0x1f, -1; shfl.sync.idx.b32 %s, %a, 1, 0x181f, -1;"""
    out = evaluate(
        text, {"x": "b32", "p": "pred", "u": "b32", "q": "pred", "w": "b32", "i": "b32", "s": "b32"}, a=lane * 10
    )
    assert np.array_equal(out["x"], (lane ^ 5) * 10) and out["p"].all()
    assert np.array_equal(out["u"], np.where(lane >= 3, lane - 3, lane) * 10)
    assert np.array_equal(out["q"], lane >= 3)
    assert np.array_equal(out["w"], np.where(lane + 2 < 32, lane + 2, lane) * 10)
    assert (out["i"] == 90).all()
    assert np.array_equal(out["s"], (lane // 8 * 8 + 1) * 10)  # segments of eight


def test_votes_match_redux_and_elect():
    lane = np.arange(32, dtype=np.uint32)
    text = """.reg .pred %g, %all, %any; setp.lt.u32 %g, %a, 5; vote.sync.ballot.b32 %b, %g, -1;
      vote.sync.all.pred %all, %g, -1; vote.sync.any.pred %any, %g, -1; selp.u32 %c, 1, 0, %all; selp.u32 %d, 1, 0, %any;
      redux.sync.add.s32 %e, %a, -1; redux.sync.max.u32 %f, %a, -1; match.any.sync.b32 %h, %k, -1;
      elect.sync %l|%m, -1; activemask.b32 %n;"""
    out = evaluate(
        text,
        {"b": "b32", "c": "b32", "d": "b32", "e": "b32", "f": "b32", "h": "b32", "l": "b32", "m": "pred", "n": "b32"},
        a=lane,
        k=lane % 3,
    )
    assert (out["b"] == 31).all() and (out["c"] == 0).all() and (out["d"] == 1).all()
    assert (out["e"] == sum(range(32))).all() and (out["f"] == 31).all() and (out["n"] == 0xFFFFFFFF).all()
    assert int(out["h"][1]) == sum(1 << i for i in range(32) if i % 3 == 1)
    assert out["m"].tolist() == [1] + [0] * 31 and (out["l"] == 0).all()


def test_lanes_of_a_collective_wait_for_each_other():
    """A full-mask shuffle reached by two paths: the early lanes wait for the late ones."""
    source = """extern "C" __global__ void late(int* out) { int v = threadIdx.x;
      if (v % 4 == 0) for (int i = 0; i < v; ++i) v += out[64 + (v & 31)];
      __syncwarp(); out[threadIdx.x] = __shfl_xor_sync(~0u, v, 1); }"""
    data = np.zeros(128, np.int32)
    memory, _ = launch(source, "late", 1, 64, 0, [("out", data, "inout")])
    assert memory["out"].read()[:64].tolist() == [t ^ 1 for t in range(64)]


def test_collectives_reached_by_separate_paths_meet():
    """Lanes 0-15 arrive first and wait; lanes 16-31 run straight into the same shuffle later."""
    text = """.reg .b64 %p, %o; .reg .b32 %t, %v, %i; .reg .pred %q; mov.u32 %t, %tid.x; mov.u32 %v, %t; mov.u32 %i, 0;
      setp.lt.u32 %q, %t, 16; @%q bra SHUFFLE;
      LOOP: add.u32 %i, %i, 1; setp.lt.u32 %q, %i, 3; @%q bra LOOP; add.u32 %v, %v, %i;
      SHUFFLE: shfl.sync.bfly.b32 %v, %v, 16, 31, -1;
      ld.param.u64 %p, [args]; mul.wide.u32 %o, %t, 4; add.s64 %p, %p, %o; st.global.u32 [%p], %v; ret;"""
    _, memory = run_text(text, buffers=[("out", np.zeros(32, np.uint32), "output")])
    assert memory["out"].read().tolist() == [t + 16 + 3 for t in range(16)] + list(range(16))


def test_named_barriers_split_producers_and_consumers():
    source = """extern "C" __global__ void pc(int* out) { __shared__ int box[32]; int t = threadIdx.x;
      for (int i = 0; i < 4; ++i) {
        if (t < 32) { if (i) asm volatile("bar.sync 2, 64;" ::: "memory"); box[t] = i * 100 + t; asm volatile("bar.arrive 1, 64;" ::: "memory"); }
        else { asm volatile("bar.sync 1, 64;" ::: "memory"); out[i * 32 + t - 32] = box[(t + 5) & 31]; if (i < 3) asm volatile("bar.arrive 2, 64;" ::: "memory"); }
      } }"""
    memory, _ = launch(source, "pc", 1, 64, 0, [("out", np.zeros(128, np.int32), "output")])
    assert memory["out"].read().tolist() == [i * 100 + (t + 5) % 32 for i in range(4) for t in range(32)]


def test_block_reduction_of_a_predicate():
    source = """extern "C" __global__ void votes(int* out) { int t = threadIdx.x;
      out[t] = __syncthreads_count(t % 3 == 0) * 4 + __syncthreads_or(t == 70) * 2 + __syncthreads_and(t < 95); }"""
    memory, _ = launch(source, "votes", 1, 96, 0, [("out", np.zeros(96, np.int32), "output")])
    assert set(memory["out"].read().tolist()) == {32 * 4 + 2}


def test_barriers_ignore_warps_that_have_exited():
    source = """extern "C" __global__ void leave(int* out) { __shared__ int s[64]; int t = threadIdx.x;
      if (t >= 64) return; s[t] = t; __syncthreads(); out[t] = s[63 - t]; }"""
    memory, _ = launch(source, "leave", 1, 128, 0, [("out", np.zeros(64, np.int32), "output")])
    assert memory["out"].read().tolist() == list(range(63, -1, -1))


def test_ragged_block_sizes():
    source = """extern "C" __global__ void id(int* out) { __syncthreads(); out[threadIdx.x] = threadIdx.y * 100 + blockDim.x; }"""
    memory, _ = launch(source, "id", 1, 45, 0, [("out", np.zeros(45, np.int32), "output")])
    assert memory["out"].read().tolist() == [45] * 45


SPIN = """extern "C" __global__ void chain(int* flags, int* order) {
  // block b waits for block b + 1, so blocks launched in order can only finish the other way round
  if (threadIdx.x == 0 && blockIdx.x + 1 < gridDim.x) { while (atomicAdd(flags + blockIdx.x + 1, 0) == 0) {} }
  __syncthreads();
  if (threadIdx.x == 0) { order[blockIdx.x] = atomicAdd(flags + gridDim.x, 1); __threadfence(); atomicExch(flags + blockIdx.x, 1); } }"""


@pytest.mark.parametrize("order", ["sequence", "reverse", "interleaved"])
def test_a_spinning_block_gives_way(order):
    buffers = [("flags", np.zeros(5, np.int32), "inout"), ("order", np.zeros(4, np.int32), "output")]
    memory, _ = launch(SPIN, "chain", 4, 64, 0, buffers, order=order)
    assert memory["order"].read().tolist() == [3, 2, 1, 0]


def test_spinning_forever_is_a_deadlock():
    source = """extern "C" __global__ void wait(volatile int* flag) { while (flag[0] == 0) {} flag[1] = 1; }"""
    with pytest.raises(Fault, match=r"deadlock(.|\n)*block \(0, 0, 0\)(.|\n)*spin around PTX line"):
        launch(source, "wait", 2, 32, 0, [("flag", np.zeros(2, np.int32), "inout")])


def test_a_barrier_that_not_all_reach_is_a_deadlock():
    text = """.reg .b32 %t; .reg .pred %p; mov.u32 %t, %tid.x; setp.lt.u32 %p, %t, 32;
      @%p bra SKIP; bar.sync 0, 128; SKIP: bar.sync 1, 128; ret;"""
    with pytest.raises(
        Fault, match=r"deadlock(.|\n)*barrier 1 \(32 of 128(.|\n)*|deadlock(.|\n)*barrier 0 \(96 of 128"
    ):
        run_text(text, threads=128)


def test_a_barrier_with_too_many_threads():
    with pytest.raises(Fault, match="128 threads arrive at barrier 3, which expects 64"):
        run_text("bar.sync 3, 64; ret;", threads=128)


def test_atomics_serialise():
    source = """extern "C" __global__ void count(int* c, float* f) { int old = atomicAdd(c, threadIdx.x); atomicAdd(f, 0.5f);
      atomicMax(c + 1, threadIdx.x); atomicCAS(c + 2, 0, threadIdx.x + 1); c[4 + threadIdx.x + 64 * blockIdx.x] = old; }"""
    memory, _ = launch(
        source, "count", 2, 64, 0, [("c", np.zeros(132, np.int32), "inout"), ("f", np.zeros(1, np.float32), "inout")]
    )
    c = memory["c"].read()
    assert c[0] == 2 * sum(range(64)) and c[1] == 63 and c[2] == 1 and memory["f"].read()[0] == 64
    assert c[4:68].tolist() == [sum(range(t)) for t in range(64)]


def test_warp_turns_are_fair_to_a_producer_behind_a_spinner():
    source = """extern "C" __global__ void turn(int* out) { __shared__ volatile int flag; 
      if (threadIdx.x == 0) flag = 0; __syncthreads();
      if (threadIdx.x < 32) { if (threadIdx.x == 0) while (atomicAdd((int*)&flag, 0) == 0) {} out[0] = 1; }
      else if (threadIdx.x == 32) { int v = 0; for (int i = 0; i < 40; ++i) v += out[1]; atomicAdd((int*)&flag, 1 + v); } }"""
    memory, _ = launch(source, "turn", 1, 64, 0, [("out", np.zeros(2, np.int32), "inout")])
    assert memory["out"].read()[0] == 1


def test_faults_name_the_line_of_the_source():
    source = """__device__ __forceinline__ void put(int* p, int v) {
      p[threadIdx.x] = v;
    }
    extern "C" __global__ void place(int* out) {
      put(out + 1, 7);
    }"""
    ptx = compile_ptx(source, TARGET, ("-lineinfo",))
    memory = Memory()
    out = memory.add("out", np.zeros(32, np.int32), "output")
    with pytest.raises(Fault, match=r"source \S*kernel\.cu:2, inlined at \S*kernel\.cu:5"):
        run(ptx, "place", 1, 32, 0, struct.pack("<Q", out.address), memory)
