"""mbarrier, bulk and tensor copies, wgmma, clusters: whole kernels against numpy, layouts against plain loops.
Run by pytest.
Assumes NVRTC for compute_90a."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from tests.emulator import EmulatorError, Fault, Memory, compile_ptx, run
from tests.emulator.hopper_kernels import BULK, CLUSTER, REGISTERS, RING
from tests.emulator.instructions.wgmma import chunk_addresses
from tests.emulator.pictures import timeline
from tests.emulator.snippets import run_text
from tests.emulator.tensor_map import swizzle_address

TARGET = "compute_90a"


def bf16(rng, shape):
    values = torch.from_numpy(rng.standard_normal(shape)).bfloat16()
    return values.view(torch.int16).numpy().view(np.uint16), values.double().numpy()


def run_ring(source=RING, n=72, m=5, k=264, **options):
    rng = np.random.default_rng(1)
    (w, w_values), (x, x_values) = bf16(rng, (n, k)), bf16(rng, (m, k))
    memory = Memory()
    w_buffer, x_buffer = memory.add("w", w), memory.add("x", x)
    out = memory.add("out", np.zeros((m, n), np.float32), "output")
    maps = b"".join(
        memory.add_tensor_map(buffer, (k, rows), (2 * k,), (64, box), 2, swizzle=128)
        for buffer, rows, box in ((w_buffer, n, 64), (x_buffer, m, 16))
    )
    arguments = maps + struct.pack("<Qiii", out.address, m, n, k)
    arguments = arguments.ljust(320, b"\0")
    report = run(
        compile_ptx(source, TARGET), "ring", -(-n // 64), 160, 3 * (64 + 16) * 128 + 64, arguments, memory, **options
    )
    return report, out.read(), x_values @ w_values.T


def test_a_ring_of_tensor_copies_feeds_wgmma():
    report, got, exact = run_ring()
    assert np.abs(got - exact).max() <= 2e-6 * np.abs(exact).max() * 10
    assert report.opcode("wgmma.mma_async") == 2 * 5 * 4 * 4  # blocks x steps x k16 x warps
    assert report.opcode("cp.async.bulk.tensor") == 2 * 5 * 2
    for order in ("reverse", "interleaved"):
        assert np.array_equal(run_ring(order=order)[1], got)


def test_a_timeline_shows_producer_and_consumers():
    report, _, _ = run_ring(timeline=True)
    text = timeline(report, compile_ptx(RING, TARGET), "ring")
    rows = [line for line in text.splitlines() if line.startswith("warp")]
    consumers = "".join(r for r in rows if r.startswith("warp  0"))
    producer = "".join(r for r in rows if r.startswith("warp  4"))
    assert consumers.count("M") == 5 and producer.count("C") == 5 and "M" not in producer and "C" not in consumers


def run_registers(source=REGISTERS, **options):
    rng = np.random.default_rng(2)
    (w, w_values), (x, x_values) = bf16(rng, (64, 32)), bf16(rng, (16, 32))
    memory = Memory()
    addresses = [memory.add("w", w).address, memory.add("x", x).address]
    out = memory.add("out", np.zeros((16, 64), np.float32), "output")
    run(
        compile_ptx(source, TARGET),
        "registers",
        1,
        128,
        1024,
        struct.pack("<QQQ", *addresses, out.address),
        memory,
        **options,
    )
    return out.read(), x_values @ w_values.T


def test_wgmma_with_a_in_registers_and_b_from_ordinary_stores():
    got, exact = run_registers()
    assert np.abs(got - exact).max() <= 1e-5


def run_cluster(source=CLUSTER, **options):
    memory = Memory()
    data = np.arange(16 * 32, dtype=np.int32).reshape(16, 32)
    source_buffer = memory.add("in", data)
    target = memory.add("target", np.zeros((8, 32), np.int32), "output")
    sums = memory.add("sums", np.zeros((4, 64), np.int32), "output")
    arguments = memory.add_tensor_map(source_buffer, (32, 16), (128,), (32, 8), 4, swizzle=0)
    arguments += memory.add_tensor_map(target, (32, 8), (128,), (32, 2), 4, swizzle=0)
    arguments = (arguments + struct.pack("<Q", sums.address)).ljust(320, b"\0")
    run(compile_ptx(source, TARGET), "pair", 4, 64, 2048 + 64, arguments, memory, **options)
    return data, sums.read(), target.read()


@pytest.mark.parametrize("order", ["sequence", "reverse", "interleaved"])
def test_a_cluster_multicasts_exchanges_and_stores_by_tensor_map(order):
    data, sums, target = run_cluster(order=order)
    for block in range(4):
        tile = data[block // 2 * 8 : block // 2 * 8 + 8].reshape(-1)[:64]
        assert np.array_equal(sums[block], tile + (block % 2 ^ 1))
        assert np.array_equal(target[block * 2 : block * 2 + 2].reshape(-1), 2 * sums[block])


RELAXED = CLUSTER.replace(
    "fence_init(); }\n  cluster_arrive();",
    'fence_init(); }\n  __syncthreads(); asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");',
)


def test_a_relaxed_arrival_shows_fenced_mbarriers_and_nothing_else():
    assert RELAXED != CLUSTER
    run_cluster(RELAXED)
    with pytest.raises(Fault, match="mbarrier"):
        run_cluster(RELAXED.replace("init(bar + 8, 1); fence_init();", "init(bar + 8, 1);"))


def run_bulk(source=BULK, count=7, **options):
    memory = Memory()
    data = np.arange(count * 256, dtype=np.int32).reshape(count, 256)
    source_buffer = memory.add("in", data)
    out = memory.add("out", np.zeros(256, np.int32), "output")
    arguments = struct.pack("<QQi", source_buffer.address, out.address, count).ljust(24, b"\0")
    report = run(compile_ptx(source, TARGET), "bulk", 1, 96, 2048 + 64, arguments, memory, **options)
    return report, out.read(), data.sum(axis=0)


def test_bulk_copies_through_a_ring():
    report, got, exact = run_bulk()
    assert np.array_equal(got, exact)
    assert report.bytes["global async load"] == 7 * 1024


GATHER = """.reg .b64 %p, %o, %q, %w; .reg .b32 %s, %b, %t, %a, %v; .reg .pred %c, %d;
  mov.u64 %q, dyn; cvt.u32.u64 %s, %q; add.u32 %b, %s, 1024; mov.u32 %t, %tid.x; ld.param.u64 %p, [args]; ld.param.u64 %o, [args+8];
  setp.eq.u32 %c, %t, 0; @%c mbarrier.init.shared::cta.b64 [%b], 32; bar.sync 0;
  setp.ge.u32 %c, %t, 32; @%c bra CONSUMER;
  mul.wide.u32 %w, %t, 16; add.s64 %w, %p, %w; shl.b32 %a, %t, 4; add.u32 %a, %s, %a;
  cp.async.cg.shared.global [%a], [%w], 16; {arrive} ret;
  CONSUMER: {wait} {fence} setp.eq.u32 %c, %t, 32;
  @%c cp.async.bulk.global.shared::cta.bulk_group [%o], [%s], 512; @%c cp.async.bulk.commit_group; @%c cp.async.bulk.wait_group.read 0; ret;"""
GATHERED = {
    "arrive": "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%b];",
    "wait": "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %d, [%b], 0; @!%d bra AGAIN;",
    "fence": "fence.proxy.async;",
}


def run_gather(**edits):
    data = np.arange(128, dtype=np.uint32)
    buffers = [("data", data, "input"), ("out", np.zeros(128, np.uint32), "output")]
    _, memory = run_text(GATHER.format(**{**GATHERED, **edits}), threads=64, shared_bytes=1040, buffers=buffers)
    return data, memory["out"].read()


def test_copies_that_arrive_on_an_mbarrier():
    data, got = run_gather()
    assert np.array_equal(got, data)
    with pytest.raises(Fault, match=r"missing fence(.|\n)*cp\.async"):
        run_gather(fence="")
    with pytest.raises(Fault, match=r"deadlock(.|\n)*64 of 32|deadlock(.|\n)*arrivals missing"):
        run_gather(arrive="setp.lt.u32 %c, %t, 31; @%c " + GATHERED["arrive"])
    with pytest.raises(Fault, match=r"(missing wait|uninitialised shared)"):
        run_gather(wait="")


# --- layouts, from plain loops --------------------------------------------------------------------------------


def plain_swizzle(address, width):
    """XOR written with divisions: chunk number in its row of `width` bytes, and the row's number in its 1024, 512, 256 bytes."""
    if not width:
        return address
    chunks = width // 16
    row_of_128 = address // 128
    low, chunk, high = address % 16, address // 16 % chunks, address // width
    return high * width + (chunk ^ (row_of_128 % chunks)) * 16 + low


