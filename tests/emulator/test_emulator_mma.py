"""Fragment maps against the formulas of the PTX ISA, ldmatrix and mma.sync against plain matrices.
Run by pytest.
Assumes the formulas of the ISA's sections on mma fragments, written here by flat element index, as the ISA does."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.emulator import fragments
from tests.emulator.floats import small_table
from tests.emulator.instructions.mma import matrices, split_codes
from tests.emulator.pictures import lane_map
from tests.emulator.snippets import evaluate, run_text

LANES = range(32)


# --- the formulas of the ISA: element i of a fragment ------------------------------------------------------


def isa_a_16(lane, i):  # .m16n8k16, f16 or bf16
    group, thread = lane >> 2, lane % 4
    row = group if i < 2 or 4 <= i < 6 else group + 8
    return row, thread * 2 + (i & 1) + (0 if i < 4 else 8)


def isa_a_k8(lane, i):  # .m16n8k8, f16 or bf16
    group, thread = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def isa_a_tf32(lane, i):  # .m16n8k8, tf32
    group, thread = lane >> 2, lane % 4
    return (group if i in (0, 2) else group + 8), (thread if i in (0, 1) else thread + 4)


def isa_a_8(lane, i):  # .m16n8k32, 8-bit
    group, thread = lane >> 2, lane % 4
    return (group if i < 4 or 8 <= i < 12 else group + 8), thread * 4 + (i & 3) + (0 if i < 8 else 16)


def isa_a_4(lane, i):  # .m16n8k64, 4-bit
    group, thread = lane >> 2, lane % 4
    return (group if i < 8 or 16 <= i < 24 else group + 8), thread * 8 + (i & 7) + (0 if i < 16 else 32)


def isa_b(per):
    def formula(lane, i):
        group, thread = lane >> 2, lane % 4
        return thread * per + i % per + 4 * per * (i // per), group

    return formula


def isa_c(lane, i):
    return (lane >> 2) + (0 if i < 2 else 8), (lane % 4) * 2 + (i & 1)


@pytest.mark.parametrize(
    ("bits", "k", "formula"),
    [(16, 16, isa_a_16), (16, 8, isa_a_k8), (32, 8, isa_a_tf32), (8, 32, isa_a_8), (4, 64, isa_a_4)],
)
def test_operand_a_follows_the_isa(bits, k, formula):
    per = 32 // bits
    for lane in LANES:
        for i in range(16 * k // 32):
            assert fragments.operand_a(lane, i // per, i % per, bits, k) == formula(lane, i)


@pytest.mark.parametrize(("bits", "k"), [(16, 16), (16, 8), (32, 8), (8, 32), (8, 16), (4, 64), (4, 32)])
def test_operand_b_follows_the_isa_and_both_cover_everything_once(bits, k):
    per = 32 // bits
    places_a = [fragments.operand_a(t, i // per, i % per, bits, k) for t in LANES for i in range(16 * k // 32)]
    places_b = [fragments.operand_b(t, i // per, i % per, bits, k) for t in LANES for i in range(8 * k // 32)]
    assert [isa_b(per)(t, i) for t in LANES for i in range(8 * k // 32)] == places_b
    assert sorted(places_a) == [(r, c) for r in range(16) for c in range(k)]
    assert sorted(places_b) == [(r, c) for r in range(k) for c in range(8)]


def test_accumulators_follow_the_isa():
    for lane in LANES:
        for i in range(4):
            assert fragments.accumulator(lane, i) == isa_c(lane, i)
    # wgmma, .m64nNk16: element i of thread t, as the ISA's figure counts it
    seen = set()
    for thread in range(128):
        for i in range(128):
            row, column = fragments.wgmma_accumulator(thread, i)
            assert row == 16 * (thread // 32) + (thread % 32) // 4 + 8 * ((i // 2) % 2)
            assert column == (thread % 4) * 2 + (i % 2) + 8 * (i // 4)
            seen.add((row, column))
    assert len(seen) == 64 * 256


# --- ldmatrix ------------------------------------------------------------------------------------------------

FILL = """.reg .b64 %q0; .reg .b32 %s0, %w0, %t0; mov.u64 %q0, dyn; cvt.u32.u64 %s0, %q0; mov.u32 %t0, %tid.x;
  shl.b32 %w0, %t0, 4; add.u32 %w0, %w0, %s0; st.shared.v4.u32 [%w0], {%a, %b, %c, %e}; bar.warp.sync -1;"""


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_the_fragments_of_its_matrices(transposed):
    """Matrix j is rows 8j..8j+7 of 16 bytes; register j of a lane holds the elements of the ISA's figure."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, (32, 4), dtype=np.uint32)
    body = (
        FILL
        + f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if transposed else ''}.shared.b16 {{%d0, %d1, %d2, %d3}}, [%w0];"
    )
    memory_outputs = {f"d{j}": "b32" for j in range(4)}
    out = evaluate(body, memory_outputs, shared_bytes=4096, a=words[:, 0], b=words[:, 1], c=words[:, 2], e=words[:, 3])
    table = words.view(np.uint16).reshape(4, 8, 8)
    for j in range(4):
        for lane in LANES:
            row, column = lane // 4, 2 * (lane % 4)
            pair = (
                (table[j, column, row], table[j, column + 1, row])
                if transposed
                else (table[j, row, column], table[j, row, column + 1])
            )
            assert int(out[f"d{j}"][lane]) == int(pair[0]) | int(pair[1]) << 16


