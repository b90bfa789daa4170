"""Exchanges inside a warp: shfl, vote, match, redux, elect, and the matrix loads and stores of shared memory.
Called through the registry of `decode`.
Assumes all lanes of the member mask execute together; `Context.require_converged` makes them wait for each other."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import Modifiers, instruction, unknown
from tests.emulator.program import Pair


@instruction("shfl", forms=("shfl.sync.up|down|bfly|idx.b32 d{|p}, a, b, c, mask",))
def shfl(d, ins):
    m = Modifiers(ins)
    m.type()
    mode = m.take("up", "down", "bfly", "idx")
    if not m.flag("sync") or mode is None:
        raise unknown(ins, "only the .sync forms exist on today's targets")
    m.done()
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    write, write_inside = d.write(first, ins), d.write(second, ins)
    value, lane_operand, clamp, members = d.reads(ins.operands[1:5], "u32", ins)

    def run(c):
        mask = c.full(members(c))
        c.require_converged(mask)
        lane = np.arange(c.T, dtype=np.int64) & 31
        b = c.full(lane_operand(c)).astype(np.int64) & 31
        packed = c.full(clamp(c)).astype(np.int64)
        limit, segment = packed & 31, (packed >> 8) & 31
        highest = (lane & segment) | (limit & ~segment)
        lowest = lane & segment
        if mode == "up":
            source = lane - b
            inside = source >= highest
        elif mode == "down":
            source = lane + b
            inside = source <= highest
        elif mode == "bfly":
            source = lane ^ b
            inside = source <= highest
        else:
            source = lowest | (b & ~segment)
            inside = source <= highest
        source = np.where(inside, source, lane)
        base = np.arange(c.T) - lane
        active = c.active_mask()
        bad = inside & active & ~active[np.clip(base + source, 0, c.T - 1)]
        if bad.any():
            c.fault("inactive lane", "shfl reads from a lane that does not take part", bad)
        write(c, c.full(value(c))[base + source])
        if second is not None:
            write_inside(c, inside)

    return run


@instruction("vote", forms=("vote.sync.all|any|uni.pred", "vote.sync.ballot.b32"))
def vote(d, ins):
    m = Modifiers(ins)
    m.type()
    mode = m.take("all", "any", "uni", "ballot")
    m.flag("sync")
    m.done()
    write = d.write(ins.operands[0], ins)
    guard, members = d.read(ins.operands[1], "pred", ins), d.read(ins.operands[2], "u32", ins)

    def run(c):
        c.require_converged(members(c))
        active = c.active_mask().reshape(-1, 32)
        hold = c.full(guard(c)).reshape(-1, 32)
        if mode == "ballot":
            bits = ((hold & active) << np.arange(32, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
            write(c, np.repeat(bits, 32))
            return
        everyone, someone = (hold | ~active).all(axis=1), (hold & active).any(axis=1)
        result = {"all": everyone, "any": someone, "uni": everyone | ~someone}[mode]
        write(c, np.repeat(result, 32))

    return run


@instruction("redux", forms=("redux.sync.add|min|max|and|or|xor.type",))
def redux(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    op = m.take("add", "min", "max", "and", "or", "xor")
    m.flag("sync")
    m.done()
    if op is None or kind == "f32":
        raise unknown(ins, "this reduction is not modelled")
    write = d.write(ins.operands[0], ins)
    value, members = d.read(ins.operands[1], kind, ins), d.read(ins.operands[2], "u32", ins)
    function = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                "xor": np.bitwise_xor}[op]  # fmt: skip

    def run(c):
        c.require_converged(members(c))
        active = c.active_mask().reshape(-1, 32)
        values = c.full(value(c)).reshape(-1, 32)
        out = np.zeros(len(values), values.dtype)
        for warp in np.flatnonzero(active.any(axis=1)):
            out[warp] = function.reduce(values[warp][active[warp]], dtype=values.dtype)
        write(c, np.repeat(out, 32))

    return run


@instruction("match", forms=("match.any|all.sync.b32",))
def match(d, ins):
    m = Modifiers(ins)
    kind = m.type()
    mode = m.take("any", "all")
    m.flag("sync")
    m.done()
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    write, write_second = d.write(first, ins), d.write(second, ins)
    value, members = d.read(ins.operands[1], kind, ins), d.read(ins.operands[2], "u32", ins)

    def run(c):
        c.require_converged(members(c))
        active = c.active_mask().reshape(-1, 32)
        values = c.full(value(c)).reshape(-1, 32)
        same = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
        bits = (same << np.arange(32, dtype=np.uint64)).sum(axis=2).astype(np.uint32)
        if mode == "all":
            everyone = (active << np.arange(32, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
            equal = bits == everyone[:, None]
            bits = np.where(equal, bits, 0)
            write_second(c, equal.reshape(-1))
        write(c, bits.reshape(-1))

    return run


@instruction("elect", forms=("elect.sync d|p, mask",))
def elect(d, ins):
    m = Modifiers(ins)
    m.flag("sync")
    m.done()
    target = ins.operands[0]
    write, write_chosen = d.write(target.first, ins), d.write(target.second, ins)
    members = d.read(ins.operands[1], "u32", ins)

    def run(c):
        c.require_converged(members(c))
        active = c.active_mask().reshape(-1, 32)
        leader = np.argmax(active, axis=1)
        write(c, np.repeat(leader.astype(np.uint32), 32))
        write_chosen(c, (np.arange(32) == leader[:, None]).reshape(-1))

    return run


# --- ldmatrix, stmatrix ---------------------------------------------------------------------------------


def matrix_element(lane, transposed):
    """(row, first column) of the two neighbouring 16-bit elements that a lane holds of an 8x8 matrix.

    Without .trans a lane holds columns 2*(lane%4) and +1 of row lane//4; with .trans it holds rows
    2*(lane%4) and +1 of column lane//4.
    """
    if transposed:
        return 2 * (lane % 4), lane // 4
    return lane // 4, 2 * (lane % 4)


def _matrix_form(ins):
    m = Modifiers(ins)
    m.type()
    count = {"x1": 1, "x2": 2, "x4": 4}.get(m.take("x1", "x2", "x4"))
    shape = m.take("m8n8")
    transposed = m.flag("trans")
    m.ignore("sync", "aligned", "shared", "shared::cta")
    m.done()
    if shape is None or count is None:
        raise unknown(ins, "only m8n8 with x1, x2 or x4 of b16 is modelled")
    return count, transposed


@instruction("ldmatrix", forms=("ldmatrix.sync.aligned.m8n8.x1|x2|x4{.trans}.shared.b16",))
def ldmatrix(d, ins):
    count, transposed = _matrix_form(ins)
    writes = [d.write(t, ins) for t in d.items(ins.operands[0])]
    if len(writes) != count:
        raise unknown(ins, f"{count} matrices need {count} registers")
    address = d.address(ins.operands[1], ins)

    def run(c):
        c.require_converged()
        lane = np.arange(c.T) & 31
        giving = (lane < 8 * count) & c.active_mask()
        chosen = np.flatnonzero(giving)
        ids = c.thread_ids[chosen]
        addresses = address(c)[chosen]
        rows = np.zeros((c.T // 32, 8 * count, 16), np.uint8)
        for shared, positions, offsets, part in c.shared_targets(addresses, ids):
            shared.check_range(offsets, 16, part, "ldmatrix")
            shared.on_read(offsets, 16, part, "ldmatrix", collective=True)
            rows[chosen[positions] // 32, chosen[positions] % 32] = shared.gather(offsets, 16)
        c.count_bytes("shared load", 16 * len(chosen))
        c.profile_rows(addresses, chosen)
        words = rows.view(np.uint16).reshape(c.T // 32, count, 8, 8)
        lanes = np.arange(32)
        for place, write in enumerate(writes):
            block = words[:, place]
            if transposed:
                block = block.transpose(0, 2, 1)
            row, column = matrix_element(lanes, False)
            low, high = block[:, row, column], block[:, row, column + 1]
            value = low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))
            write(c, value.reshape(-1))

    return run


@instruction("stmatrix", forms=("stmatrix.sync.aligned.m8n8.x1|x2|x4{.trans}.shared.b16",))
def stmatrix(d, ins):
    count, transposed = _matrix_form(ins)
    reads = d.reads(d.items(ins.operands[1]), "b32", ins)
    address = d.address(ins.operands[0], ins)

    def run(c):
        c.require_converged()
        lane = np.arange(c.T) & 31
        chosen = np.flatnonzero((lane < 8 * count) & c.active_mask())
        ids = c.thread_ids[chosen]
        words = np.zeros((c.T // 32, count, 8, 8), np.uint16)
        row, column = matrix_element(np.arange(32), False)
        for place, read in enumerate(reads):
            value = c.full(read(c)).reshape(-1, 32)
            words[:, place, row, column] = value.astype(np.uint16)
            words[:, place, row, column + 1] = (value >> np.uint32(16)).astype(np.uint16)
        if transposed:
            words = words.transpose(0, 1, 3, 2)
        rows = np.ascontiguousarray(words).view(np.uint8).reshape(c.T // 32, 8 * count, 16)
        addresses = address(c)[chosen]
        for shared, positions, offsets, part in c.shared_targets(addresses, ids):
            shared.check_range(offsets, 16, part, "stmatrix")
            granules = shared.on_write(offsets, 16, part, "stmatrix")
            shared.scatter(offsets, rows[chosen[positions] // 32, chosen[positions] % 32])
            shared.stamp(granules, part)
            shared.proxy_generic[granules] = True
        c.count_bytes("shared store", 16 * len(chosen))
        c.profile_rows(addresses, chosen)

    return run


@instruction("movmatrix", forms=("movmatrix.sync.aligned.m8n8.trans.b16",))
def movmatrix(d, ins):
    """Transpose of an 8x8 matrix held across the warp, two 16-bit elements a lane."""
    m = Modifiers(ins)
    m.type()
    if not m.flag("m8n8") or not m.flag("trans"):
        raise unknown(ins, "only m8n8.trans exists")
    m.ignore("sync", "aligned")
    m.done()
    read, write = d.read(ins.operands[1], "b32", ins), d.write(ins.operands[0], ins)
    row, column = matrix_element(np.arange(32), False)

    def run(c):
        c.require_converged()
        value = c.full(read(c)).reshape(-1, 32)
        matrix = np.zeros((len(value), 8, 8), np.uint16)
        matrix[:, row, column] = value.astype(np.uint16)
        matrix[:, row, column + 1] = (value >> np.uint32(16)).astype(np.uint16)
        low, high = matrix[:, column, row], matrix[:, column + 1, row]
        write(c, (low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))).reshape(-1))

    return run