@pytest.mark.parametrize("width", [0, 32, 64, 128])
def test_swizzles(width):
    addresses = np.arange(0, 4096)
    assert [plain_swizzle(int(a), width) for a in addresses] == swizzle_address(addresses, width).tolist()
    assert sorted(swizzle_address(addresses, width).tolist()) == addresses.tolist()


@pytest.mark.parametrize("width", [0, 32, 64, 128])
def test_tensor_copies_place_every_element(width):
    """A 2-d copy with negative and far coordinates; the shared bytes are read back with the plain formula."""
    inner = 8 if width == 0 else width // 2
    data = np.arange(1, 1 + 24 * 80, dtype=np.uint16).reshape(24, 80)
    memory = Memory()
    buffer = memory.add("data", data)
    out = memory.add("out", np.zeros(16 * inner, np.uint16), "output")
    encoded = memory.add(
        "map", np.frombuffer(memory.add_tensor_map(buffer, (80, 24), (160,), (inner, 16), 2, swizzle=width), np.uint8)
    )
    size = 16 * inner * 2
    body = f""".reg .b64 %m, %o, %q; .reg .b32 %s, %b, %t, %i, %v; .reg .pred %p, %d;
      mov.u64 %q, dyn; cvt.u32.u64 %s, %q; add.u32 %b, %s, {size}; mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 0;
      ld.param.u64 %m, [args]; ld.param.u64 %o, [args+8];
      @%p mbarrier.init.shared::cta.b64 [%b], 1; bar.sync 0;
      @%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {size};
      @%p cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s], [%m, {{-3, 15}}], [%b];
      AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %d, [%b], 0; @!%d bra AGAIN;
      mov.u32 %i, 0;
      LOOP: .reg .b64 %w; .reg .b32 %a; add.u32 %a, %s, %i; ld.shared.u32 %v, [%a]; cvt.u64.u32 %w, %i; add.s64 %w, %o, %w;
      @%p st.global.u32 [%w], %v; add.u32 %i, %i, 4; setp.lt.u32 %d, %i, {size}; @%d bra LOOP; ret;"""
    from tests.emulator.snippets import module

    run(
        module(body, parameters=16),
        "snippet",
        1,
        32,
        size + 16,
        struct.pack("<QQ", encoded.address, out.address),
        memory,
    )
    got = out.read()
    for row in range(16):
        for column in range(inner):
            y, x = 15 + row, column - 3
            wanted = data[y, x] if 0 <= x < 80 and y < 24 else 0
            assert got[plain_swizzle((row * inner + column) * 2, width) // 2] == wanted


def test_tensor_map_rules():
    memory = Memory()
    buffer = memory.add("data", np.zeros((8, 40), np.uint16))
    for arguments, word in (
        (((40, 8), (80,), (12, 8), 2), "multiple of 16 bytes"),
        (((40, 9), (80,), (8, 8), 2), "past data"),
        (((40, 8), (88,), (8, 8), 2), "strides must be multiples of 16"),
        (((40, 8), (80,), (8, 300), 2), "1 to 256"),
    ):
        with pytest.raises(EmulatorError, match=word):
            memory.add_tensor_map(buffer, *arguments)


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_wgmma_descriptors_k_major(code):
    """Element (row, byte of k) by the ISA's core matrices: 8 rows of 16 bytes, swizzled inside the row pitch."""
    width = {0: 0, 1: 128, 2: 64, 3: 32}[code]
    start, leading, stride = 4096, 2048, 1024
    descriptor = start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | code << 62
    addresses = chunk_addresses(descriptor, 24, False, 16)
    for row in range(24):
        for chunk in range(2):
            core_row, group = row % 8, row // 8
            plain = (
                start + group * stride + (core_row * width + chunk * 16 if width else core_row * 16 + chunk * leading)
            )
            assert addresses[row, chunk] == plain_swizzle(plain, width)


def test_wgmma_descriptors_mn_major_are_the_transpose():
    """A tile written as k rows of 64 MN elements with 128-byte swizzle reads back as its transpose."""
    width, start, stride, leading = 128, 1024, 1024, 4096
    descriptor = start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 62
    addresses = chunk_addresses(descriptor, 128, True, 16)
    for k in range(16):
        for chunk in range(16):
            plain = start + chunk // 8 * leading + k // 8 * stride + k % 8 * width + chunk % 8 * 16
            assert addresses[k, chunk] == plain_swizzle(plain, width)


WGMMA = {
    "e4m3": ("m64n8k32.f32.e4m3.e4m3", ", 1, 1", torch.float8_e4m3fn),
    "s8": ("m64n8k32.s32.s8.s8", "", torch.int8),
    "f16": ("m64n8k16.f32.f16.f16", ", 1, 1, 0, 0", torch.float16),
}


@pytest.mark.parametrize("name", sorted(WGMMA))
def test_wgmma_types_from_shared(name):
    """A [64, k] and B [8, k] copied by ordinary stores, unswizzled core matrices."""
    shape, rest, dtype = WGMMA[name]
    rng = np.random.default_rng(3)
    size = torch.empty(0, dtype=dtype).element_size()
    k = 32 // size
    values = rng.integers(-5, 6, (72, k)) if name == "s8" else rng.standard_normal((72, k))
    tensor = torch.from_numpy(values).to(dtype)
    exact = tensor.double().numpy()
    raw = tensor.view(torch.int8).numpy().reshape(72, 32)
    # core matrices of 8 rows x 16 bytes: [row group][chunk][row][16]
    core = raw.reshape(9, 8, 2, 16).transpose(0, 2, 1, 3).copy().reshape(-1)
    body = """.reg .b64 %p, %q, %o, %da, %db, %w; .reg .b32 %s, %t, %a, %i; .reg .pred %true, %l; .reg .b32 %x, %y, %z, %u; .reg .b32 %d0, %d1, %d2, %d3;
      mov.u64 %q, dyn; cvt.u32.u64 %s, %q; mov.u32 %t, %tid.x; ld.param.u64 %p, [args]; ld.param.u64 %o, [args+8];
      mov.u32 %i, %t;
      LOOP: mul.wide.u32 %w, %i, 16; add.s64 %w, %w, %p; shl.b32 %a, %i, 4; add.u32 %a, %a, %s; ld.global.v4.u32 {%x, %y, %z, %u}, [%w];
      st.shared.v4.u32 [%a], {%x, %y, %z, %u}; add.u32 %i, %i, 128; setp.lt.u32 %l, %i, 144; @%l bra LOOP;
      fence.proxy.async; bar.sync 0;
      cvt.u64.u32 %da, %s; shr.u64 %da, %da, 4; or.b64 %da, %da, 0x1000080000; add.s64 %db, %da, 128;
      mov.u32 %d0, 0; mov.u32 %d1, 0; mov.u32 %d2, 0; mov.u32 %d3, 0; setp.eq.u32 %true, %s, %s;
      wgmma.fence.sync.aligned;
      wgmma.mma_async.sync.aligned.SHAPE {%d0, %d1, %d2, %d3}, %da, %db, %trueREST;
      wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
      mul.wide.u32 %w, %t, 16; add.s64 %w, %w, %o; st.global.v4.u32 [%w], {%d0, %d1, %d2, %d3}; ret;"""
    body = body.replace("SHAPE", shape).replace("REST", rest)
    out_type = np.int32 if name == "s8" else np.float32
    _, memory = run_text(
        body,
        threads=128,
        shared_bytes=72 * 32,
        buffers=[("data", core, "input"), ("out", np.zeros((128, 4), out_type), "output")],
    )
    got = memory["out"].read()
    wanted = exact[:64] @ exact[64:].T
    for thread in range(128):
        for i in range(4):
            row, column = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2), 2 * (thread % 4) + i % 2
            assert abs(got[thread, i] - wanted[row, column]) <= (0 if name == "s8" else 1e-5)