def test_stmatrix_undoes_ldmatrix():
    rng = np.random.default_rng(2)
    words = rng.integers(0, 2**32, (32, 4), dtype=np.uint32)
    for transposed in ("", ".trans"):
        body = (
            FILL
            + f"""ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%x0, %x1, %x2, %x3}}, [%w0]; add.u32 %w0, %w0, 512;
          stmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 [%w0], {{%x0, %x1, %x2, %x3}}; bar.warp.sync -1;
          ld.shared.v4.u32 {{%d0, %d1, %d2, %d3}}, [%w0];"""
        )
        body = ".reg .b32 %x0, %x1, %x2, %x3;" + body
        out = evaluate(
            body,
            {f"d{j}": "b32" for j in range(4)},
            shared_bytes=4096,
            a=words[:, 0],
            b=words[:, 1],
            c=words[:, 2],
            e=words[:, 3],
        )
        assert np.array_equal(np.stack([out[f"d{j}"] for j in range(4)], axis=1), words)


# --- mma.sync --------------------------------------------------------------------------------------------------


def torch_values(kind, codes):
    """Values of codes by torch or by plain formulas, not by the emulator's tables."""
    if kind in ("f16", "bf16"):
        dtype = torch.float16 if kind == "f16" else torch.bfloat16
        return torch.from_numpy(codes.astype(np.uint16).view(np.int16).copy()).view(dtype).double().numpy()
    if kind in ("e4m3", "e5m2"):
        dtype = torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2
        return torch.from_numpy(codes.astype(np.uint8).copy()).view(dtype).double().numpy()
    if kind == "tf32":
        return (codes & 0xFFFFE000).astype(np.uint32).view(np.float32).astype(np.float64)
    bits = int(kind[1:])
    signed = codes.astype(np.int64)
    return np.where((kind[0] == "s") & (signed >= 1 << (bits - 1)), signed - (1 << bits), signed)


def random_codes(kind, shape, rng):
    if kind in ("f16", "bf16"):
        values = torch.from_numpy(rng.standard_normal(shape)).to(torch.float16 if kind == "f16" else torch.bfloat16)
        return values.view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
    if kind == "tf32":
        return rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    codes = rng.integers(0, 1 << int({"e4m3": 8, "e5m2": 8}.get(kind) or kind[1:]), shape, dtype=np.uint32)
    if kind == "e4m3":
        return np.where(codes & 0x7F == 0x7F, 0, codes)
    return np.where(codes & 0x7C == 0x7C, 0, codes) if kind == "e5m2" else codes


def to_registers(matrix, place, registers, per):
    """Words [32, registers] from a matrix of codes by an ISA formula of the flat element index."""
    words = np.zeros((32, registers), np.uint32)
    for lane in LANES:
        for i in range(registers * per):
            words[lane, i // per] |= np.uint32(int(matrix[place(lane, i)]) << (32 // per * (i % per)))
    return words


CASES = [
    ("m16n8k16", "f32", "f16", "f16", 16, isa_a_16), ("m16n8k8", "f32", "f16", "f16", 16, isa_a_k8),
    ("m16n8k16", "f16", "f16", "f16", 16, isa_a_16),
    ("m16n8k16", "f32", "bf16", "bf16", 16, isa_a_16), ("m16n8k8", "f32", "bf16", "bf16", 16, isa_a_k8),
    ("m16n8k8", "f32", "tf32", "tf32", 32, isa_a_tf32),
    ("m16n8k32", "s32", "s8", "s8", 8, isa_a_8), ("m16n8k32", "s32", "u8", "s8", 8, isa_a_8),
    ("m16n8k64", "s32", "s4", "u4", 4, isa_a_4),
    ("m16n8k32", "f32", "e4m3", "e4m3", 8, isa_a_8), ("m16n8k32", "f32", "e5m2", "e4m3", 8, isa_a_8),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "d_type", "a_type", "b_type", "bits", "place_a"), CASES)
