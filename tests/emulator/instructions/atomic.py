"""atom and red, one thread after another.
Called through the registry of `decode`; bulk uses the functions for its reductions.
Assumes thread order inside an instruction; release and acquire go to the clocks."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import CACHE, ORDER, SCOPES, SPACES, TYPES, Modifiers, instruction, unknown
from tests.emulator.floats import bf16_to_f32, f32_to_bf16, half_to_f32, join_pair, split_pair, to_half


def atomic_function(op, kind, ins):
    floating = kind in ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")

    def add(old, new):
        if kind in ("f16x2", "bf16x2"):
            expand, narrow = (half_to_f32, to_half) if kind == "f16x2" else (bf16_to_f32, f32_to_bf16)
            parts = [narrow(expand(a) + expand(b)) for a, b in zip(split_pair(old), split_pair(new), strict=True)]
            return join_pair(*parts)
        if kind in ("f16", "bf16"):
            expand, narrow = (half_to_f32, to_half) if kind == "f16" else (bf16_to_f32, f32_to_bf16)
            return narrow(expand(old) + expand(new))
        return old + new

    functions = {
        "add": add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, new: new,
        "inc": lambda old, new: np.where(old >= new, 0, old + 1).astype(old.dtype),
        "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype),
    }
    if op not in functions or (floating and op not in ("add", "min", "max", "exch")):
        raise unknown(ins, f"atomic {op} of {kind} is not known")
    return functions[op]


@instruction("atom", "red", forms=("atom{.order.scope}{.space}.op.type", "red{..}.v2|v4.f32", "atom..cas.b32"))
def atomic(d, ins):
    m = Modifiers(ins)
    if "async" in m.left:
        from tests.emulator.instructions import bulk

        return bulk.red_async(d, ins)
    kind = m.type()
    vector = m.take("v2", "v4", "v8")
    space = m.take(*SPACES, default="generic")
    op = m.take("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    m.ignore(*ORDER, *SCOPES, *CACHE, "noftz")
    m.done()
    is_atom = ins.opcode == "atom"
    operands = list(ins.operands)
    target = operands.pop(0) if is_atom else None
    address = d.address(operands.pop(0), ins)
    if vector and is_atom:
        raise unknown(ins, "vector atom with a result is not modelled")
    sources = d.items(operands[0])
    reads = d.reads(sources, kind, ins)
    swap = d.read(operands[1], kind, ins) if op == "cas" else None
    write = d.write(target, ins) if target is not None else None
    dtype = np.dtype(TYPES[kind])
    size = dtype.itemsize
    function = None if op == "cas" else atomic_function(op, kind, ins)
    everywhere = "cta" not in ins.modifiers and space in ("global", "generic")
    acquire = everywhere and any(w in ins.modifiers for w in ("acquire", "acq_rel", "sc"))
    release = everywhere and any(w in ins.modifiers for w in ("release", "acq_rel", "sc"))

    def run(c):
        index, threads = c.lanes()
        addresses = address(c)
        addresses = addresses if index is None else addresses[index]
        values = [c.full(r(c)) for r in reads]
        values = [v if index is None else v[index] for v in values]
        swaps = None
        if swap is not None:
            swaps = c.full(swap(c))
            swaps = swaps if index is None else swaps[index]
        olds = np.empty(len(addresses), dtype)
        c.polled()
        # one thread after another, in thread order
        for place in range(len(addresses)):
            for element, value in enumerate(values):
                where = addresses[place : place + 1] + np.uint64(element * size)
                here = threads[place : place + 1]
                if everywhere:
                    c.clocks.strong_read(int(where[0]), int(here[0]) >> 5, acquire)
                old = c.atomic_load(space, where, size, here).view(dtype)[0]
                if swap is not None:
                    new = swaps[place : place + 1] if old[0] == value[place] else old
                else:
                    new = np.asarray(function(old, value[place : place + 1]), dtype)
                c.atomic_store(
                    space, where, new.view(np.uint8).reshape(1, size), here, changed=bool((old != new).any())
                )
                if everywhere:
                    c.clocks.strong_write(int(where[0]), int(here[0]) >> 5, release, True)
                if element == 0:
                    olds[place] = old[0]
        if write is not None:
            if index is not None:
                spread = np.zeros(c.T, dtype)
                spread[index] = olds
                olds = spread
            write(c, olds)

    return run
