"""wgmma: operands by descriptor or from registers, fences, groups and waits.
Called through the registry of `decode`; `inflight.py` wraps the other instructions that touch its registers.
Assumes each warp of the warpgroup computes its own 16 rows; sums as in mma.sync.

Descriptor, 64 bits: start >> 4 in bits 0..13, leading byte offset >> 4 in 16..29, stride byte offset >> 4 in 32..45,
base offset in 49..51, swizzle in 62..63 (0 none, 1 128 bytes, 2 64, 3 32).

    K-major     rows of 8 in steps of `stride`; within eight rows a pitch of the swizzle width (none: 16 bytes,
                the second 16 bytes of k at `leading`)
    MN-major    per k a run of one swizzle width along MN, eight k one after the other; next eight k at `stride`,
                next run along MN at `leading` (none: runs of 16 bytes at `stride`, next eight k at `leading`)
"""

from __future__ import annotations

import numpy as np

from tests.emulator import fragments
from tests.emulator.decode import Modifiers, instruction, unknown
from tests.emulator.errors import Fault
from tests.emulator.floats import half_to_f32, join_pair, split_pair, to_half
from tests.emulator.instructions.mma import BITS, element_values, split_codes
from tests.emulator.program import Register, Vector
from tests.emulator.tensor_map import swizzle_address

WIDTHS = {0: 0, 1: 128, 2: 64, 3: 32}
TYPES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8")
FORMS = (
    "wgmma.fence.sync.aligned",
    "wgmma.commit_group.sync.aligned",
    "wgmma.wait_group.sync.aligned N",
    "wgmma.mma_async.sync.aligned.m64nNk16.f32|f16.f16|bf16.f16|bf16 d, a|descriptor, descriptor, p, 1, 1{, ta}, tb",
    "wgmma.mma_async.sync.aligned.m64nNk8.f32.tf32.tf32",
    "wgmma.mma_async.sync.aligned.m64nNk32.f32|f16.e4m3|e5m2.e4m3|e5m2",
    "wgmma.mma_async.sync.aligned.m64nNk32.s32.s8|u8.s8|u8",
)