def test_mma_multiplies(shape, d_type, a_type, b_type, bits, place_a):
    rng = np.random.default_rng(3)
    k, per = int(shape[6:]), 32 // bits
    a, b = random_codes(a_type, (16, k), rng), random_codes(b_type, (k, 8), rng)
    c = rng.integers(-100, 100, (16, 8)).astype(np.int32 if d_type == "s32" else np.float32)
    regs_a, regs_b = 16 * k * bits // 1024, 8 * k * bits // 1024
    words_a, words_b = to_registers(a, place_a, regs_a, per), to_registers(b, isa_b(per), regs_b, per)
    exact = torch_values(a_type, a) @ torch_values(b_type, b) + c
    inputs = {f"a{i}": words_a[:, i] for i in range(regs_a)} | {f"b{i}": words_b[:, i] for i in range(regs_b)}
    accumulators = 2 if d_type == "f16" else 4
    for i in range(accumulators):
        if d_type == "f16":
            pair = [np.float16(c[isa_c(t, 2 * i + j)]).view(np.uint16) for t in LANES for j in range(2)]
            inputs[f"c{i}"] = np.array(pair, np.uint16).view(np.uint32)
        else:
            inputs[f"c{i}"] = np.array([c[isa_c(t, i)] for t in LANES])
    names = {
        v: "{" + ", ".join(f"%{v}{i}" for i in range(n)) + "}"
        for v, n in (("a", regs_a), ("b", regs_b), ("c", accumulators), ("d", accumulators))
    }
    text = f"mma.sync.aligned.{shape}.row.col.{d_type}.{a_type}.{b_type}.{d_type} {names['d']}, {names['a']}, {names['b']}, {names['c']};"
    out = evaluate(text, {f"d{i}": "b32" for i in range(accumulators)}, **inputs)
    got = np.zeros((16, 8))
    for lane in LANES:
        for i in range(4):
            if d_type == "f16":
                got[isa_c(lane, i)] = out[f"d{i // 2}"].view(np.float16).reshape(32, 2)[lane, i % 2]
            else:
                got[isa_c(lane, i)] = out[f"d{i}"].view(np.int32 if d_type == "s32" else np.float32)[lane]
    if d_type == "s32":
        assert np.array_equal(got, exact)
    else:
        assert np.abs(got - exact).max() <= (2.0**-10 if d_type == "f16" else 2.0**-23) * np.abs(exact).max()


def test_integer_accumulators_wrap_or_saturate():
    ones = np.full(32, 0x7F7F7F7F, np.uint32)
    inputs = (
        {f"a{i}": ones for i in range(4)}
        | {f"b{i}": ones for i in range(2)}
        | {"c0": np.full(32, 2**31 - 1, np.uint32)}
    )
    text = "mma.sync.aligned.m16n8k32.row.col{}.s32.s8.s8.s32 {{%d0,%d1,%d2,%d3}}, {{%a0,%a1,%a2,%a3}}, {{%b0,%b1}}, {{%c0,%c0,%c0,%c0}};"
    outputs = {f"d{i}": "b32" for i in range(4)}
    assert (
        evaluate(text.format(""), outputs, **inputs)["d0"].view(np.int32)
        == (2**31 - 1 + 32 * 127 * 127 + 2**31) % 2**32 - 2**31
    ).all()
    assert (evaluate(text.format(".satfinite"), outputs, **inputs)["d0"].view(np.int32) == 2**31 - 1).all()


