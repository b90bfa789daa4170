"""f32, f16 and bf16 arithmetic and conversions against numpy, torch and exact fractions.
Run by pytest.
Assumes numpy's float16 and torch's bfloat16 round to nearest even."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.emulator.floats import small_table
from tests.emulator.snippets import evaluate, randoms

N = 512
BITS_A, BITS_B, BITS_C = randoms(N, 11), randoms(N, 12)[::-1].copy(), randoms(N, 13)
RNG = np.random.default_rng(14)
A, B, C = (RNG.standard_normal(N).astype(np.float32) * np.float32(2.0) ** RNG.integers(-20, 20, N) for _ in range(3))
A, B, C = A.astype(np.float32), B.astype(np.float32), C.astype(np.float32)


def same(got, wanted):
    """Bit-equal, any NaN equal to any NaN."""
    nan = np.isnan(wanted)
    assert np.array_equal(np.isnan(got), nan)
    bits = f"u{wanted.dtype.itemsize}"
    assert np.array_equal(got[~nan].view(bits), wanted[~nan].view(bits))


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("add.f32 %d, %a, %b;", np.add),
        ("sub.rn.f32 %d, %a, %b;", np.subtract),
        ("mul.f32 %d, %a, %b;", np.multiply),
        ("div.rn.f32 %d, %a, %b;", np.divide),
        ("min.f32 %d, %a, %b;", np.fmin),
        ("max.NaN.f32 %d, %a, %b;", np.maximum),
    ],
)
def test_f32_arithmetic_on_all_bit_patterns(text, function):
    a, b = BITS_A.view(np.float32), BITS_B.view(np.float32)
    zeros = (a == 0) & (b == 0)
    with np.errstate(all="ignore"):
        wanted = function(a, b)
    got = evaluate(text, {"d": "f32"}, threads=N, a=a, b=b)
    same(got[~zeros], wanted[~zeros])


def nearest_f32(exact):
    """float32 nearest to a fraction, ties to even, by trying neighbours."""
    guess = np.float32(float(exact))
    best = min(
        (np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))),
        key=lambda v: (abs(Fraction(float(v)) - exact), int(np.float32(v).view(np.uint32)) & 1),
    )
    return np.float32(best)


def test_fma_rounds_once():
    # products that nearly cancel, where two roundings differ from one
    a = np.float32(1) + RNG.integers(1, 2**12, N).astype(np.float32) * np.float32(2.0**-23)
    b = np.float32(1) - RNG.integers(1, 2**12, N).astype(np.float32) * np.float32(2.0**-24)
    c = np.where(np.arange(N) % 2, np.float32(-1), np.float32(2.0**24) * C)
    for x, y, z in ((a, b, c), (A, B, C)):
        x, y, z = (np.asarray(v, np.float32) for v in (x, y, z))
        got = evaluate("fma.rn.f32 %d, %a, %b, %c;", {"d": "f32"}, threads=N, a=x, b=y, c=z)
        wanted = [
            nearest_f32(Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r)))
            for p, q, r in zip(x, y, z, strict=True)
        ]
        same(got, np.array(wanted, np.float32))


def test_directed_rounding_brackets_the_exact_sum():
    got = evaluate("add.rz.f32 %z, %a, %b; add.rm.f32 %m, %a, %b; add.rp.f32 %p, %a, %b;",
                   {"z": "f32", "m": "f32", "p": "f32"}, threads=N, a=A, b=B)  # fmt: skip
    for i in range(N):
        exact = Fraction(float(A[i])) + Fraction(float(B[i]))
        low, high = Fraction(float(got["m"][i])), Fraction(float(got["p"][i]))
        assert low <= exact <= high
        assert high == low or np.nextafter(got["m"][i], np.float32(np.inf)) == got["p"][i]
        assert got["z"][i] == (got["m"][i] if exact > 0 else got["p"][i])


def test_ftz_and_sat():
    tiny = np.array([1e-40, -1e-40, 1.0, 3.0, -2.0, np.nan, 0.25, 1e-38] * 4, np.float32)
    got = evaluate("mul.ftz.f32 %d, %a, 0f3F800000; add.sat.f32 %e, %a, 0f00000000;", {"d": "f32", "e": "f32"}, a=tiny)
    assert got["d"][0] == 0 and np.signbit(got["d"][1]) and got["d"][2] == 1
    assert list(got["e"][2:7]) == [1, 1, 0, 0, 0.25]


def test_unary_functions():
    positive = np.abs(A)
    for text, function in (("rcp.rn.f32", lambda x: 1 / x), ("sqrt.rn.f32", np.sqrt), ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
                           ("ex2.approx.f32", np.exp2), ("lg2.approx.f32", np.log2), ("tanh.approx.f32", np.tanh)):  # fmt: skip
        x = positive if "ex2" not in text else np.clip(A, -100, 100)
        same(
            evaluate(f"{text} %d, %a;", {"d": "f32"}, threads=N, a=x), function(x.astype(np.float64)).astype(np.float32)
        )


# --- halves -------------------------------------------------------------------------------------------

HALF_A, HALF_B, HALF_C = BITS_A, BITS_B, BITS_C


def halves(bits):
    return bits.view(np.float16).reshape(-1, 2)


def bf16(bits):
    return torch.from_numpy(bits.view(np.int16).reshape(-1, 2).copy()).view(torch.bfloat16)


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_f16x2_against_numpy(op):
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op]
    with np.errstate(all="ignore"):
        wanted = function(halves(HALF_A), halves(HALF_B))
    got = evaluate(
        f"{op}.rn.f16x2 %d, %a, %b;" if op != "mul" else "mul.f16x2 %d, %a, %b;",
        {"d": "b32"},
        threads=N,
        a=HALF_A,
        b=HALF_B,
    )
    same(halves(got), wanted)


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_bf16x2_against_torch(op):
    a, b = bf16(HALF_A), bf16(HALF_B)
    wanted = {"add": a + b, "sub": a - b, "mul": a * b}[op].float().numpy()
    got = evaluate(f"{op}.bf16x2 %d, %a, %b;", {"d": "b32"}, threads=N, a=HALF_A, b=HALF_B)
    same(bf16(got).float().numpy(), wanted)


def nearest_16(exact, kind):
    """Value of the nearest f16 or bf16 by searching all finite ones."""
    table = _sorted_values(kind)
    place = np.searchsorted(table[0], float(exact))
    candidates = range(max(place - 2, 0), min(place + 3, len(table[0])))
    best = min(candidates, key=lambda i: (abs(Fraction(float(table[0][i])) - exact), int(table[1][i]) & 1))
    return table[0][best]


_TABLES = {}


def _sorted_values(kind):
    if kind not in _TABLES:
        codes = np.arange(65536, dtype=np.uint16)
        wide = codes.view(np.float16) if kind == "f16" else (codes.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(all="ignore"):
            values = wide.astype(np.float64)
        keep = np.isfinite(values) & ~((values == 0) & (codes != 0))
        order = np.argsort(values[keep])
        _TABLES[kind] = values[keep][order], codes[keep][order]
    return _TABLES[kind]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_fma_rounds_once(kind):
    rng = np.random.default_rng(15)
    # magnitudes near one, so that ties are common and no result overflows
    raw = [
        rng.integers(0x3A00, 0x3E00, (N, 2)) if kind == "f16" else rng.integers(0x3F00, 0x4000, (N, 2))
        for _ in range(3)
    ]
    bits = [(r | rng.integers(0, 2, r.shape) << 15).astype(np.uint16) for r in raw]
    words = [np.ascontiguousarray(b).view(np.uint32).reshape(-1) for b in bits]
    got = evaluate(f"fma.rn.{kind}x2 %d, %a, %b, %c;", {"d": "b32"}, threads=N, a=words[0], b=words[1], c=words[2])
    if kind == "f16":
        value = [b.view(np.float16).astype(np.float64) for b in bits]
        out = halves(got).astype(np.float64)
    else:
        value = [(b.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for b in bits]
        out = bf16(got).double().numpy()
    for i in range(N):
        for j in range(2):
            exact = Fraction(value[0][i, j]) * Fraction(value[1][i, j]) + Fraction(value[2][i, j])
            assert out[i, j] == nearest_16(exact, kind)


def test_half_subnormals_survive():
    tiny = np.full(32, 0x00010001, np.uint32)
    one = np.full(32, 0x3C003C00, np.uint32)
    assert (
        evaluate("fma.rn.f16x2 %d, %a, %b, %c;", {"d": "b32"}, a=tiny, b=one, c=np.zeros(32, np.uint32)) == tiny
    ).all()
    one = np.full(32, 0x3F803F80, np.uint32)
    assert (evaluate("mul.bf16x2 %d, %a, %b;", {"d": "b32"}, a=tiny, b=one) == tiny).all()


def test_min_max_neg_abs_halves():
    a, b = halves(HALF_A), halves(HALF_B)
    got = evaluate(
        "min.f16x2 %d, %a, %b; neg.f16x2 %e, %a; abs.f16x2 %f, %a;",
        {"d": "b32", "e": "b32", "f": "b32"},
        threads=N,
        a=HALF_A,
        b=HALF_B,
    )
    ordinary = ~((a == 0) & (b == 0))
    same(halves(got["d"])[ordinary], np.fmin(a, b)[ordinary])
    assert (got["e"] == HALF_A ^ np.uint32(0x80008000)).all()
    assert (got["f"] == HALF_A & np.uint32(0x7FFF7FFF)).all()


# --- conversions ----------------------------------------------------------------------------------------


def test_cvt_between_f32_and_halves():
    a = BITS_A.view(np.float32)
    got = evaluate(".reg .b16 %h, %g; cvt.rn.f16.f32 %h, %a; cvt.u32.u16 %d, %h; cvt.rn.bf16.f32 %g, %a; cvt.u32.u16 %e, %g;",
                   {"d": "b32", "e": "b32"}, threads=N, a=a)  # fmt: skip
    with np.errstate(all="ignore"):
        same(got["d"].astype(np.uint16).view(np.float16), a.astype(np.float16))
    wanted = torch.from_numpy(a.copy()).bfloat16().float().numpy()
    same((got["e"] << np.uint32(16)).view(np.float32), wanted)
    back = evaluate(
        ".reg .b16 %h; cvt.u16.u32 %h, %a; cvt.f32.f16 %d, %h; cvt.f32.bf16 %e, %h;",
        {"d": "f32", "e": "f32"},
        threads=N,
        a=BITS_A,
    )
    low = (BITS_A & 0xFFFF).astype(np.uint16)
    same(back["d"], low.view(np.float16).astype(np.float32))
    same(back["e"], (low.astype(np.uint32) << 16).view(np.float32))


def test_packed_cvt_puts_the_first_operand_high():
    got = evaluate(
        "cvt.rn.f16x2.f32 %d, %a, %b; cvt.rn.relu.bf16x2.f32 %e, %a, %b;", {"d": "b32", "e": "b32"}, threads=N, a=A, b=B
    )
    with np.errstate(all="ignore"):
        same(halves(got["d"])[:, 1].copy(), A.astype(np.float16))
        same(halves(got["d"])[:, 0].copy(), B.astype(np.float16))
    wanted = torch.from_numpy(np.maximum(B, 0)).bfloat16().float().numpy()
    same(bf16(got["e"])[:, 0].float().numpy(), wanted)


def test_cvt_rz_truncates():
    got = evaluate(
        ".reg .b16 %h; cvt.rz.f16.f32 %h, %a; cvt.u32.u16 %d, %h;", {"d": "b32"}, threads=N, a=np.clip(A, -60000, 60000)
    )
    values = got.astype(np.uint16).view(np.float16).astype(np.float64)
    a = np.clip(A, -60000, 60000).astype(np.float64)
    assert (np.abs(values) <= np.abs(a)).all()
    next_up = np.nextafter(
        got.astype(np.uint16).view(np.float16), np.copysign(np.float16(np.inf), a).astype(np.float16)
    ).astype(np.float64)
    assert ((np.abs(next_up) > np.abs(a)) | (values == a)).all()


def test_cvt_integer_and_float():
    special = np.concatenate(
        [np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 2.5, 3.5, -2.5, -0.5, 1e20], np.float32), A[: N - 10]]
    )
    got = evaluate(
        "cvt.rni.s32.f32 %d, %a; cvt.rzi.u32.f32 %e, %a; cvt.rmi.s32.f32 %f, %a;",
        {"d": "b32", "e": "b32", "f": "b32"},
        threads=N,
        a=special,
    )
    for i, x in enumerate(special.astype(np.float64)):
        clean = 0.0 if np.isnan(x) else x
        clamp = lambda v, lo, hi: int(min(max(v, lo), hi))  # noqa: E731
        assert int(got["d"][i].astype(np.int32)) == clamp(np.rint(clean), -(2**31), 2**31 - 1)
        assert int(got["e"][i]) == clamp(np.trunc(clean), 0, 2**32 - 1)
        assert int(got["f"][i].astype(np.int32)) == clamp(np.floor(clean), -(2**31), 2**31 - 1)
    back = evaluate("cvt.rn.f32.s32 %d, %a; cvt.rn.f32.u32 %e, %a;", {"d": "f32", "e": "f32"}, threads=N, a=BITS_A)
    same(back["d"], BITS_A.view(np.int32).astype(np.float32))
    same(back["e"], BITS_A.astype(np.float32))


TORCH_F8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_fp8_decode_and_encode_against_torch(name):
    codes = np.arange(256, dtype=np.uint32)
    pairs = codes | (codes[::-1] << 8)
    got = evaluate(
        f".reg .b16 %h; cvt.u16.u32 %h, %a; cvt.rn.f16x2.{name}x2 %d, %h;", {"d": "b32"}, threads=256, a=pairs
    )
    table = torch.arange(256, dtype=torch.uint8).view(TORCH_F8[name]).float().numpy()
    same(halves(got)[:, 0].astype(np.float32), table)
    same(halves(got)[:, 1].astype(np.float32), table[::-1].copy())
    limit = 448 if name == "e4m3" else 57344
    x = np.clip(np.concatenate([A[:256] * np.float32(0.01), B[:256]]), -limit, limit)
    y = np.clip(C, -limit, limit)
    got = evaluate(
        f".reg .b16 %h; cvt.rn.satfinite.{name}x2.f32 %h, %a, %b; cvt.u32.u16 %d, %h;",
        {"d": "b32"},
        threads=N,
        a=x,
        b=y,
    )
    for source, shift in ((x, 8), (y, 0)):
        wanted = torch.from_numpy(source.copy()).to(TORCH_F8[name]).float().numpy()
        same(small_table(name)[got >> shift & 0xFF].astype(np.float32), wanted)


def test_fp4_and_fp6_tables_and_rounding():
    assert list(small_table("e2m1")[:8]) == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert small_table("e2m3")[31] == 7.5 and small_table("e3m2")[31] == 28 and small_table("e3m2")[1] == 2.0**-4
    x = np.linspace(-8, 8, 512).astype(np.float32)
    got = evaluate(".reg .b16 %h; cvt.rn.satfinite.e2m3x2.f32 %h, %a, %b; cvt.u32.u16 %d, %h;",
                   {"d": "b32"}, threads=N, a=x, b=x)  # fmt: skip
    table = small_table("e2m3")
    for i in range(N):
        value = float(table[int(got[i]) & 0x3F])
        assert abs(value - float(np.clip(x[i], -7.5, 7.5))) == min(
            abs(t - float(np.clip(x[i], -7.5, 7.5))) for t in table
        )


def test_tf32_rounds_to_ten_bits():
    got = evaluate("cvt.rna.tf32.f32 %d, %a;", {"d": "b32"}, threads=N, a=A)
    assert (got & 0x1FFF == 0).all()
    error = np.abs(got.view(np.float32).astype(np.float64) - A) / np.abs(A)
    assert error.max() <= 2.0**-11