# --- faults ------------------------------------------------------------------------------------------------------

EDITS = [
    # (which kernel, text, replacement, kind, part of the message)
    (run_ring, RING, "wait(full, round & 1);", "", "missing wait|uninitialised shared", "wgmma"),
    (run_ring, RING, "wait(full, round & 1);", "wait(full, round & 1 ^ 1);", "missing wait|uninitialised shared", "wgmma"),
    (run_ring, RING, "if (round > 0) wait(full + 8, (round - 1) & 1);", "", "missing wait", "cp.async.bulk.tensor"),
    (run_ring, RING, "wgmma_wait<0>();\n    if", "if", "missing wait", "still being read asynchronously"),
    (run_ring, RING, "    wgmma_fence();\n", "", "missing fence", "no wgmma.fence"),
    (run_ring, RING, "fence_init();\n  }\n  __syncthreads();", "fence_init();\n  }", "mbarrier misuse|shared race", "mbarrier"),
    (run_ring, RING, "expect(full, kBytes);", "expect(full, kBytes + 16);", "deadlock", "16 transaction bytes outstanding"),
    (run_ring, RING, "init(bars + 16 * i + 8, 4)", "init(bars + 16 * i + 8, 5)", "deadlock", "arrivals missing"),
    (run_ring, RING, "init(bars + 16 * i + 8, 4)", "init(bars + 16 * i + 8, 3)", "mbarrier misuse|missing wait", ""),
    (run_ring, RING, "c < args.m", "c <= args.m", "out of bounds", "past the end of out"),
    (run_registers, REGISTERS, "  fence_async();\n", "", "missing fence", "no fence.proxy.async"),
    (run_registers, REGISTERS, "  fence_async();\n  __syncthreads();", "  fence_async();", "shared race|uninitialised shared", "barrier"),
    (run_registers, REGISTERS, "  wgmma_wait<0>();\n  for", "  for", "missing wait", "is read while the wgmma that writes it is in flight"),
    (run_registers, REGISTERS, "  wgmma_fence();\n", "", "missing fence", "written by another instruction"),
    (run_cluster, CLUSTER, "  cluster_arrive(); cluster_wait();\n  if (t == 0) {", "  __syncthreads();\n  if (t == 0) {", "mbarrier misuse|shared race", "mbarrier"),
    (run_cluster, CLUSTER, "  wait(bar + 8, 0);\n", "", "missing wait|uninitialised shared", "wait"),
    (run_cluster, CLUSTER, "  wait(bar, 0);\n", "", "missing wait|uninitialised shared", "wait"),
    (run_cluster, CLUSTER, "bar, 3);\n", "bar, 7);\n", "out of bounds", "multicast mask"),
    (run_cluster, CLUSTER, "commit_bulk(); wait_bulk(); }\n", "commit_bulk(); }\n  __syncthreads();\n  dyn[t] = 1;\n", "missing wait", "still being read"),
    (run_cluster, CLUSTER, "commit_bulk(); wait_bulk(); }", "commit_bulk(); }", "missing wait", "the block ends while its shared memory is still being read"),
    (run_bulk, BULK, "for (int i = 0; i < args.count; ++i) {\n      const u32 bar = bars + 16 * (i % 2);\n      if (i", "for (int i = 0; i < args.count + 1; ++i) {\n      const u32 bar = bars + 16 * (i % 2);\n      if (i", "missing wait|out of bounds", ""),
    (run_cluster, CLUSTER, "  fence_async();\n", "", "missing fence", "tensor store"),
    (run_bulk, BULK, "arrive(bar + 8);", "if (t < 32) arrive(bar + 8);", "deadlock", "32 of 64 arrivals missing"),
    (run_bulk, BULK, "if (i >= 2) wait(bar + 8, (i / 2 - 1) & 1);", "", "mbarrier misuse|shared race|missing wait", ""),
    (run_bulk, BULK, "args.in + 256 * i, 1024", "args.in + 256 * i + 1, 1024", "misaligned", "multiple of 16"),
    (run_bulk, BULK, "args.in + 256 * i, 1024", "args.in + 256 * i + 4, 1024", "out of bounds", "past the end of in"),
]  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=[f"{e[0].__name__[4:]}-{i}" for i, e in enumerate(EDITS)])
def test_mistakes_in_asynchronous_kernels_are_named(edit):
    runner, source, text, replacement, kinds, part = edit
    assert source.count(text) == 1, f"{text!r} must occur once"
    with pytest.raises(Fault) as caught:
        runner(source.replace(text, replacement))
    message = str(caught.value)
    assert caught.value.kind in kinds.split("|"), message
    assert part in message, message
