"""mma.sync: every dense type and shape, and the block-scaled kinds.
Called through the registry of `decode`.
Assumes products are exact and their sum with the accumulator is rounded once to float32 (integers wrap or saturate);
real tensor cores add in an order and width of their own, so floats agree within accumulation order only.
"""

from __future__ import annotations

import numpy as np

from tests.emulator import fragments
from tests.emulator.decode import Modifiers, instruction, unknown
from tests.emulator.floats import bf16_to_f32, half_to_f32, join_pair, small_table, split_pair, to_half

# element type -> bits in the register
BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1,
    "e4m3": 8, "e5m2": 8, "e2m3": 8, "e3m2": 8, "e2m1": 8,
}  # fmt: skip
SHAPES = {
    "f16": (8, 16), "bf16": (8, 16), "tf32": (4, 8), "s8": (16, 32), "u8": (16, 32), "s4": (32, 64), "u4": (32, 64),
    "e4m3": (16, 32), "e5m2": (16, 32), "e2m3": (32,), "e3m2": (32,), "e2m1": (32, 64),
}  # fmt: skip
FORMS = (
    "mma.sync.aligned.m16n8k8|k16.row.col.f32|f16.f16.f16.f32|f16",
    "mma.sync.aligned.m16n8k8|k16.row.col.f32.bf16.bf16.f32",
    "mma.sync.aligned.m16n8k4|k8.row.col.f32.tf32.tf32.f32",
    "mma.sync.aligned.m16n8k16|k32.row.col{.satfinite}.s32.s8|u8.s8|u8.s32",
    "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32",
    "mma.sync.aligned.m16n8k32|k64.row.col{.satfinite}.s32.s4|u4.s4|u4.s32",
    "mma.sync.aligned.m16n8k16|k32.row.col.f32.e4m3|e5m2.e4m3|e5m2.f32",
    "mma.sync.aligned.kind::f8f6f4.m16n8k32...",
    "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32...ue8m0",
    "mma.sync.aligned.kind::mxf4|mxf4nvf4.block_scale.scale_vec::2X|4X.m16n8k64...",
)


def element_values(kind, codes):
    """float64 (or int64) of the raw codes of one operand."""
    if kind == "f16":
        return half_to_f32(codes.astype(np.uint16)).astype(np.float64)
    if kind == "bf16":
        return bf16_to_f32(codes.astype(np.uint16)).astype(np.float64)
    if kind == "tf32":
        return (codes & np.uint32(0xFFFFE000)).astype(np.uint32).view(np.float32).astype(np.float64)
    if kind in ("s8", "s4"):
        bits = BITS[kind]
        value = codes.astype(np.int64)
        return np.where(value >> (bits - 1) & 1, value - (1 << bits), value)
    if kind in ("u8", "u4"):
        return codes.astype(np.int64)
    return small_table(kind)[codes]


def split_codes(registers, bits):
    """uint32 [..., registers] to codes [..., registers, per register], low bits first."""
    per = 32 // bits
    if bits == 32:
        return registers[..., None]
    shifts = np.arange(per, dtype=np.uint32) * np.uint32(bits)
    return (registers[..., None] >> shifts) & np.uint32((1 << bits) - 1)


def matrices(values_a, values_b, bits, k):
    """[warps, 16, k] and [warps, k, 8] from per-lane values [warps, 32, registers, per]."""
    a = np.zeros((len(values_a), 16, k), values_a.dtype)
    a[(slice(None), *fragments.a_index(bits, k))] = values_a
    b = np.zeros((len(values_b), k, 8), values_b.dtype)
    b[(slice(None), *fragments.b_index(bits, k))] = values_b
    return a, b


def _code_of_6_or_4_bits(kind, codes):
    """In an 8-bit container the 6-bit types lie in the low bits, e2m1 in bits 2 to 5 (f8f6f4 kinds)."""
    if kind == "e2m1":
        return codes >> np.uint32(2) & np.uint32(15)
    if kind in ("e2m3", "e3m2"):
        return codes & np.uint32(0x3F)
    return codes


