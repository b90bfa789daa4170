"""Run a decoded kernel: threads with their own pc, warps in turn, blocks one after the other or interleaved.
Called by `api.run`; the closures come from `decode`.
Assumes code positions rise towards the point where branches meet again, as NVRTC lays code out."""

from __future__ import annotations

import numpy as np

import tests.emulator.instructions  # noqa: F401  (registers the rules)
from tests.emulator.context import Context, parameter_allocation
from tests.emulator.decode import Decoder, Modifiers, storage_of, unknown
from tests.emulator.definedness import track
from tests.emulator.errors import EmulatorError, Fault, NotConverged
from tests.emulator.instructions.sync import warp_barrier
from tests.emulator.memory import LOCAL_WINDOW
from tests.emulator.program import Address, Immediate, Symbol
from tests.emulator.report import Report
from tests.emulator.shared import BASE, Clocks

SHARED_LIMIT = {
    75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 90: 227, 100: 227, 101: 227, 103: 227, 110: 227, 120: 99, 121: 99,
}  # KiB a block may have  # fmt: skip
IDLE_STEPS = 6000  # scheduler steps without any change before a block counts as stuck
TERMINATORS = ("bra", "brx", "ret", "exit", "trap", "bar", "barrier", "call")


class Program:
    """A kernel decoded to closures, with the addresses of its variables."""

    def __init__(self, kernel, dynamic_bytes_hint=0):
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
                    from tests.emulator.decode import predicated

                    run = predicated(run, decoder.read(ins.predicate, "pred", ins))
                self.run.append(run)
            else:
                self.run.append(decoder.decode(ins))
        self.terminator = [isinstance(r, Terminator) for r in self.run]
        track(self)
        self._blocks()
        self.granule = self._granule()

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
        for variable in self.kernel.variables.values():
            if variable.space in ("global", "const"):
                addresses[variable.name] = None  # filled per memory; see Launch
        self.module_variables = [v for v in self.kernel.variables.values() if v.space in ("global", "const")]
        base = 0x6000_0000_0000
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

    def _granule(self):
        """Narrowest shared access in bytes."""
        smallest = 16
        for ins in self.instructions:
            if ins.opcode in ("ld", "st", "atom", "red"):
                if any(w in ins.modifiers for w in ("global", "param", "const", "local")):
                    continue
                digits = "".join(c for c in ins.modifiers[-1].split("x")[0] if c.isdigit())
                smallest = min(smallest, int(digits[-2:]) // 8 if digits else 1)
            elif ins.opcode == "cp" and "async" in ins.modifiers and len(ins.operands) > 2:
                if isinstance(ins.operands[2], Immediate) and "bulk" not in ins.modifiers:
                    smallest = min(smallest, ins.operands[2].value)
            elif ins.opcode == "mbarrier":
                smallest = min(smallest, 8)
        return max(1, smallest)


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
            if not isinstance(ins.operands[0], Symbol):
                raise unknown(ins, "call is not modelled")
            if "__assertfail" in ins.text:
                self.act = self.trap
            else:
                raise unknown(ins, "calls of functions are not modelled; make the function inline")
        elif "cluster" in ins.modifiers:
            self.arrive = "arrive" in ins.modifiers
            self.wait = "wait" in ins.modifiers
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
        machine.cluster_arrive(mask, pc, self.arrive, self.wait, "relaxed" in self.ins.modifiers)


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
        self.cluster_state = None
        self.turn = 0
        self.idle = 0
        self.seen = -1
        if c.alive.all():
            self.fragments[0] = alive.copy()
        else:
            self.fragments[0] = alive.copy()
        for index, kind in enumerate(self.program.registers):
            c.R[index] = np.zeros(c.T, storage_of(kind))

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
        if self.launch.cluster_size > 1:
            self.launch.cluster_release(self)
        if not c.alive.any():
            self.finish()

    def finish(self):
        c = self.context
        self.finished = c.finished = True
        if c.copies:
            copy = c.copies[0]
            c.report.notes.append(f"block {c.block} ended with copies not waited for: line {copy.ins.line}")

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
                "barrier misuse", f"threads arrive twice at barrier {identifier} within one phase", barrier.threads & mask
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

    def cluster_arrive(self, mask, pc, arrive, wait, relaxed):
        self.launch.cluster_barrier(self, mask, pc, arrive, wait, relaxed)

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
        if position in self.fragments:
            if not rest.any():
                # others wait to run at this very place: join them
                self.fragments[position] = self.fragments[position] | waiting
                return
        old = self.stalled.get(position)
        self.stalled[position] = waiting if old is None else old | waiting

    def _located(self, fault, position):
        instructions = self.program.instructions
        ins = instructions[position] if position < len(instructions) else None
        if fault.threads is not None and fault.threads.dtype != bool:
            fault.threads = fault.threads % self.context.T
        return fault.locate(self.program.name, ins, self.context.block)

    def describe_stuck(self):
        """One line per place where threads of this block wait."""
        c, lines = self.context, []

        def where(mask):
            warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1)).tolist()
            lanes = int(mask.sum())
            return f"block {c.block} warps {warps} ({lanes} threads)"

        for identifier, barrier in self.barriers.items():
            expected = barrier.expected if barrier.expected is not None else int(c.alive.sum())
            for pc, mask, terminator, _ in barrier.waiting:
                lines.append(
                    f"{where(mask)} wait at barrier {identifier} ({barrier.arrived} of {expected} threads have arrived), "
                    f"PTX line {terminator.ins.line}: {terminator.ins.text}"
                )
        for pc, mask in self.stalled.items():
            ins = self.program.instructions[pc]
            lines.append(f"{where(mask)} wait for the other lanes of their warp, PTX line {ins.line}: {ins.text}")
        for pc, mask in self.fragments.items():
            ins = self.program.instructions[pc]
            lines.append(f"{where(mask)} spin around PTX line {ins.line}: {ins.text}")
        if self.cluster_state is not None and self.cluster_state.waiting:
            for pc, mask in self.cluster_state.waiting:
                ins = self.program.instructions[pc]
                lines.append(f"{where(mask)} wait at the cluster barrier, PTX line {ins.line}: {ins.text}")
        return lines


