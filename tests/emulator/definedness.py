"""Which registers may be read before they are written, and tracking of those per lane.
Called by `machine.Program` after decoding.
Assumes most registers are definitely assigned, so that only the few others pay for tracking."""

from __future__ import annotations

import numpy as np

from tests.emulator.errors import Fault
from tests.emulator.program import Address, Pair, Register, Vector

# opcodes whose first operand is not a destination
NO_DESTINATION = (
    "st", "red", "cp", "bar", "barrier", "bra", "brx", "ret", "exit", "trap", "membar", "fence", "stmatrix",
    "prefetch", "prefetchu", "nanosleep", "call", "setmaxnreg", "griddepcontrol", "wgmma", "pmevent", "discard",
    "applypriority", "tensormap",
)  # fmt: skip


def registers_in(operand):
    """All registers that appear in an operand."""
    if isinstance(operand, Register):
        return [operand.index]
    if isinstance(operand, Vector):
        return [r for item in operand.items for r in registers_in(item)]
    if isinstance(operand, Pair):
        return registers_in(operand.first) + registers_in(operand.second)
    if isinstance(operand, Address):
        return registers_in(operand.base) + [r for e in operand.extra for r in registers_in(e)]
    return []


def effects(ins):
    """(written registers, read registers)."""
    operands = list(ins.operands)
    written, read = [], []
    if operands and not isinstance(operands[0], Address):
        has_destination = ins.opcode not in NO_DESTINATION
        if ins.opcode in ("bar", "barrier"):
            has_destination = "red" in ins.modifiers
        if ins.opcode == "wgmma" and "mma_async" in ins.modifiers:
            # with scale_d false the old accumulator is not read; undefined ones show as NaN
            written += registers_in(operands.pop(0))
        elif has_destination:
            written += registers_in(operands.pop(0))
    for operand in operands:
        read += registers_in(operand)
    if ins.predicate is not None:
        read.append(ins.predicate.index)
    return written, read


def maybe_undefined(program):
    """Registers that some path may read before a write (a guarded write does not count as one)."""
    instructions = program.instructions
    count = len(instructions)
    if not count:
        return set()
    facts = [effects(ins) for ins in instructions]
    labels = program.kernel.labels
    successors = []
    for pc, ins in enumerate(instructions):
        following = [pc + 1] if pc + 1 < count else []
        if ins.opcode == "bra":
            target = [labels[ins.operands[0].name]]
            following = target + (following if ins.predicate is not None else [])
        elif ins.opcode == "brx":
            names = program.kernel.branch_targets[ins.operands[1].name.split("#")[0]]
            following = [labels[n] for n in names] + (following if ins.predicate is not None else [])
        elif ins.opcode in ("ret", "exit", "trap"):
            following = following if ins.predicate is not None else []
        successors.append([f for f in following if f < count])
    leaders = {0} | {
        f for pc, follow in enumerate(successors) if len(follow) != 1 or follow[0] != pc + 1 for f in follow
    }
    everything = (1 << len(program.registers)) - 1
    incoming = {leader: everything for leader in leaders}
    incoming[0] = 0
    work, suspects = sorted(leaders), set()
    gain = [0] * count
    for pc, (written, _) in enumerate(facts):
        if instructions[pc].predicate is None:
            for register in written:
                gain[pc] |= 1 << register

    def flow(leader):
        defined, pc = incoming[leader], leader
        while True:
            defined |= gain[pc]
            follow = successors[pc]
            if len(follow) != 1 or follow[0] in leaders:
                return defined, follow
            pc = follow[0]

    while work:
        leader = work.pop(0)
        defined, follow = flow(leader)
        for target in follow:
            merged = incoming[target] & defined
            if merged != incoming[target]:
                incoming[target] = merged
                if target not in work:
                    work.append(target)
    for leader in leaders:
        defined, pc = incoming[leader], leader
        while True:
            for register in facts[pc][1]:
                if not defined >> register & 1:
                    suspects.add(register)
            defined |= gain[pc]
            follow = successors[pc]
            if len(follow) != 1 or follow[0] in leaders:
                break
            pc = follow[0]
    return suspects


def track(program):
    """Wrap the closures that touch possibly undefined registers, directly or through data flow."""
    suspects = maybe_undefined(program)
    if not suspects:
        program.tracked = set()
        return
    facts = [effects(ins) for ins in program.instructions]
    tracked = set(suspects)
    changed = True
    while changed:
        changed = False
        for ins, (written, read) in zip(program.instructions, facts, strict=True):
            if ins.opcode in ("ld", "ldmatrix", "atom"):
                continue
            if any(r in tracked for r in read):
                new = set(written) - tracked
                if new:
                    tracked |= new
                    changed = True
    program.tracked = tracked
    program.suspects = suspects
    for pc, ins in enumerate(program.instructions):
        written, read = facts[pc]
        if any(r in tracked for r in (*written, *read)):
            program.run[pc] = _wrap(program, pc, ins, written, [r for r in read if r in tracked], suspects)


def _wrap(program, pc, ins, written, read, suspects):
    run = program.run[pc]
    strict_sources = _strict(ins)
    strict = [r for r in read if r in strict_sources]
    names = program.kernel.register_names

    def undefined(c, register):
        mask = c.undefined[register]
        if mask is None:
            return ~c.all_lanes if register not in suspects else c.all_lanes
        return mask

    def check(c, active):
        for register in strict:
            bad = undefined(c, register) & active
            if bad.any():
                raise Fault(
                    "undefined register",
                    f"register {names[register]} is used as an address, a predicate or a stored value, "
                    "but nothing has written it (or what it was computed from)",
                    bad,
                )

    if program.terminator[pc]:
        original = run.step

        def step(machine, position, mask):
            check(machine.context, mask)
            original(machine, position, mask)

        run.step = step
        return run

    predicate = ins.predicate.index if ins.predicate is not None else None
    guard = program.decoder.read(ins.predicate, "pred", ins) if predicate is not None else None
    loads = ins.opcode in ("ld", "ldmatrix", "atom")

    def tracked(c):
        active = c.active_mask()
        if guard is not None:
            if predicate in strict:
                bad = undefined(c, predicate) & active
                if bad.any():
                    check(c, active)
            active = active & guard(c)
        check(c, active)
        taint = None
        if not loads:
            for register in read:
                if register == predicate:
                    continue
                part = undefined(c, register)
                taint = part if taint is None else taint | part
        if taint is None:
            taint = ~c.all_lanes
        before = {register: undefined(c, register) for register in written}
        run(c)
        if ins.opcode in ("mma", "shfl"):
            taint = np.repeat(taint.reshape(-1, 32).any(axis=1), 32)
        for register in written:
            c.undefined[register] = np.where(active, taint, before[register])

    return tracked


def _strict(ins):
    """Registers that must be defined: addresses, predicates, stored values, branch and barrier operands."""
    result = set()
    if ins.predicate is not None:
        result.add(ins.predicate.index)
    for operand in ins.operands:
        if isinstance(operand, Address):
            result.update(registers_in(operand))
    if ins.opcode in NO_DESTINATION or ins.opcode in ("atom", "mbarrier"):
        for operand in ins.operands:
            result.update(registers_in(operand))
    return result