def test_block_scaled_kinds():
    """mxf8f6f4 (e4m3 x e2m1 in 8-bit containers, one scale per 32) and mxf4nvf4 (e2m1, ue4m3 scale per 16)."""
    rng = np.random.default_rng(4)
    a, b = random_codes("e4m3", (16, 32), rng), rng.integers(0, 16, (32, 8), dtype=np.uint32)
    scale_a, scale_b = rng.integers(120, 134, 16), rng.integers(120, 134, 8)
    words_a, words_b = to_registers(a, isa_a_8, 4, 4), to_registers(b << 2, isa_b(4), 2, 4)
    lane_a, lane_b = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    for row in range(16):
        lane_a[4 * (row % 8) + row // 8] = int(scale_a[row]) << 8  # byte id 1, thread id 0
    for column in range(8):
        lane_b[4 * column + 2] = int(scale_b[column])  # byte id 0, thread id 2
    inputs = (
        {f"a{i}": words_a[:, i] for i in range(4)}
        | {f"b{i}": words_b[:, i] for i in range(2)}
        | {"sa": lane_a, "sb": lane_b}
    )
    text = """mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e2m1.f32.ue8m0
      {%d0,%d1,%d2,%d3}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, {0f00000000,0f00000000,0f00000000,0f00000000}, %sa, {1, 0}, %sb, {0, 2};"""
    out = evaluate(text, {f"d{i}": "f32" for i in range(4)}, **inputs)
    left = torch_values("e4m3", a) * 2.0 ** (scale_a[:, None] - 127.0)
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    right = np.where(b & 8, -1, 1) * e2m1[b & 7] * 2.0 ** (scale_b - 127.0)
    exact = left @ right
    got = np.array([[out[f"d{i}"][t] for i in range(4)] for t in LANES])
    for lane in LANES:
        for i in range(4):
            assert abs(got[lane, i] - exact[isa_c(lane, i)]) <= 2.0**-23 * np.abs(exact).max()

    a, b = rng.integers(0, 16, (16, 64), dtype=np.uint32), rng.integers(0, 16, (64, 8), dtype=np.uint32)
    scale_a, scale_b = rng.integers(40, 80, (16, 4)), rng.integers(40, 80, (8, 4))
    words_a, words_b = to_registers(a, isa_a_4, 4, 8), to_registers(b, isa_b(8), 2, 8)
    lane_a, lane_b = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    for row in range(16):
        lane_a[4 * (row % 8) + row // 8] = sum(int(s) << 8 * j for j, s in enumerate(scale_a[row]))
    for column in range(8):
        lane_b[4 * column] = sum(int(s) << 8 * j for j, s in enumerate(scale_b[column]))
    inputs = (
        {f"a{i}": words_a[:, i] for i in range(4)}
        | {f"b{i}": words_b[:, i] for i in range(2)}
        | {"sa": lane_a, "sb": lane_b}
    )
    text = """mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3
      {%d0,%d1,%d2,%d3}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, {0f00000000,0f00000000,0f00000000,0f00000000}, %sa, {0, 0}, %sb, {0, 0};"""
    out = evaluate(text, {f"d{i}": "f32" for i in range(4)}, **inputs)
    f8 = lambda codes: torch_values("e4m3", codes.astype(np.uint32))  # noqa: E731
    left = np.where(a & 8, -1, 1) * e2m1[a & 7] * np.repeat(f8(scale_a), 16, axis=1)
    right = np.where(b & 8, -1, 1) * e2m1[b & 7] * np.repeat(f8(scale_b), 16, axis=1).T
    exact = left @ right
    for lane in LANES:
        for i in range(4):
            assert abs(out[f"d{i}"][lane] - exact[isa_c(lane, i)]) <= 2.0**-23 * np.abs(exact).max()


def test_helpers_split_words_low_bits_first():
    assert split_codes(np.array([[0x87654321]], np.uint32), 4).tolist() == [[[1, 2, 3, 4, 5, 6, 7, 8]]]
    a, b = matrices(np.ones((1, 32, 4, 2)), np.ones((1, 32, 2, 2)), 16, 16)
    assert a.sum() == 256 and b.sum() == 128 and small_table("e2m1")[7] == 6
    assert run_text("ret;")[0].blocks == 1


def test_movmatrix_transposes():
    rng = np.random.default_rng(5)
    matrix = rng.integers(0, 65536, (8, 8), dtype=np.uint32)
    words = np.array([matrix[t // 4, 2 * (t % 4)] | matrix[t // 4, 2 * (t % 4) + 1] << 16 for t in LANES], np.uint32)
    out = evaluate("movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;", {"d": "b32"}, a=words)
    for lane in LANES:
        row, column = lane // 4, 2 * (lane % 4)
        assert int(out[lane]) == int(matrix[column, row]) | int(matrix[column + 1, row]) << 16


def test_the_lane_map_draws_the_isa_figure():
    lines = lane_map("a").splitlines()
    assert lines[1].split()[1:5] == ["0.0", "0.0", "1.0", "1.0"] and lines[9].split()[1] == "0.1"
    assert lines[1].split()[9] == "0.2" and lines[16].split()[-1] == "31.3"
    assert lane_map("c").splitlines()[9].split()[1:3] == ["0.2", "0.3"]
