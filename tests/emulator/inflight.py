"""Registers of wgmma: which are in flight, which were written since the last wgmma.fence.
Used by the room wgmma; `watch` wraps every other instruction that touches such a register.
Assumes that moves between registers vanish in the machine code, so a move carries the state of its source.
"""

from __future__ import annotations

import numpy as np

from tests.emulator.definedness import effects
from tests.emulator.errors import Fault
from tests.emulator.program import Register, Vector


class WgmmaState:
    def __init__(self, context):
        self.accumulators = {}  # register -> int array [threads]: 1 + group of the newest wgmma in flight, 0: none
        self.operands = {}  # the same for A registers
        self.dirty = {}  # register -> bool array: written by another instruction since the last fence
        self.committed = np.zeros(context.W, np.int64)
        self.operations = []  # (warp, group, tokens)
        self.names = context.program.register_names

    def check_issue(self, c, accumulators, operands, accumulate):
        active = c.active_mask()
        reads_old = np.repeat(accumulate, 32) & active
        for registers, mask in ((accumulators, reads_old), (operands, active)):
            for register in registers:
                dirty = self.dirty.get(register)
                if dirty is not None and (dirty & mask).any():
                    raise Fault(
                        "missing fence",
                        f"register {self.names[register]} was written by another instruction and no wgmma.fence came "
                        "between that write and this wgmma",
                        dirty & mask,
                    )
        for register in operands:
            flying = self.accumulators.get(register)
            if flying is not None and ((flying > 0) & active).any():
                raise Fault(
                    "missing wait",
                    f"register {self.names[register]} is an accumulator of a wgmma still in flight",
                    (flying > 0) & active,
                )

    def issued(self, c, accumulators, operands, tokens):
        active = c.active_mask()
        group = np.repeat(self.committed, 32) + 1
        for table, registers in ((self.accumulators, accumulators), (self.operands, operands)):
            for register in registers:
                old = table.get(register)
                table[register] = np.where(active, group, 0 if old is None else old)
        for register in accumulators:
            if register in self.dirty:
                self.dirty[register] = self.dirty[register] & ~active
        for warp, reads in tokens.items():
            self.operations.append((warp, int(self.committed[warp]), reads))
        c.events += 1

    def fence(self, c):
        active = c.active_mask()
        for register, dirty in list(self.dirty.items()):
            left = dirty & ~active
            if left.any():
                self.dirty[register] = left
            else:
                del self.dirty[register]

    def commit(self, c):
        warps = c.active_mask().reshape(-1, 32).any(axis=1)
        self.committed = self.committed + warps

    def wait(self, c, count):
        warps = c.active_mask().reshape(-1, 32).any(axis=1)
        done = np.where(warps, self.committed - count, 0)  # groups below this number are complete
        limit = np.repeat(done, 32)
        for table in (self.accumulators, self.operands):
            for register, flying in list(table.items()):
                left = np.where(flying <= limit, 0, flying)
                if left.any():
                    table[register] = left
                else:
                    del table[register]
        kept = []
        for warp, group, tokens in self.operations:
            if group < done[warp]:
                for token in tokens:
                    c.shared.finish_async_read(token)
            else:
                kept.append((warp, group, tokens))
        self.operations = kept


def wgmma_registers(program):
    """Registers of wgmma operands and everything that moves connect with accumulators."""
    found = set()
    for ins in program.instructions:
        if ins.opcode == "wgmma" and "mma_async" in ins.modifiers:
            for operand in ins.operands[:2]:
                if isinstance(operand, Vector):
                    found.update(r.index for r in operand.items)
    changed = bool(found)
    while changed:
        changed = False
        for ins in program.instructions:
            if is_move(ins) and ins.operands[1].index in found and ins.operands[0].index not in found:
                found.add(ins.operands[0].index)
                changed = True
    return found


def is_move(ins):
    return ins.opcode == "mov" and len(ins.operands) == 2 and all(isinstance(o, Register) for o in ins.operands)


def watch(program):
    """Wrap instructions that read or write a wgmma register."""
    registers = wgmma_registers(program)
    if not registers:
        return
    for pc, ins in enumerate(program.instructions):
        if ins.opcode == "wgmma" or program.terminator[pc]:
            continue
        written, read = effects(ins)
        written = [r for r in written if r in registers]
        read = [r for r in read if r in registers]
        if written or read:
            guard = program.decoder.read(ins.predicate, "pred", ins) if ins.predicate is not None else None
            program.run[pc] = _wrap(program.run[pc], ins, written, read, guard)


def _wrap(run, ins, written, read, guard):
    move = is_move(ins) and ins.operands[1].index in read
    source = ins.operands[1].index if move else None

    def watched(c):
        state = c.wgmma_state()
        active = c.active_mask()
        if guard is not None:
            active = active & guard(c)
        if not move:
            for register in read:
                flying = state.accumulators.get(register)
                if flying is not None and ((flying > 0) & active).any():
                    raise Fault(
                        "missing wait",
                        f"register {state.names[register]} is read while the wgmma that writes it is in flight; "
                        "wgmma.wait_group comes first",
                        (flying > 0) & active,
                    )
        for register in written:
            for table, what in (
                (state.accumulators, "the wgmma that writes it"),
                (state.operands, "a wgmma that reads it"),
            ):
                flying = table.get(register)
                if flying is not None and ((flying > 0) & active).any():
                    raise Fault(
                        "missing wait",
                        f"register {state.names[register]} is written while {what} is in flight; "
                        "wgmma.wait_group comes first",
                        (flying > 0) & active,
                    )
        run(c)
        for register in written:
            dirty = state.dirty.get(register)
            if move:
                given = state.dirty.get(source)
                new = active & given if given is not None else ~c.all_lanes
                flying = state.accumulators.get(source)
                if flying is not None:
                    old = state.accumulators.get(register)
                    state.accumulators[register] = np.where(active, flying, 0 if old is None else old)
            else:
                new = active
            state.dirty[register] = new.copy() if dirty is None else np.where(active, new, dirty)

    return watched
