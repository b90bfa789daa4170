"""Run the threads of one block: each with its own pc, warps in turn.
Called by `launch`; the closures come from `loader`.
Assumes code positions rise towards the point where branches meet again, as NVRTC lays code out."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import storage_of
from tests.emulator.errors import Fault, NotConverged


class Barrier:
    def __init__(self):
        self.expected = None
        self.arrived = 0
        self.waiting = []  # (pc, mask, terminator)
        self.clock = None
        self.threads = None


class Machine:
    """The threads of one block."""

    def __init__(self, launch, context):
        self.launch, self.context, self.program = launch, context, launch.program_object
        self.finished = False
        context.finished = False
        context.machine = self
        c = context
        alive = np.zeros(c.T, bool)
        alive[: launch.threads] = True
        c.alive = alive
        self.fragments = {}  # pc -> mask
        self.stalled = {}  # pc -> mask of threads that wait for their warp
        self.barriers = {}
        self.turn = 0
        self.fragments[0] = alive.copy()
        for index, kind in enumerate(self.program.registers):
            # all ones: NaN as a float, so that a use that no checker sees still shows
            storage = np.dtype(storage_of(kind))
            c.R[index] = np.zeros(c.T, bool) if kind == "pred" else np.full(c.T, np.iinfo(storage).max, storage)

    # -- bookkeeping -------------------------------------------------------------------------------

    def put(self, pc, mask):
        stalled = self.stalled.pop(pc, None)
        if stalled is not None:
            mask = mask | stalled
        old = self.fragments.get(pc)
        self.fragments[pc] = mask if old is None else old | mask

    def exit(self, mask):
        c = self.context
        c.alive = c.alive & ~mask
        c.events += 1
        # stalled lanes may now be complete, barriers may now be full
        for pc in list(self.stalled):
            self.put(pc, self.stalled.pop(pc))
        for identifier in list(self.barriers):
            self.try_release(identifier)
        self.group.barrier.release()
        if not c.alive.any():
            self.finish()

    def finish(self):
        c = self.context
        self.finished = c.finished = True
        self._check_register_pool()
        self._check_in_flight()
        if c.copies:
            copy = c.copies[0]
            c.report.notes.append(f"block {c.block} ended with copies not waited for: line {copy.ins.line}")

    def _check_in_flight(self):
        """Nothing asynchronous may still use the shared memory of a block that ends."""
        shared = self.context.shared
        for barrier in shared.mbarriers.values():
            if barrier.copies:
                raise Fault(
                    "missing wait",
                    "the block ends while copies into shared memory are in flight, nobody has waited for the "
                    + barrier.describe(),
                )
        for _, _, note in shared.async_reads.values():
            raise Fault("missing wait", f"the block ends while its shared memory is still being read ({note.place()})")

    def _check_register_pool(self):
        """setmaxnreg deals out the registers of the launch: at most 65536 / threads each, in steps of eight."""
        c = self.context
        if not c.registers_limit:
            return
        granted = 65536 // c.T // 8 * 8
        counts = [c.registers_limit.get(w, ("", granted))[1] for w in range(c.warp_offset, c.warp_offset + c.W)]
        for first in range(0, c.W - c.W % 4, 4):
            if len(set(counts[first : first + 4])) > 1:
                raise Fault(
                    "register pool", f"warps {first} to {first + 3} of one warpgroup set {counts[first : first + 4]}"
                )
        if 32 * sum(counts) > granted * c.T:
            raise Fault(
                "register pool",
                f"setmaxnreg leaves the warps with {counts} registers a thread, {32 * sum(counts)} in all; a launch of "
                f"{c.T} threads has {granted * c.T}: an increase would wait for ever",
            )

    def arrive(self, identifier, expected, mask, pc, terminator):
        c = self.context
        barrier = self.barriers.setdefault(identifier, Barrier())
        if barrier.arrived and barrier.expected != expected:
            raise Fault(
                "barrier misuse",
                f"barrier {identifier} is used with {expected or 'all'} threads while others wait with "
                f"{barrier.expected or 'all'}",
                mask,
            )
        if expected is not None and expected % 32:
            raise Fault("barrier misuse", f"barrier {identifier} with {expected} threads, not a multiple of 32", mask)
        if barrier.threads is not None and (barrier.threads & mask).any():
            raise Fault(
                "barrier misuse",
                f"threads arrive twice at barrier {identifier} within one phase",
                barrier.threads & mask,
            )
        barrier.threads = mask.copy() if barrier.threads is None else barrier.threads | mask
        barrier.expected = expected
        barrier.arrived += int(mask.sum())
        warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1)) + c.warp_offset
        barrier.clock = c.clocks.join(barrier.clock, c.clocks.snapshot(warps))
        c.events += 1
        if expected is not None and barrier.arrived > expected:
            raise Fault(
                "barrier misuse",
                f"{barrier.arrived} threads arrive at barrier {identifier}, which expects {expected}",
                mask,
            )
        if terminator.kind == "arrive":
            c.clocks.tick(warps)
            self.put(pc + 1, mask)
        else:
            value = terminator.value(c) if terminator.value is not None else None
            barrier.waiting.append((pc, mask, terminator, value))
        self.try_release(identifier)

    def try_release(self, identifier):
        c = self.context
        barrier = self.barriers[identifier]
        expected = barrier.expected if barrier.expected is not None else int(c.alive.sum())
        if barrier.arrived < expected or not barrier.waiting:
            return
        del self.barriers[identifier]
        c.events += 1
        for pc, mask, terminator, value in barrier.waiting:
            warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1)) + c.warp_offset
            c.clocks.acquire(warps, barrier.clock)
            c.clocks.tick(warps)
            if value is not None:
                everyone = np.zeros(c.T, bool)
                for _, other, _, given in barrier.waiting:
                    everyone |= other & given
                total = int(everyone.sum())
                members = int(sum(int(m.sum()) for _, m, _, _ in barrier.waiting))
                kind = terminator.reduction
                result = {"popc": np.uint32(total), "and": np.bool_(total == members), "or": np.bool_(total > 0)}[kind]
                c.set_mask(mask)
                terminator.result(c, c.full(result))
                c.set_mask(None)
            self.put(pc + 1, mask)

    # -- choice --------------------------------------------------------------------------------------

    def choose(self):
        """Next (pc, mask): the lowest pc of the next warp in turn, with all warps that are there as well."""
        fragments = self.fragments
        if len(fragments) == 1:
            return next(iter(fragments.items()))
        order = sorted(fragments)
        per_warp = [(pc, fragments[pc].reshape(-1, 32).any(axis=1)) for pc in order]
        self.turn += 1
        if self.turn % 64 == 0:
            per_warp.reverse()  # now and then the other way, so that a spinning lane cannot starve its warp
        seen = np.zeros(self.context.W, bool)
        available = []
        for pc, warps in per_warp:
            free = warps & ~seen
            seen |= warps
            available.append((pc, free))
        for step in range(self.context.W):
            warp = (self.next_warp + step) % self.context.W
            for pc, free in available:
                if free[warp]:
                    self.next_warp = (warp + 1) % self.context.W
                    mask = fragments[pc]
                    part = mask & np.repeat(free, 32)
                    return pc, part
        raise AssertionError("no runnable thread")

    next_warp = 0

    def runnable(self):
        return bool(self.fragments)

    def step(self):
        """Run one stretch of straight-line code for one group of threads."""
        pc, mask = self.choose()
        whole = self.fragments.pop(pc)
        if mask is not whole:
            rest = whole & ~mask
            if rest.any():
                self.fragments[pc] = rest
        c, program = self.context, self.program
        full = mask.all()
        c.set_mask(None if full else mask)
        run, instructions = program.run, program.instructions
        position, end = pc, program.end[pc]
        warps = c.W if full else int(mask.reshape(-1, 32).any(axis=1).sum())
        try:
            while True:
                while position < end:
                    c.current = instructions[position]
                    run[position](c)
                    position += 1
                break
        except NotConverged as divergence:
            self._stall(position, mask, divergence.waiting, warps, pc)
            return
        except Fault as fault:
            raise self._located(fault, position) from None
        self.launch.issued[pc] += warps
        self.launch.issued[position] -= warps
        self.launch.steps += position - pc
        if position >= len(instructions):
            self.exit(mask)
            return
        if not program.terminator[position]:
            self.put(position, mask)
            return
        if self.launch.timeline:
            self.launch.report.timeline.append(
                (c.block, np.flatnonzero(mask.reshape(-1, 32).any(axis=1)), pc, position)
            )
        c.current = instructions[position]
        self.launch.issued[position] += warps
        self.launch.issued[position + 1] -= warps
        try:
            run[position].step(self, position, mask)
        except Fault as fault:
            raise self._located(fault, position) from None

    def _stall(self, position, mask, waiting, warps, start):
        self.launch.issued[start] += warps
        self.launch.issued[position] -= warps
        rest = mask & ~waiting
        if rest.any():
            self.put(position, rest)
        # Lanes that wait here already, or are about to run here, make the warp more complete: try again together.
        met = self.stalled.pop(position, None)
        if met is not None:
            self.put(position, waiting | met)
        elif position in self.fragments and not rest.any():
            self.put(position, waiting)
        else:
            self.stalled[position] = waiting

    def _located(self, fault, position):
        instructions = self.program.instructions
        ins = instructions[position] if position < len(instructions) else None
        if fault.threads is not None and fault.threads.dtype != bool:
            fault.threads = fault.threads % self.context.T
        source = ins.source() if ins is not None else ""
        return fault.locate(self.program.name, ins, self.context.block, source=source)

    def describe_stuck(self):
        """One line per place where threads of this block wait."""
        c, lines = self.context, []

        def where(mask):
            warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1)).tolist()
            lanes = int(mask.sum())
            return f"block {c.block} warps {warps} ({lanes} threads)"

        for identifier, barrier in self.barriers.items():
            expected = barrier.expected if barrier.expected is not None else int(c.alive.sum())
            for _, mask, terminator, _ in barrier.waiting:
                lines.append(
                    f"{where(mask)} wait at barrier {identifier} ({barrier.arrived} of {expected} threads arrived), "
                    f"PTX line {terminator.ins.line}: {terminator.ins.text}"
                )
        for pc, mask in self.stalled.items():
            ins = self.program.instructions[pc]
            lines.append(f"{where(mask)} wait for the other lanes of their warp, PTX line {ins.line}: {ins.text}")
        for pc, mask in self.fragments.items():
            ins = self.program.instructions[pc]
            lines.append(f"{where(mask)} spin around PTX line {ins.line}: {ins.text}")
        lines.extend(self.group.barrier.describe(self, where))
        for barrier in c.shared.mbarriers.values():
            if barrier.pending != barrier.count or barrier.tx:
                lines.append(f"block {c.block} {barrier.describe()}")
        return lines