@instruction("mma", forms=FORMS)
def mma(d, ins):
    m = Modifiers(ins)
    m.ignore("sync", "aligned", "row", "col", "m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32", "m16n8k64")
    shape = next((w for w in ins.modifiers if w.startswith("m") and w[1:3].isdigit()), None)
    if shape is None or not shape.startswith("m16n8k"):
        raise unknown(ins, f"shape {shape} is not modelled")
    k = int(shape[6:])
    kind_word = next((w for w in ins.modifiers if w.startswith("kind::")), None)
    m.ignore(kind_word)
    scaled = m.flag("block_scale")
    vector = m.take("scale_vec::1X", "scale_vec::2X", "scale_vec::4X")
    finite = m.flag("satfinite")
    scale_type = m.take("ue8m0", "ue4m3") if scaled else None
    if len(m.left) != 4:
        raise unknown(ins, f"expected four types, got {m.left}")
    d_type, a_type, b_type, c_type = m.left
    packed_four = kind_word in ("kind::mxf4", "kind::mxf4nvf4")
    if a_type not in SHAPES or b_type not in SHAPES or k not in SHAPES[a_type] or d_type != c_type:
        raise unknown(ins, f"no such mma: {a_type} x {b_type} with k{k}")
    bits = 4 if packed_four else BITS[a_type]
    if bits == 8 and any(t in ("e2m1", "e2m3", "e3m2") for t in (a_type, b_type)) and kind_word is None:
        raise unknown(ins, "6 and 4-bit floats need a kind")
    a_regs, b_regs, c_regs = (d.reads(d.items(o), "b32", ins) for o in ins.operands[1:4])
    writes = [d.write(t, ins) for t in d.items(ins.operands[0])]
    if (len(a_regs), len(b_regs)) != (16 * k * bits // 1024, 8 * k * bits // 1024):
        raise unknown(ins, f"A needs {16 * k * bits // 1024} registers and B {8 * k * bits // 1024}")
    scales = _scale_operands(d, ins, scaled, vector, kind_word)
    row, column = fragments.accumulator_index()

    def gather(c, regs):
        return np.stack([c.full(r(c)) for r in regs], axis=-1).reshape(c.T // 32, 32, len(regs))

    def values(kind, registers):
        codes = split_codes(registers, bits)
        if bits == 8 and kind_word is not None:
            codes = _code_of_6_or_4_bits(kind, codes)
        return element_values(kind, codes)

    def run(c):
        c.require_converged()
        a, b = matrices(values(a_type, gather(c, a_regs)), values(b_type, gather(c, b_regs)), bits, k)
        if scales is not None:
            a, b = apply_scales(c, a, b, scales, scale_type, k)
        product = a @ b  # [warps, 16, 8]
        part = product[:, row, column]  # [warps, 32, 4]
        old = gather(c, c_regs)
        if d_type == "f16":
            low, high = split_pair(old)
            old = np.stack([low, high], axis=-1).reshape(len(old), 32, 4)
            bits16 = to_half(part + half_to_f32(old))
            out = join_pair(bits16[..., 0::2], bits16[..., 1::2])
        elif d_type == "f32":
            out = (part + old.view(np.float32)).astype(np.float32).view(np.uint32)
        else:
            total = part + old.view(np.int32).astype(np.int64)
            if finite:
                total = np.clip(total, -(2**31), 2**31 - 1)
            out = total.astype(np.int32).view(np.uint32)
        for place, write in enumerate(writes):
            write(c, np.ascontiguousarray(out[:, :, place]).reshape(-1))

    return run


def _scale_operands(d, ins, scaled, vector, kind_word):
    """(scale A reader, its byte and thread selectors, the same of B, blocks along k)."""
    if not scaled:
        return None
    scale_a, selector_a, scale_b, selector_b = ins.operands[4:8]
    blocks = {"scale_vec::1X": 1, "scale_vec::2X": 2, "scale_vec::4X": 4, None: 1}[vector]
    if vector is None and kind_word == "kind::mxf4":
        blocks = 2

    def selectors(vector_operand):
        return [int(d.immediate(v, "u16")) for v in vector_operand.items]

    return (
        d.read(scale_a, "b32", ins), selectors(selector_a),
        d.read(scale_b, "b32", ins), selectors(selector_b), blocks,
    )  # fmt: skip


def apply_scales(c, a, b, scales, scale_type, k):
    """Multiply each block of columns of A (rows of B) by its scale.

    Scale of row i of A: lane 4 * (i % 8) + 2 * (thread id & 1) + i // 8. Scale of column j of B: lane 4 * j + id.
    """
    read_a, (byte_a, thread_a), read_b, (byte_b, thread_b), blocks = scales
    table = small_table(scale_type)
    rows = np.arange(16)
    lanes_a = 4 * (rows % 8) + 2 * (thread_a & 1) + rows // 8
    lanes_b = 4 * np.arange(8) + thread_b
    word_a = c.full(read_a(c)).reshape(-1, 32)[:, lanes_a]
    word_b = c.full(read_b(c)).reshape(-1, 32)[:, lanes_b]

    def factors(word, byte):
        shifts = np.uint32(8) * (np.arange(blocks, dtype=np.uint32) + np.uint32(byte))
        return np.repeat(table[(word[..., None] >> shifts) & np.uint32(0xFF)], k // blocks, axis=-1)

    return a * factors(word_a, byte_a), b * factors(word_b, byte_b).transpose(0, 2, 1)
