"""Integer instructions against plain Python integers.
Run by pytest.
Assumes nothing but Python's unbounded ints as the truth."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator import UnknownInstruction
from tests.emulator.snippets import evaluate, randoms

N = 256
A, B, C = randoms(N, 1), randoms(N, 2)[::-1].copy(), randoms(N, 3)
SMALL = np.random.default_rng(5).integers(0, 70, N, dtype=np.uint32)
M32 = 2**32 - 1


def signed(value, bits=32):
    return value - (1 << bits) if value >> (bits - 1) else value


def check(text, function, a=A, b=B, c=C, kind="b32"):
    out = evaluate(text, {"d": kind}, threads=N, a=a, b=b, c=c)
    bits = 64 if kind == "b64" else 32
    expected = [function(int(x), int(y), int(z)) & ((1 << bits) - 1) for x, y, z in zip(a, b, c, strict=True)]
    wrong = [i for i in range(N) if int(out[i]) != expected[i]]
    assert not wrong, (
        f"{text}: a={a[wrong[0]]:#x} b={b[wrong[0]]:#x} c={c[wrong[0]]:#x} got {out[wrong[0]]:#x} wanted {expected[wrong[0]]:#x}"
    )


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("add.s32 %d, %a, %b;", lambda a, b, c: a + b),
        ("sub.s32 %d, %a, %b;", lambda a, b, c: a - b),
        ("add.sat.s32 %d, %a, %b;", lambda a, b, c: min(max(signed(a) + signed(b), -(2**31)), 2**31 - 1)),
        ("mul.lo.s32 %d, %a, %b;", lambda a, b, c: a * b),
        ("mul.hi.u32 %d, %a, %b;", lambda a, b, c: a * b >> 32),
        ("mul.hi.s32 %d, %a, %b;", lambda a, b, c: signed(a) * signed(b) >> 32),
        ("mad.lo.s32 %d, %a, %b, %c;", lambda a, b, c: a * b + c),
        ("mad.hi.u32 %d, %a, %b, %c;", lambda a, b, c: (a * b >> 32) + c),
        ("div.u32 %d, %a, %b;", lambda a, b, c: a // b if b else M32),
        ("rem.u32 %d, %a, %b;", lambda a, b, c: a % b if b else a),
        ("min.s32 %d, %a, %b;", lambda a, b, c: min(signed(a), signed(b))),
        ("max.u32 %d, %a, %b;", lambda a, b, c: max(a, b)),
        ("abs.s32 %d, %a;", lambda a, b, c: abs(signed(a))),
        ("neg.s32 %d, %a;", lambda a, b, c: -a),
        ("and.b32 %d, %a, %b;", lambda a, b, c: a & b),
        ("or.b32 %d, %a, %b;", lambda a, b, c: a | b),
        ("xor.b32 %d, %a, %b;", lambda a, b, c: a ^ b),
        ("not.b32 %d, %a;", lambda a, b, c: ~a),
        ("cnot.b32 %d, %a;", lambda a, b, c: int(a == 0)),
        ("popc.b32 %d, %a;", lambda a, b, c: bin(a).count("1")),
        ("clz.b32 %d, %a;", lambda a, b, c: 32 - a.bit_length()),
        ("brev.b32 %d, %a;", lambda a, b, c: int(f"{a:032b}"[::-1], 2)),
        ("bfind.u32 %d, %a;", lambda a, b, c: a.bit_length() - 1),
        ("bfind.s32 %d, %a;", lambda a, b, c: (~signed(a) if signed(a) < 0 else a).bit_length() - 1),
        ("sad.u32 %d, %a, %b, %c;", lambda a, b, c: abs(a - b) + c),
        ("shf.l.wrap.b32 %d, %a, %b, %c;", lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32),
        ("shf.r.wrap.b32 %d, %a, %b, %c;", lambda a, b, c: (b << 32 | a) >> (c & 31)),
        ("shf.l.clamp.b32 %d, %a, %b, %c;", lambda a, b, c: ((b << 32 | a) << min(c, 32)) >> 32),
        ("shf.r.clamp.b32 %d, %a, %b, %c;", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
        ("selp.b32 %d, %a, %b, 1;", lambda a, b, c: a),
        ("slct.b32.s32 %d, %a, %b, %c;", lambda a, b, c: a if signed(c) >= 0 else b),
        ("set.lt.u32.s32 %d, %a, %b;", lambda a, b, c: M32 if signed(a) < signed(b) else 0),
    ],
)
def test_two_and_three_operands(text, function):
    check(text, function)


def trunc_div(a, b):
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def test_signed_division_truncates():
    b = np.where(B == 0, np.uint32(7), B)
    check("div.s32 %d, %a, %b;", lambda a, b, c: trunc_div(signed(a), signed(b)), b=b)
    check("rem.s32 %d, %a, %b;", lambda a, b, c: signed(a) - trunc_div(signed(a), signed(b)) * signed(b), b=b)


def test_shift_amounts_clamp():
    check("shl.b32 %d, %a, %b;", lambda a, b, c: a << b if b < 32 else 0, b=SMALL)
    check("shr.u32 %d, %a, %b;", lambda a, b, c: a >> b if b < 32 else 0, b=SMALL)
    check("shr.s32 %d, %a, %b;", lambda a, b, c: signed(a) >> min(b, 31), b=SMALL)
    check("shr.s32 %d, %a, 31;", lambda a, b, c: signed(a) >> 31)
    check("shl.b32 %d, %a, 7;", lambda a, b, c: a << 7)


def test_wide_products_and_64_bits():
    check("mul.wide.u32 %d, %a, %b;", lambda a, b, c: a * b, kind="b64")
    check("mul.wide.s32 %d, %a, %b;", lambda a, b, c: signed(a) * signed(b), kind="b64")
    pack = ".reg .b64 %x, %y; mov.b64 %x, {%a, %b}; mov.b64 %y, {%c, %a};"
    x = [int(b) << 32 | int(a) for a, b in zip(A, B, strict=True)]
    y = [int(a) << 32 | int(c) for a, c in zip(A, C, strict=True)]
    for text, function in (
        ("add.s64 %d, %x, %y;", lambda p, q: p + q),
        ("mul.lo.s64 %d, %x, %y;", lambda p, q: p * q),
        ("mul.hi.u64 %d, %x, %y;", lambda p, q: p * q >> 64),
        ("mul.hi.s64 %d, %x, %y;", lambda p, q: signed(p, 64) * signed(q, 64) >> 64),
        ("shr.s64 %d, %x, 40;", lambda p, q: signed(p, 64) >> 40),
        ("min.s64 %d, %x, %y;", lambda p, q: min(signed(p, 64), signed(q, 64))),
    ):
        out = evaluate(pack + text, {"d": "b64"}, threads=N, a=A, b=B, c=C)
        assert [int(v) for v in out] == [function(p, q) & (2**64 - 1) for p, q in zip(x, y, strict=True)], text


def test_carry_chain_adds_64_bits():
    text = "add.cc.u32 %lo, %a, %c; addc.u32 %hi, %b, %a; sub.cc.u32 %l2, %lo, %c; subc.u32 %h2, %hi, %a;"
    out = evaluate(text, {"lo": "b32", "hi": "b32", "l2": "b32", "h2": "b32"}, threads=N, a=A, b=B, c=C)
    for i in range(N):
        total = (int(B[i]) << 32 | int(A[i])) + (int(A[i]) << 32 | int(C[i])) & (2**64 - 1)
        assert (int(out["hi"][i]) << 32 | int(out["lo"][i])) == total
        assert (int(out["h2"][i]), int(out["l2"][i])) == (int(B[i]), int(A[i]))


@pytest.mark.parametrize(
    "table", [0x00, 0x01, 0x3C, 0x80, 0x96, 0xC0, 0xCA, 0xD8, 0xE4, 0xE8, 0xEA, 0xF8, 0xFC, 0xFE, 0x6A, 0x78, 0xFF]
)
def test_lop3_follows_its_truth_table(table):
    def function(a, b, c):
        out = 0
        for bit in range(32):
            row = (a >> bit & 1) * 4 + (b >> bit & 1) * 2 + (c >> bit & 1)
            out |= (table >> row & 1) << bit
        return out

    check(f"lop3.b32 %d, %a, %b, %c, {table:#x};", function)


def prmt(a, b, selector, mode=None):
    data = (b << 32 | a).to_bytes(8, "little")
    out = []
    for place in range(4):
        if mode is None:
            code = selector >> 4 * place & 15
        else:
            s = selector & 3
            code = {"f4e": s + place, "b4e": (s - place) % 8, "rc8": s, "ecl": max(s, place), "ecr": min(s, place),
                    "rc16": (s & 1) * 2 + place % 2}[mode]  # fmt: skip
        byte = data[code & 7]
        out.append((0xFF if byte & 0x80 else 0) if code & 8 else byte)
    return int.from_bytes(bytes(out), "little")


def test_prmt():
    check("prmt.b32 %d, %a, %b, %c;", prmt)
    check("prmt.b32 %d, %a, %b, 0x5410;", lambda a, b, c: prmt(a, b, 0x5410))
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        check(f"prmt.b32.{mode} %d, %a, %b, %c;", lambda a, b, c, mode=mode: prmt(a, b, c, mode))


def bfe(a, position, length, is_signed, bits=32):
    position, length = position & 255, length & 255
    value = signed(a, bits) if is_signed else a
    if length == 0:
        return 0
    field = value >> min(position, bits - 1 if is_signed else 400)
    field &= (1 << length) - 1
    if is_signed:
        top = min(position + length - 1, bits - 1)
        if a >> top & 1:
            field |= -1 << length
    return field


def test_bit_fields():
    for kind in ("u32", "s32"):
        check(
            f"bfe.{kind} %d, %a, %b, %c;",
            lambda a, b, c, s=kind == "s32": bfe(a, b, c, s),
            b=SMALL % 33,
            c=SMALL[::-1] % 33,
        )

    def bfi(a, b, c):
        position, length = 5, c
        mask = (1 << length) - 1 << position & M32
        return b & ~mask | a << position & mask

    check("bfi.b32 %d, %a, %b, 5, %c;", bfi, c=SMALL % 40)


def test_dot_products():
    def dp(a, b, c, sa, sb, lanes=4):
        xa, xb = a.to_bytes(4, "little"), b.to_bytes(4, "little")
        f = lambda v, s: v - 256 if s and v > 127 else v  # noqa: E731
        return sum(f(p, sa) * f(q, sb) for p, q in zip(xa, xb, strict=True)) + c

    check("dp4a.s32.s32 %d, %a, %b, %c;", lambda a, b, c: dp(a, b, c, True, True))
    check("dp4a.u32.s32 %d, %a, %b, %c;", lambda a, b, c: dp(a, b, c, False, True))
    check("dp4a.u32.u32 %d, %a, %b, %c;", lambda a, b, c: dp(a, b, c, False, False))


def test_setp_with_two_results_and_a_combination():
    text = "setp.lt.and.u32 %p|%q, %a, %b, %r;"
    pre = ".reg .pred %r; setp.gt.u32 %r, %c, 0x7fffffff;"
    out = evaluate(pre + text, {"p": "pred", "q": "pred"}, threads=N, a=A, b=B, c=C)
    high = C > 0x7FFFFFFF
    assert np.array_equal(out["p"], ((A < B) & high).astype(np.uint32))
    assert np.array_equal(out["q"], ((A >= B) & high).astype(np.uint32))


def test_narrow_loads_extend_by_their_type():
    text = ".reg .b16 %h; cvt.u16.u32 %h, %a; cvt.s32.s16 %d, %h; cvt.u32.u16 %e, %h; .reg .b32 %g; cvt.s32.s8 %f, %a;"
    out = evaluate(text, {"d": "b32", "e": "b32", "f": "b32"}, threads=N, a=A)
    for i in range(N):
        low = int(A[i]) & 0xFFFF
        assert int(out["d"][i]) == signed(low, 16) & M32
        assert int(out["e"][i]) == low
        assert int(out["f"][i]) == signed(low & 0xFF, 8) & M32


def test_unknown_instructions_stop_with_their_relatives():
    with pytest.raises(UnknownInstruction, match=r"lop4.*\n.*\n.*lop3"):
        evaluate("lop4.b32 %d, %a, %a;", {"d": "b32"}, a=A[:32])
    with pytest.raises(UnknownInstruction, match=r"does not model \.fast"):
        evaluate("add.fast.s32 %d, %a, %a;", {"d": "b32"}, a=A[:32])
    with pytest.raises(UnknownInstruction, match=r"mma\.sync\.aligned\.m16n8k8"):
        evaluate("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%d},{%a},{%a},{%a};", {"d": "b32"}, a=A[:32])
