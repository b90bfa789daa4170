"""The barrier of a cluster.
Made by `launch.Group`, used by the terminators of `loader`.
Assumes every living thread of the cluster arrives once per phase."""

from __future__ import annotations

import numpy as np

from tests.emulator.errors import Fault


class ClusterBarrier:
    def __init__(self, machines):
        self.machines = machines
        self.generation = 0
        self.arrived = [np.zeros(m.context.T, bool) for m in machines]
        self.token = [np.full(m.context.T, -1, np.int64) for m in machines]  # generation arrived in, not waited for
        self.clock = None
        self.done_clock = None
        self.init_clock = self.done_init_clock = None
        self.waiting = []  # (machine, pc, mask, generation)

    def arrive(self, machine, mask, release):
        c = machine.context
        token = self.token[c.rank]
        if (token[mask] >= 0).any():
            raise Fault("barrier misuse", "barrier.cluster.arrive twice without a wait", mask & (token >= 0))
        token[mask] = self.generation
        self.arrived[c.rank] |= mask
        warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1)) + c.warp_offset
        if release:
            self.clock = c.clocks.join(self.clock, c.clocks.snapshot(warps))
        self.init_clock = c.clocks.publish_init(self.init_clock, warps)
        c.clocks.tick(warps)
        c.events += 1
        self.release()

    def wait(self, machine, pc, mask):
        token = self.token[machine.context.rank]
        if (token[mask] < 0).any():
            raise Fault("barrier misuse", "barrier.cluster.wait without an arrive", mask & (token < 0))
        for generation in np.unique(token[mask]).tolist():
            self.waiting.append((machine, pc, mask & (token == generation), generation))
        self._wake()

    def release(self):
        """Complete the phase if every living thread has arrived; called on arrivals and exits."""
        if not any(a.any() for a in self.arrived):
            return
        if any((m.context.alive & ~a).any() for m, a in zip(self.machines, self.arrived, strict=True)):
            return
        self.generation += 1
        clocks = self.machines[0].context.clocks
        if self.clock is not None:
            self.done_clock = clocks.join(self.done_clock, self.clock)
        if self.init_clock is not None:
            self.done_init_clock = clocks.join(self.done_init_clock, self.init_clock)
        self.clock = self.init_clock = None
        for arrived in self.arrived:
            arrived[:] = False
        self._wake()

    def _wake(self):
        left = []
        for machine, pc, mask, generation in self.waiting:
            if generation >= self.generation:
                left.append((machine, pc, mask, generation))
                continue
            c = machine.context
            self.token[c.rank][mask] = -1
            warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1)) + c.warp_offset
            if self.done_clock is not None:
                c.clocks.acquire(warps, self.done_clock)
            if self.done_init_clock is not None:
                c.clocks.acquire_init(warps, self.done_init_clock)
            c.clocks.tick(warps)
            c.events += 1
            machine.put(pc + 1, mask)
        self.waiting = left

    def describe(self, machine, where):
        lines = []
        for waiting, pc, mask, _ in self.waiting:
            if waiting is machine:
                ins = machine.program.instructions[pc]
                lines.append(f"{where(mask)} wait at the cluster barrier, PTX line {ins.line}: {ins.text}")
        return lines
