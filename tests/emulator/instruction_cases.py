"""Instructions on random operands, as snippets: recorded once on a GPU, re-checked by the emulator on every machine.
Called by record_on_device.py and test_emulator_fixtures.py.
Assumes compute capability 9.0; `tolerance` is relative to the largest magnitude of the output, 0 means bit for bit."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.emulator.snippets import MapOf, Snippet, threadwise

FILL = """.reg .b64 %q0; .reg .b32 %s0, %w0, %t0; mov.u64 %q0, dyn; cvt.u32.u64 %s0, %q0; mov.u32 %t0, %tid.x;
  shl.b32 %w0, %t0, 4; add.u32 %w0, %w0, %s0; st.shared.v4.u32 [%w0], {%a, %b, %c, %e}; bar.warp.sync -1;"""
F32_SUM = 2.0**-21  # float32 sums in another order
FP8_SUM = 2.0**-11  # Hopper adds fp8 products in about 14 bits


@dataclass
class Case:
    name: str
    snippet: Snippet
    kind: str  # numpy type of the outputs for the comparison
    tolerance: float = 0.0


def halves(rng, count, kind):
    """Packed pairs of random f16 or bf16 near one."""
    values = rng.standard_normal((count, 2)).astype(np.float32)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint32).reshape(-1)
    high = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(high).view(np.uint32).reshape(-1)


def finite_bytes(rng, count, kind):
    """Words of four random fp8 codes of moderate size."""
    codes = rng.integers(0, 256, (count, 4), dtype=np.uint8)
    exponent = 0x78 if kind == "e4m3" else 0x7C
    codes = np.where((codes & exponent) >= (0x60 if kind == "e4m3" else 0x50), codes & 0x9F, codes).astype(np.uint8)
    return codes.view(np.uint32).reshape(-1)


def words(rng, count, kind):
    if kind in ("f16", "bf16"):
        return halves(rng, count, kind)
    if kind == "tf32":
        return rng.standard_normal(count).astype(np.float32).view(np.uint32)
    if kind in ("e4m3", "e5m2"):
        return finite_bytes(rng, count, kind)
    return rng.integers(0, 2**32, count, dtype=np.uint32)


def mma_cases():
    table = [
        ("m16n8k16", "f32", "f16", "f16", 4, 2), ("m16n8k8", "f32", "f16", "f16", 2, 1), ("m16n8k16", "f16", "f16", "f16", 4, 2),
        ("m16n8k16", "f32", "bf16", "bf16", 4, 2), ("m16n8k8", "f32", "bf16", "bf16", 2, 1), ("m16n8k8", "f32", "tf32", "tf32", 4, 2),
        ("m16n8k32", "s32", "s8", "s8", 4, 2), ("m16n8k32", "s32", "u8", "s8", 4, 2), ("m16n8k16", "s32", "s8", "u8", 2, 1),
        ("m16n8k32", "s32", "s4", "u4", 2, 1), ("m16n8k64", "s32", "s4", "s4", 4, 2),
        ("m16n8k32", "f32", "e4m3", "e4m3", 4, 2), ("m16n8k32", "f32", "e5m2", "e4m3", 4, 2),
    ]  # fmt: skip
    for seed, (shape, d, a, b, regs_a, regs_b) in enumerate(table):
        rng = np.random.default_rng(100 + seed)
        accumulators = 2 if d == "f16" else 4
        inputs = {f"a{i}": words(rng, 32, a) for i in range(regs_a)} | {
            f"b{i}": words(rng, 32, b) for i in range(regs_b)
        }
        for i in range(accumulators):
            if d == "f16":
                inputs[f"c{i}"] = halves(rng, 32, "f16")
            elif d == "f32":
                inputs[f"c{i}"] = rng.standard_normal(32).astype(np.float32)
            else:
                inputs[f"c{i}"] = rng.integers(-1000, 1000, 32).astype(np.int32)
        names = [("d", accumulators), ("a", regs_a), ("b", regs_b), ("c", accumulators)]
        operands = ", ".join("{" + ", ".join(f"%{v}{i}" for i in range(n)) + "}" for v, n in names)
        text = f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d} {operands};"
        kind = {"f32": "float32", "s32": "int32", "f16": "float16"}[d]
        tolerance = {"s32": 0.0, "f16": 2.0**-9}.get(d, FP8_SUM if a.startswith("e") else F32_SUM)
        snippet = threadwise(text, {f"d{i}": "b32" for i in range(accumulators)}, **inputs)
        yield Case(f"mma.{shape}.{d}.{a}.{b}", snippet, kind, tolerance)


def matrix_cases():
    rng = np.random.default_rng(200)
    inputs = {v: rng.integers(0, 2**32, 32, dtype=np.uint32) for v in "abce"}
    outputs = {f"d{j}": "b32" for j in range(4)}
    for transposed in ("", ".trans"):
        load = f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%d0, %d1, %d2, %d3}}, [%w0];"
        yield Case(f"ldmatrix.x4{transposed}", threadwise(FILL + load, outputs, shared_bytes=1024, **inputs), "uint32")
        store = f"""add.u32 %w0, %w0, 512; stmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 [%w0], {{%a, %b, %c, %e}};
          bar.warp.sync -1; ld.shared.v4.u32 {{%d0, %d1, %d2, %d3}}, [%w0];"""
        yield Case(f"stmatrix.x4{transposed}", threadwise(FILL + store, outputs, shared_bytes=1024, **inputs), "uint32")
    text = "movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;"
    yield Case("movmatrix", threadwise(text, {"d": "b32"}, a=inputs["a"]), "uint32")


def arithmetic_cases():
    rng = np.random.default_rng(300)
    patterns = {v: rng.integers(0, 2**32, 256, dtype=np.uint32) for v in "abc"}
    near = {v: rng.standard_normal(256).astype(np.float32) for v in "abc"}
    for kind in ("f16", "bf16"):
        packed = {v: halves(rng, 256, kind) for v in "abc"}
        tiny = {v: packed[v] & np.uint32(0x83FF83FF if kind == "f16" else 0x80FF80FF) for v in "ab"} | {
            "c": packed["c"]
        }
        for tag, inputs in (("", packed), (".small", tiny)):
            for op, text in (
                ("fma", f"fma.rn.{kind}x2 %d, %a, %b, %c;"),
                ("mul", f"mul{'.rn' if kind == 'f16' else ''}.{kind}x2 %d, %a, %b;"),
                ("add", f"add{'.rn' if kind == 'f16' else ''}.{kind}x2 %d, %a, %b;"),
                ("sub", f"sub{'.rn' if kind == 'f16' else ''}.{kind}x2 %d, %a, %b;"),
            ):
                used = inputs if op == "fma" else {v: inputs[v] for v in "ab"}
                yield Case(f"{op}.{kind}x2{tag}", threadwise(text, {"d": "b32"}, threads=256, **used), "uint32")
        text = f"cvt.rn.{kind}x2.f32 %d, %a, %b;"
        yield Case(f"cvt.{kind}x2.f32", threadwise(text, {"d": "b32"}, threads=256, a=near["a"], b=near["b"]), "uint32")
    for name in ("e4m3", "e5m2"):
        text = f".reg .b16 %h; cvt.rn.satfinite.{name}x2.f32 %h, %a, %b; cvt.u32.u16 %d, %h;"
        big = {v: (near[v] * np.float32(200)).astype(np.float32) for v in "ab"}
        yield Case(f"cvt.{name}x2.f32", threadwise(text, {"d": "b32"}, threads=256, **big), "uint32")
        codes = np.arange(256, dtype=np.uint32) * np.uint32(257)
        text = f".reg .b16 %h; cvt.u16.u32 %h, %a; cvt.rn.f16x2.{name}x2 %d, %h;"
        yield Case(f"cvt.f16x2.{name}x2", threadwise(text, {"d": "b32"}, threads=256, a=codes), "uint32")
    for name, text in (
        ("prmt", "prmt.b32 %d, %a, %b, %c;"),
        ("lop3", "lop3.b32 %d, %a, %b, %c, 0xd8;"),
        ("shf", "shf.l.wrap.b32 %d, %a, %b, %c;"),
        ("bfe.s32", "bfe.s32 %d, %a, %b, %c;"),
        ("bfi", "bfi.b32 %d, %a, %b, 5, %c;"),
        ("mul.hi", "mul.hi.s32 %d, %a, %b;"),
        ("dp4a", "dp4a.s32.s32 %d, %a, %b, %c;"),
    ):
        yield Case(name, threadwise(text, {"d": "b32"}, threads=256, **patterns), "uint32")
    yield Case("fma.f32", threadwise("fma.rn.f32 %d, %a, %b, %c;", {"d": "b32"}, threads=256, **near), "uint32")


# --- wgmma -----------------------------------------------------------------------------------------------------


WGMMA = """.reg .b64 %p, %q, %o, %da, %db, %w, %fixed; .reg .b32 %s, %t, %a, %i; .reg .pred %true, %l;
  .reg .b32 %x, %y, %z, %u, %d0, %d1, %d2, %d3, %a0, %a1, %a2, %a3;
  mov.u64 %q, dyn; cvt.u32.u64 %s, %q; mov.u32 %t, %tid.x; ld.param.u64 %p, [args]; ld.param.u64 %o, [args+8];
  mov.u32 %i, %t;
  LOOP: mul.wide.u32 %w, %i, 16; add.s64 %w, %w, %p; shl.b32 %a, %i, 4; add.u32 %a, %a, %s;
  ld.global.v4.u32 {{%x, %y, %z, %u}}, [%w]; st.shared.v4.u32 [%a], {{%x, %y, %z, %u}};
  add.u32 %i, %i, 128; setp.lt.u32 %l, %i, {chunks}; @%l bra LOOP;
  fence.proxy.async; bar.sync 0;
  cvt.u64.u32 %da, %s; shr.u64 %da, %da, 4; mov.u64 %fixed, {fixed}; or.b64 %da, %da, %fixed; add.s64 %db, %da, {b_chunks};
  {registers}
  mov.u32 %d0, 0; mov.u32 %d1, 0; mov.u32 %d2, 0; mov.u32 %d3, 0; setp.eq.u32 %true, %s, %s;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.{shape} {{%d0, %d1, %d2, %d3}}, {a}, %db, %true{rest};
  wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
  mul.wide.u32 %w, %t, 16; add.s64 %w, %w, %o; st.global.v4.u32 [%w], {{%d0, %d1, %d2, %d3}}; ret;"""


def wgmma_cases():
    """A [64, 32 bytes] and B [8, 32 bytes] somewhere in 16 KiB of random shared memory: every byte placement is tested."""
    types = [
        ("bf16", "m64n8k16.f32.bf16.bf16", ", 1, 1, 0, 0", ", 1, 1, 0", F32_SUM),
        ("f16", "m64n8k16.f32.f16.f16", ", 1, 1, 0, 0", ", 1, 1, 0", F32_SUM),
        ("e4m3", "m64n8k32.f32.e4m3.e4m3", ", 1, 1", ", 1, 1", FP8_SUM),
        ("s8", "m64n8k32.s32.s8.s8", "", "", 0.0),
    ]
    for seed, (kind, shape, rest, rest_registers, tolerance) in enumerate(types):
        rng = np.random.default_rng(400 + seed)
        data = words(rng, 4096, kind)
        output = np.zeros((128, 4), np.int32 if kind == "s8" else np.float32)
        for width, code in ((0, 0), (128, 1), (64, 2), (32, 3)):
            stride, leading = (256, 128) if width == 0 else (8 * width, 16)
            fixed = leading >> 4 << 16 | stride >> 4 << 32 | code << 62
            common = {
                "chunks": 1024,
                "fixed": fixed if fixed < 2**63 else fixed - 2**64,
                "b_chunks": 8192 // 16,
                "shape": shape,
            }
            body = WGMMA.format(**common, registers="", a="%da", rest=rest)
            buffers = [("data", data, "input"), ("out", output, "output")]
            yield Case(f"wgmma.{kind}.swizzle{width}", Snippet(body, buffers, 128, 16384), output.dtype.name, tolerance)
        load = "ld.param.u64 %w, [args+16]; mul.wide.u32 %q, %t, 16; add.s64 %w, %w, %q; ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%w];"
        body = WGMMA.format(**common, registers=load, a="{%a0, %a1, %a2, %a3}", rest=rest_registers)
        buffers = [("data", data, "input"), ("out", output, "output"), ("a", words(rng, 512, kind), "input")]
        yield Case(f"wgmma.{kind}.registers", Snippet(body, buffers, 128, 16384), output.dtype.name, tolerance)
    # B with the columns contiguous (transposed), 128-byte swizzle
    rng = np.random.default_rng(450)
    fixed = (1024 >> 4 << 16 | 1024 >> 4 << 32 | 1 << 62) & (2**64 - 1)
    body = WGMMA.format(
        chunks=1024,
        fixed=fixed,
        b_chunks=8192 // 16,
        shape="m64n8k16.f32.bf16.bf16",
        registers="",
        a="%da",
        rest=", 1, 1, 1, 1",
    )
    buffers = [("data", words(rng, 4096, "bf16"), "input"), ("out", np.zeros((128, 4), np.float32), "output")]
    yield Case("wgmma.bf16.transposed", Snippet(body, buffers, 128, 16384), "float32", F32_SUM)


# --- tensor copies ---------------------------------------------------------------------------------------------


def tensor_cases():
    """A box that hangs over all sides of the tensor, every swizzle; the whole of shared memory comes back."""
    for width in (0, 32, 64, 128):
        inner = 8 if width == 0 else width // 2
        data = np.arange(1, 1 + 24 * 80, dtype=np.uint16).reshape(24, 80)
        size = 16 * inner * 2
        for x, y in ((-3, 15), (70, -2)):
            body = f""".reg .b64 %m, %o, %q, %w; .reg .b32 %s, %b, %t, %i, %v, %a; .reg .pred %p, %d;
              mov.u64 %q, dyn; cvt.u32.u64 %s, %q; add.u32 %b, %s, {size}; mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 0;
              ld.param.u64 %m, [args+8]; ld.param.u64 %o, [args+16];
              @%p mbarrier.init.shared::cta.b64 [%b], 1; @%p fence.mbarrier_init.release.cluster; bar.sync 0;
              @%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], {size};
              @%p cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s], [%m, {{{x}, {y}}}], [%b];
              AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %d, [%b], 0; @!%d bra AGAIN;
              mov.u32 %i, 0;
              LOOP: add.u32 %a, %s, %i; ld.shared.u32 %v, [%a]; cvt.u64.u32 %w, %i; add.s64 %w, %o, %w;
              @%p st.global.u32 [%w], %v; add.u32 %i, %i, 4; setp.lt.u32 %d, %i, {size}; @%d bra LOOP; ret;"""
            buffers = [
                ("data", data, "input"),
                ("map", MapOf("data", (80, 24), (160,), (inner, 16), 2, width), "input"),
                ("out", np.zeros(16 * inner, np.uint16), "output"),
            ]
            yield Case(
                f"tensor.swizzle{width}.{'low' if x < 0 else 'high'}", Snippet(body, buffers, 32, size + 16), "uint16"
            )


def all_cases():
    found = [*mma_cases(), *matrix_cases(), *arithmetic_cases(), *wgmma_cases(), *tensor_cases()]
    assert len({c.name for c in found}) == len(found)
    return found


def outputs_of(case):
    return [(name, content) for name, content, role in case.snippet.buffers if role == "output"]


def difference(case, name, got, wanted):
    """None, or words for how far two outputs are apart."""
    got = np.asarray(got).reshape(-1).view(case.kind)
    wanted = np.asarray(wanted).reshape(-1).view(case.kind)
    if case.tolerance == 0:
        wrong = np.flatnonzero(got != wanted)
        if not len(wrong):
            return None
        at = wrong[0]
        return f"{case.name} {name}: {len(wrong)} of {len(got)} differ, first [{at}] {got[at]!r} against {wanted[at]!r}"
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    error = np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-30)
    return (
        None
        if error <= case.tolerance
        else f"{case.name} {name}: relative difference {error:.2e} above {case.tolerance:.2e}"
    )