class ClusterState:
    def __init__(self):
        self.waiting = []
        self.arrived = None
        self.phase = 0


class Launch:
    """One grid."""

    def __init__(self, program, grid, block, shared_bytes, parameters, memory, options):
        self.program_object = program
        self.program = program.kernel
        self.grid = tuple(grid) + (1,) * (3 - len(grid))
        self.block = tuple(block) + (1,) * (3 - len(block))
        self.threads = int(np.prod(self.block))
        cluster = options.get("cluster") or program.kernel.directives.get("reqnctapercluster") or (1, 1, 1)
        self.cluster = tuple(cluster) + (1,) * (3 - len(cluster))
        self.cluster_size = int(np.prod(self.cluster))
        self.dynamic_shared_bytes = shared_bytes
        self.shared_bytes = program.static_bytes + shared_bytes
        self.local_bytes = program.local_bytes
        self.granule = program.granule
        self.memory = memory
        self.parameters = parameter_allocation(parameters)
        self.parameters.load = _parameter_loader(self.parameters)
        self.check_races = options.get("check_races", True)
        self.profile = options.get("profile", True)
        self.order = options.get("order", "sequence")
        self.multiprocessors = options.get("multiprocessors", 132)
        self.issued = np.zeros(len(program.instructions) + 2, np.int64)
        self.steps = 0
        self.report = Report(program.name)
        self._check_sizes(parameters)
        self._module_variables()

    def _check_sizes(self, parameters):
        digits = "".join(ch for ch in self.program.target if ch.isdigit())
        limit = SHARED_LIMIT.get(int(digits or 0), 227) * 1024
        if self.shared_bytes > limit:
            raise Fault(
                "shared memory limit",
                f"kernel {self.program.name} asks for {self.shared_bytes} bytes of shared memory per block "
                f"({self.program_object.static_bytes} static); {self.program.target} allows {limit}",
            )
        if len(parameters) != self.program.parameter_bytes:
            raise EmulatorError(
                f"kernel {self.program.name} takes {self.program.parameter_bytes} bytes of parameters, "
                f"got {len(parameters)}"
            )
        limit_threads = self.program.directives.get("maxntid")
        if limit_threads and self.threads > int(np.prod(limit_threads)):
            raise Fault("launch bounds", f"{self.threads} threads, but .maxntid is {limit_threads}")
        if self.threads > 1024:
            raise Fault("launch bounds", f"{self.threads} threads in a block")

    def _module_variables(self):
        for variable in self.program_object.module_variables:
            name = f"{self.program.name}:{variable.name}"
            if any(a.name == name for a in self.memory.allocations):
                continue
            from tests.emulator.memory import Allocation

            role = "constant" if variable.space == "const" else "inout"
            base = self.program_object.addresses[variable.name]
            array = np.frombuffer(variable.data or bytes(variable.size), np.uint8)
            allocation = Allocation(name, base, array, role, True)
            place = int(np.searchsorted(self.memory.bases, base))
            self.memory.allocations.insert(place, allocation)
            self.memory.bases.insert(place, base)

    def linear_block(self, block):
        return block[0] + self.grid[0] * (block[1] + self.grid[1] * block[2])

    # -- clusters ------------------------------------------------------------------------------------

    def cluster_barrier(self, machine, mask, pc, arrive, wait, relaxed):
        c = machine.context
        state = machine.cluster_state
        if state is None:
            state = machine.cluster_state = ClusterState()
            state.arrived = np.zeros(c.T, bool)
        c.events += 1
        if arrive:
            if (state.arrived & mask).any():
                raise Fault("barrier misuse", "barrier.cluster.arrive twice without a wait", state.arrived & mask)
            state.arrived |= mask
            warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1)) + c.warp_offset
            group = machine.group
            if not relaxed:
                group.clock = c.clocks.join(group.clock, c.clocks.snapshot(warps))
            c.clocks.tick(warps)
            machine.put(pc + 1, mask)
        if wait:
            state.waiting.append((pc, mask))
        self.cluster_release(machine)

    def cluster_release(self, machine):
        group = machine.group
        if group is None:
            return
        members = group.machines
        for m in members:
            if m.cluster_state is None:
                if m.context.alive.any():
                    return
                continue
            if (m.context.alive & ~m.cluster_state.arrived).any():
                if m.cluster_state.released is None or (m.context.alive & ~m.cluster_state.released).any():
                    pass
                return self._wake(members, group)
        for m in members:
            if m.cluster_state is not None:
                m.cluster_state.ready = m.cluster_state.arrived.copy()
                m.cluster_state.arrived[:] = False
        group.ready_clock = group.clock
        group.clock = None
        return self._wake(members, group)

    def _wake(self, members, group):
        for m in members:
            state = m.cluster_state
            if state is None or state.ready is None:
                continue
            left = []
            for pc, mask in state.waiting:
                go = mask & state.ready
                if go.any():
                    state.ready = state.ready & ~go
                    warps = np.flatnonzero(go.reshape(-1, 32).any(axis=1)) + m.context.warp_offset
                    if group.ready_clock is not None:
                        m.context.clocks.acquire(warps, group.ready_clock)
                    m.context.events += 1
                    m.put(pc + 1, go)
                if (mask & ~go).any():
                    left.append((pc, mask & ~go))
            state.waiting = left

    # -- run -----------------------------------------------------------------------------------------

    def groups(self):
        """Machines of one cluster at a time, in launch order."""
        gx, gy, gz = (g // k for g, k in zip(self.grid, self.cluster, strict=True))
        for cz in range(gz):
            for cy in range(gy):
                for cx in range(gx):
                    yield (cx, cy, cz)

    def make_group(self, place):
        blocks = []
        for z in range(self.cluster[2]):
            for y in range(self.cluster[1]):
                for x in range(self.cluster[0]):
                    blocks.append(tuple(p * k + o for p, k, o in zip(place, self.cluster, (x, y, z), strict=True)))
        warps = -(-self.threads // 32)
        clocks = Clocks(warps * len(blocks))
        contexts = [Context(self, block, rank, clocks) for rank, block in enumerate(blocks)]
        group = Group([Machine(self, c) for c in contexts])
        for machine in group.machines:
            machine.group = group
            machine.context.cluster = contexts
        self.report.blocks += len(blocks)
        return group

    def execute(self):
        waiting = list(self.groups())
        if self.order == "reverse":
            waiting.reverse()
        interleaved = self.order == "interleaved"
        active = [self.make_group(p) for p in waiting] if interleaved else []
        if interleaved:
            waiting = []
        quantum = 3 if interleaved else 0
        current = 0
        with np.errstate(all="ignore"):
            while active or waiting:
                if not active:
                    active.append(self.make_group(waiting.pop(0)))
                    current = 0
                current %= len(active)
                group = active[current]
                group.run(quantum, self.memory)
                if group.finished:
                    active.pop(current)
                    continue
                if group.idle:
                    if waiting:
                        active.append(self.make_group(waiting.pop(0)))
                        current = len(active) - 1
                        continue
                    if all(g.stuck(self.memory) for g in active):
                        self.deadlock(active)
                current += 1
        total = np.cumsum(self.issued)
        for ins, count in zip(self.program.instructions, total.tolist(), strict=False):
            if count:
                self.report.counts[ins.name] = self.report.counts.get(ins.name, 0) + count
                self.report.line_counts[ins.line] = self.report.line_counts.get(ins.line, 0) + count
        self.report.steps = self.steps
        return self.report

    def deadlock(self, active):
        lines = [line for group in active for machine in group.machines for line in machine.describe_stuck()]
        fault = Fault("deadlock", "no thread can make progress")
        raise fault.locate(self.program.name, None, active[0].machines[0].context.block, lines[:12])


class Group:
    """The blocks of one cluster (one block without clusters), which always run interleaved."""

    def __init__(self, machines):
        self.machines = machines
        self.clock = self.ready_clock = None
        self.quiet = 0
        self.seen = None
        self.idle = False
        self.quiet_at = None

    @property
    def finished(self):
        return all(m.finished for m in self.machines)

    def version(self, memory):
        return memory.version + sum(m.context.version() for m in self.machines)

    def stuck(self, memory):
        """Nothing has changed since this group became idle."""
        return self.idle and self.quiet_at == self.version(memory)

    def run(self, quantum, memory):
        """Run until finished, idle, or for some steps (quantum 0: no limit)."""
        self.idle = False
        steps = 0
        limit = IDLE_STEPS
        self.quiet = 0
        self.seen = self.version(memory)
        while not self.finished:
            moved = False
            for machine in self.machines:
                if machine.finished or not machine.runnable():
                    continue
                machine.step()
                moved = True
            steps += 1
            version = self.version(memory)
            if version != self.seen:
                self.seen, self.quiet = version, 0
            else:
                self.quiet += 1
            if self.finished:
                return
            if not moved or self.quiet > limit:
                self.idle, self.quiet_at = True, version
                return
            if quantum and steps >= quantum:
                return


def _parameter_loader(allocation):
    def load(offsets, size, threads):
        offsets = offsets.astype(np.int64)
        bad = (offsets < 0) | (offsets + size > allocation.size)
        if bad.any():
            raise Fault("out of bounds", f"parameter load of {size} bytes past the parameters", threads[bad], offsets[bad])
        if len(offsets) and (offsets == offsets[0]).all():
            row = allocation.data[int(offsets[0]) : int(offsets[0]) + size]
            return np.tile(row, (len(offsets), 1))
        return allocation.data[offsets[:, None] + np.arange(size)]

    return load


__all__ = ["LOCAL_WINDOW", "Address", "Launch", "Program"]