def chunk_addresses(descriptor, rows, transposed, k_count):
    """int64 shared addresses of 16-byte chunks.

    K-major: [rows, 2] (32 bytes of k). MN-major: [k_count, rows / 8] (eight 16-bit elements along MN).
    """
    start = (descriptor & 0x3FFF) << 4
    leading = (descriptor >> 16 & 0x3FFF) << 4
    stride = (descriptor >> 32 & 0x3FFF) << 4
    width = WIDTHS[descriptor >> 62 & 3]
    if not transposed:
        row, chunk = np.arange(rows)[:, None], np.arange(2)[None, :]
        if width:
            address = start + row // 8 * stride + row % 8 * width + chunk * 16
        else:
            address = start + row // 8 * stride + row % 8 * 16 + chunk * leading
    else:
        k, chunk = np.arange(k_count)[:, None], np.arange(rows // 8)[None, :]
        if width:
            per = width // 16
            address = start + chunk // per * leading + k // 8 * stride + k % 8 * width + chunk % per * 16
        else:
            address = start + chunk * stride + k // 8 * leading + k % 8 * 16
    return swizzle_address(address.astype(np.int64), width)


def shared_operand(c, descriptor, rows, bits, kind, transposed, warps, what):
    """float64 or int64 [rows, k] read through a descriptor by the async proxy; returns (matrix, in-flight tokens)."""
    if descriptor >> 49 & 7:
        raise Fault(
            "bad descriptor", f"wgmma descriptor of {what} with a base offset is not modelled", c.thread_ids[:1]
        )
    k = 256 // bits
    addresses = chunk_addresses(descriptor, rows, transposed, k)
    flat = addresses.reshape(-1)
    tokens = []
    for warp in warps:
        threads = np.full(len(flat), warp * 32)
        c.shared.check_range(flat, 16, threads, f"wgmma {what} read")
        c.shared.on_async_read(flat, 16, threads, f"wgmma {what} read")
        tokens.append(c.shared.begin_async_read(flat, 16, int(warp), c.current))
    data = c.shared.gather(flat, 16)
    c.count_bytes("shared async load", data.size)
    if transposed:
        codes = data.reshape(k, rows * 2).view(np.uint16)
        return element_values(kind, codes.T.astype(np.uint32)), tokens
    if bits == 32:
        codes = data.reshape(rows, 32).view(np.uint32)
    elif bits == 16:
        codes = data.reshape(rows, 32).view(np.uint16).astype(np.uint32)
    else:
        codes = data.reshape(rows, 32).astype(np.uint32)
    return element_values(kind, codes), tokens


@instruction("wgmma", forms=FORMS)
def wgmma(d, ins):
    m = Modifiers(ins)
    m.ignore("sync", "aligned")
    if m.flag("fence"):
        m.done()
        return fence
    if m.flag("commit_group"):
        m.done()
        return commit
    if m.flag("wait_group"):
        m.done()
        count = int(d.immediate(ins.operands[0], "u32"))
        return lambda c: wait(c, count)
    if not m.flag("mma_async"):
        raise unknown(ins, "this wgmma operation is not modelled")
    finite = m.flag("satfinite")
    shape, d_type, a_type, b_type = (m.left + [None] * 4)[:4]
    if len(m.left) != 4 or a_type not in TYPES or b_type not in TYPES or not shape.startswith("m64n"):
        raise unknown(ins, "expected a shape m64nNkK and three types")
    n, k = (int(v) for v in shape[4:].split("k"))
    bits = BITS[a_type]
    if k != 256 // bits or n % 8 or not 8 <= n <= 256 or d_type not in ("f32", "f16", "s32"):
        raise unknown(ins, f"no such shape {shape} for {a_type}")
    targets = ins.operands[0].items
    wanted = n // 4 if d_type == "f16" else n // 2
    if len(targets) != wanted:
        raise unknown(ins, f"{wanted} accumulator registers are needed, got {len(targets)}")
    olds = d.reads(targets, "b32", ins)
    writes = [d.write(t, ins) for t in targets]
    from_registers = isinstance(ins.operands[1], Vector)
    a_read = d.reads(ins.operands[1].items, "b32", ins) if from_registers else d.read(ins.operands[1], "u64", ins)
    b_read = d.read(ins.operands[2], "u64", ins)
    rest = list(ins.operands[3:])
    use_old = d.read(rest.pop(0), "pred", ins) if rest else (lambda c: np.bool_(True))
    numbers = [int(d.immediate(v, "s32")) for v in rest]
    sign_a, sign_b, transpose_a, transpose_b = 1, 1, 0, 0
    if d_type != "s32" and numbers:
        sign_a, sign_b = numbers[0], numbers[1]
        transposes = numbers[2:]
        if from_registers and transposes:
            transpose_b = transposes[0]
        elif transposes:
            transpose_a, transpose_b = transposes
    accumulator_registers = [t.index for t in targets]
    a_registers = [r.index for r in ins.operands[1].items] if from_registers else []
    index = np.array([[fragments.wgmma_accumulator(t, i) for i in range(n // 2)] for t in range(32)])
    rows_of, columns_of = index[..., 0], index[..., 1]
    a_rows, a_columns = fragments.a_index(bits, k)

    def run(c):
        state = c.wgmma_state()
        c.require_converged()
        active = c.active_mask().reshape(-1, 32).any(axis=1)
        warps = np.flatnonzero(active)
        accumulate = c.full(use_old(c)).reshape(-1, 32)[:, 0]
        state.check_issue(c, accumulator_registers, a_registers, accumulate)
        tokens = {int(w): [] for w in warps}
        b_words = c.full(b_read(c)).reshape(-1, 32)[:, 0]
        product = np.zeros((c.W, 16, n))
        if from_registers:
            words = np.stack([c.full(r(c)) for r in a_read], axis=-1).reshape(c.W, 32, -1)
            values = element_values(a_type, split_codes(words, bits))
            a = np.zeros((c.W, 16, k))
            a[:, a_rows, a_columns] = values
        else:
            a_words = c.full(a_read(c)).reshape(-1, 32)[:, 0]
        for descriptor in np.unique(b_words[warps]).tolist():
            mine = [int(w) for w in warps if b_words[w] == descriptor]
            b, reads = shared_operand(
                c, descriptor, n, bits, b_type, bool(transpose_b), [w + c.warp_offset for w in mine], "B"
            )
            for w, token in zip(mine, reads, strict=True):
                tokens[w].append(token)
                if from_registers:
                    left = a[w]
                else:
                    whole, own = _own_rows(c, int(a_words[w]), bits, a_type, bool(transpose_a), w)
                    tokens[w].append(own)
                    left = whole
                product[w] = left @ b.T
        if sign_a * sign_b < 0:
            product = -product
        part = product[:, rows_of, columns_of]  # [warps, 32, n / 2]
        old = np.stack([c.full(r(c)) for r in olds], axis=-1).reshape(c.W, 32, len(olds))
        keep = accumulate[:, None, None]
        if d_type == "f32":
            total = part + np.where(keep, old.view(np.float32), np.float32(0))
            out = total.astype(np.float32).view(np.uint32)
        elif d_type == "s32":
            total = part.astype(np.int64) + np.where(keep, old.view(np.int32), 0)
            out = (np.clip(total, -(2**31), 2**31 - 1) if finite else total).astype(np.int32).view(np.uint32)
        else:
            low, high = split_pair(old)
            before = np.stack([low, high], axis=-1).reshape(c.W, 32, -1)
            halves = to_half(part + np.where(keep, half_to_f32(before), np.float32(0)))
            out = join_pair(halves[..., 0::2], halves[..., 1::2])
        for place, write in enumerate(writes):
            write(c, np.ascontiguousarray(out[:, :, place]).reshape(-1))
        state.issued(c, accumulator_registers, a_registers, tokens)

    return run


def _own_rows(c, descriptor, bits, kind, transposed, warp):
    """The 16 rows of A of one warp of its warpgroup."""
    addresses = chunk_addresses(descriptor, 64, transposed, 256 // bits)
    part = warp % 4
    addresses = addresses[:, 2 * part :][:, :2] if transposed else addresses[16 * part :][:16]
    flat = np.ascontiguousarray(addresses).reshape(-1)
    thread = (warp + c.warp_offset) * 32
    threads = np.full(len(flat), thread)
    c.shared.check_range(flat, 16, threads, "wgmma A read")
    c.shared.on_async_read(flat, 16, threads, "wgmma A read")
    token = c.shared.begin_async_read(flat, 16, warp + c.warp_offset, c.current)
    data = c.shared.gather(flat, 16)
    if transposed:
        codes = data.reshape(256 // bits, 32).view(np.uint16).T.astype(np.uint32)
    elif bits == 16:
        codes = data.reshape(16, 32).view(np.uint16).astype(np.uint32)
    elif bits == 32:
        codes = data.reshape(16, 32).view(np.uint32)
    else:
        codes = data.reshape(16, 32).astype(np.uint32)
    return element_values(kind, codes), token


def fence(c):
    c.wgmma_state().fence(c)


def commit(c):
    c.wgmma_state().commit(c)


def wait(c, count):
    c.wgmma_state().wait(c, count)


__all__ = ["Register", "chunk_addresses", "wgmma"]
