"""Decode a parsed kernel once: addresses of its variables, closures, terminators, straight-line stretches.
Called by `api.program`, which keeps the result; run by `machine`.
Assumes labels and branches as the parser left them."""

from __future__ import annotations

import numpy as np

import tests.emulator.instructions  # noqa: F401  (registers the rules)
from tests.emulator.decode import Decoder, Modifiers, predicated, unknown
from tests.emulator.definedness import track
from tests.emulator.errors import Fault
from tests.emulator.inflight import watch
from tests.emulator.instructions.sync import warp_barrier
from tests.emulator.program import Immediate
from tests.emulator.shared import BASE

TERMINATORS = ("bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call")
MODULE_BASE = 0x6000_0000_0000  # of .global and .const variables


class Program:
    """A kernel decoded to closures, with the addresses of its variables."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.name = kernel.name
        self.registers = kernel.registers
        self.instructions = kernel.instructions
        self.addresses, self.static_bytes, self.local_bytes = self._place()
        decoder = Decoder(kernel, self.addresses)
        self.decoder = decoder
        self.run, self.end = [], []
        for ins in self.instructions:
            if ins.opcode in TERMINATORS and not self._is_warp_barrier(ins):
                self.run.append(Terminator(self, decoder, ins))
            elif ins.opcode in ("bar", "barrier"):
                run = warp_barrier(decoder, ins, ins.operands[0])
                if ins.predicate is not None:
                    run = predicated(run, decoder.read(ins.predicate, "pred", ins))
                self.run.append(run)
            else:
                self.run.append(decoder.decode(ins))
        self.terminator = [isinstance(r, Terminator) for r in self.run]
        watch(self)
        track(self)
        self._blocks()
        self.granule, self.global_granule = self._granules()

    @staticmethod
    def _is_warp_barrier(ins):
        return ins.opcode in ("bar", "barrier") and "warp" in ins.modifiers

    def _place(self):
        addresses, offset, local = {}, BASE, 0
        external = []
        for variable in self.kernel.variables.values():
            if variable.space == "shared":
                if variable.external or variable.size == 0:
                    external.append(variable)
                    continue
                offset = -(-offset // variable.align) * variable.align
                addresses[variable.name] = offset
                offset += variable.size
            elif variable.space == "local":
                local = -(-local // variable.align) * variable.align
                addresses[variable.name] = local
                local += variable.size
        align = max([v.align for v in external], default=16)
        dynamic = -(-offset // align) * align
        for variable in external:
            addresses[variable.name] = dynamic
        self.module_variables = [v for v in self.kernel.variables.values() if v.space in ("global", "const")]
        base = MODULE_BASE
        for variable in self.module_variables:
            base = -(-base // 256) * 256
            addresses[variable.name] = base
            base += variable.size + 4096
        return addresses, dynamic - BASE, local

    def _blocks(self):
        """end[pc]: first position after pc at which straight-line execution stops."""
        count = len(self.instructions)
        leaders = set(self.kernel.labels.values())
        end, stop = [0] * count, count
        for pc in range(count - 1, -1, -1):
            if self.terminator[pc]:
                end[pc] = pc
                stop = pc
            else:
                end[pc] = stop
            if pc in leaders:
                stop = pc
        self.end = end

    def _granules(self):
        """Narrowest shared and narrowest global access in bytes."""
        shared = narrow = 16
        for ins in self.instructions:
            if ins.opcode in ("ld", "st", "atom", "red"):
                digits = "".join(c for c in ins.modifiers[-1].split("x")[0] if c.isdigit())
                size = int(digits[-2:]) // 8 if digits else 1
                spaces = set(ins.modifiers) & {
                    "global",
                    "shared",
                    "shared::cta",
                    "shared::cluster",
                    "param",
                    "const",
                    "local",
                }
                if not spaces or any(s.startswith("shared") for s in spaces):
                    shared = min(shared, size)
                if not spaces or "global" in spaces:
                    narrow = min(narrow, size)
            elif ins.opcode == "cp" and "bulk" in ins.modifiers:
                narrow = min(narrow, 1)
            elif ins.opcode == "cp" and len(ins.operands) > 2 and isinstance(ins.operands[2], Immediate):
                shared = min(shared, ins.operands[2].value)
            elif ins.opcode == "mbarrier":
                shared = min(shared, 8)
        return max(1, shared), max(1, min(narrow, 8))


class Terminator:
    """An instruction that ends straight-line execution; `step` moves the threads on."""

    def __init__(self, program, decoder, ins):
        self.ins, self.program = ins, program
        self.guard = decoder.read(ins.predicate, "pred", ins) if ins.predicate is not None else None
        labels = program.kernel.labels
        opcode = ins.opcode
        if opcode == "bra":
            self.target = labels[ins.operands[0].name]
            self.act = self.branch
        elif opcode == "brx":
            self.index = decoder.read(ins.operands[0], "u32", ins)
            names = program.kernel.branch_targets[ins.operands[1].name.split("#")[0]]
            self.targets = [labels[n] for n in names]
            self.act = self.branch_indexed
        elif opcode in ("ret", "exit"):
            self.act = self.leave
        elif opcode == "trap":
            self.act = self.trap
        elif opcode == "call":
            if "__assertfail" in ins.text:
                self.act = self.trap
            else:
                raise unknown(ins, "calls of functions are not modelled; make the function inline")
        elif "cluster" in ins.modifiers:
            self.arrives = "arrive" in ins.modifiers
            self.act = self.cluster_barrier
        else:
            self._barrier(decoder, ins)

    def _barrier(self, decoder, ins):
        m = Modifiers(ins)
        m.ignore("cta", "aligned")
        self.reduction = m.take("popc", "and", "or")
        self.kind = m.take("sync", "arrive", "red")
        if self.kind == "red":
            m.take("pred", "u32")
        m.done()
        operands = list(ins.operands)
        self.result = decoder.write(operands.pop(0), ins) if self.kind == "red" else None
        self.value = decoder.read(operands.pop(), "pred", ins) if self.kind == "red" else None
        self.identifier = decoder.read(operands[0], "u32", ins)
        self.count = decoder.read(operands[1], "u32", ins) if len(operands) > 1 else None
        self.act = self.barrier

    def step(self, machine, pc, mask):
        if self.guard is None:
            self.act(machine, pc, mask)
            return
        hold = machine.context.full(self.guard(machine.context)) & mask
        rest = mask & ~hold
        if rest.any():
            machine.put(pc + 1, rest)
        if hold.any():
            self.act(machine, pc, hold)

    def branch(self, machine, pc, mask):
        machine.put(self.target, mask)

    def branch_indexed(self, machine, pc, mask):
        index = machine.context.full(self.index(machine.context))
        for value in np.unique(index[mask]).tolist():
            if value >= len(self.targets):
                raise Fault("bad branch", f"brx.idx with index {value} of {len(self.targets)} targets", mask)
            machine.put(self.targets[value], mask & (index == value))

    def leave(self, machine, pc, mask):
        machine.exit(mask)

    def trap(self, machine, pc, mask):
        raise Fault("trap", "the kernel executes trap or a failed assert", mask)

    def barrier(self, machine, pc, mask):
        c = machine.context
        identifiers = c.full(self.identifier(c))
        counts = c.full(self.count(c)) if self.count is not None else None
        for identifier in np.unique(identifiers[mask]).tolist():
            here = mask & (identifiers == identifier)
            expected = None
            if counts is not None:
                values = np.unique(counts[here])
                if len(values) > 1:
                    raise Fault("barrier misuse", f"barrier {identifier} with thread counts {values.tolist()}", here)
                expected = int(values[0])
            machine.arrive(identifier, expected, here, pc, self)

    def cluster_barrier(self, machine, pc, mask):
        barrier = machine.group.barrier
        if self.arrives:
            barrier.arrive(machine, mask, release="relaxed" not in self.ins.modifiers)
            machine.put(pc + 1, mask)
        else:
            barrier.wait(machine, pc, mask)
