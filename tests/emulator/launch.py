"""One grid: sizes and limits, blocks in turn, clusters, deadlock.
Called by `api.run`; the threads of a block are run by `machine`.
Assumes nothing about which blocks run together: any order must give the same result."""

from __future__ import annotations

import numpy as np

from tests.emulator.clocks import Clocks
from tests.emulator.cluster import ClusterBarrier
from tests.emulator.context import Context, parameter_allocation
from tests.emulator.errors import EmulatorError, Fault
from tests.emulator.global_shadow import GlobalShadow
from tests.emulator.machine import Machine
from tests.emulator.memory import Allocation
from tests.emulator.report import Report

SHARED_LIMIT = {
    75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 90: 227, 100: 227, 101: 227, 103: 227, 110: 227, 120: 99, 121: 99,
}  # KiB a block may have  # fmt: skip
MOST_WARPS = 8192
IDLE_STEPS = 6000  # scheduler steps without any change before a block counts as stuck


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
        self.timeline = options.get("timeline", False)
        self.order = options.get("order", "sequence")
        self.multiprocessors = options.get("multiprocessors", 132)
        self.issued = np.zeros(len(program.instructions) + 2, np.int64)
        self.steps = 0
        self.report = Report(program.name)
        self._check_sizes(parameters)
        self._module_variables()
        self.block_names = []  # in order of their start
        warps = -(-self.threads // 32) * int(np.prod(self.grid))
        if warps > MOST_WARPS:
            raise EmulatorError(f"a grid of {warps} warps is too large to emulate, at most {MOST_WARPS}")
        self.clocks = Clocks(warps)
        self.dependency = self.clocks.grow()  # agent: the kernel before; seen after griddepcontrol.wait
        dependent = options.get("dependent", ())
        for allocation in memory.allocations:
            allocation.guard = self._wait_first(allocation) if allocation.name in dependent else None
        for allocation in memory.allocations:
            allocation.shadow = None
            if allocation.writable and self.check_races and warps > 1:
                threads = -(-self.threads // 32) * 32
                allocation.shadow = GlobalShadow(
                    allocation, program.global_granule, self.clocks, threads, self.block_names
                )

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
            role = "constant" if variable.space == "const" else "inout"
            base = self.program_object.addresses[variable.name]
            array = np.frombuffer(variable.data or bytes(variable.size), np.uint8)
            allocation = Allocation(name, base, array, role, True)
            place = int(np.searchsorted(self.memory.bases, base))
            self.memory.allocations.insert(place, allocation)
            self.memory.bases.insert(place, base)

    def _wait_first(self, allocation):
        def guard(threads, addresses):
            early = self.clocks.table[threads >> 5, self.dependency] == 0
            if early.any():
                raise Fault(
                    "missing wait",
                    f"{allocation.name} belongs to the kernel before until griddepcontrol.wait, which neither this "
                    "warp nor one that it has synchronised with since has executed",
                    threads[early],
                    addresses[early],
                )

        return guard

    def linear_block(self, block):
        return block[0] + self.grid[0] * (block[1] + self.grid[1] * block[2])

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
        first = len(self.block_names)
        self.block_names.extend(blocks)
        contexts = [Context(self, block, rank, first + rank, self.clocks) for rank, block in enumerate(blocks)]
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
        self.barrier = ClusterBarrier(machines)
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
            raise Fault(
                "out of bounds", f"parameter load of {size} bytes past the parameters", threads[bad], offsets[bad]
            )
        if len(offsets) and (offsets == offsets[0]).all():
            row = allocation.data[int(offsets[0]) : int(offsets[0]) + size]
            return np.tile(row, (len(offsets), 1))
        return allocation.data[offsets[:, None] + np.arange(size)]

    return load
