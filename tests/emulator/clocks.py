"""Vector clocks of all warps of a launch: who may rely on whose earlier accesses.
Used by the shadows of shared and global memory, by barriers, mbarriers and releases.
Assumes one agent per warp, in order of blocks, and further agents (one per mbarrier) that have no row of their own.

table[w, a] is the newest clock of agent a that warp w has seen through synchronisation; table[w, w] is its own clock,
which passes on at every barrier, arrival, release or fence. A write by thread t of warp v at clock k may be relied on
by warp w when table[w, v] >= k, by another lane of v when v's clock has passed k, and by t itself at once.
"""

from __future__ import annotations

import numpy as np

PENDING = np.int32(1 << 30)  # clock of an access that is still in flight


class Clocks:
    def __init__(self, warps):
        self.warps = warps
        self.agents = warps
        self.table = np.zeros((warps, warps + 32), np.int32)
        self.table[np.arange(warps), np.arange(warps)] = 1
        self.released = {}  # warp -> clock at its last fence
        self.seen = {}  # warp -> clock of what relaxed operations have read since the last fence
        self.init_fenced = {}  # warp -> clock at its last fence.mbarrier_init
        self.init_seen = {}  # warp -> clock up to which it has seen initialisations of mbarriers
        self.locations = {}  # global address -> clock of the releases there

    def grow(self):
        """Add an agent; returns its index."""
        self.agents += 1
        if self.agents > self.table.shape[1]:
            self.table = np.concatenate([self.table, np.zeros((self.warps, self.table.shape[1]), np.int32)], axis=1)
        return self.agents - 1

    def rely(self, warp, agent):
        """Newest clock of the agents that the warps may rely on (arrays that broadcast)."""
        return self.table[warp, agent] - (warp == agent)

    def snapshot(self, warps):
        return self.table[warps].max(axis=0)

    def _fit(self, clock):
        missing = self.table.shape[1] - len(clock)
        return np.concatenate([clock, np.zeros(missing, np.int32)]) if missing else clock

    def unit(self, agent, clock):
        vector = np.zeros(self.table.shape[1], np.int32)
        vector[agent] = clock
        return vector

    def acquire(self, warps, clock):
        self.table[warps] = np.maximum(self.table[warps], self._fit(clock))

    def join(self, a, b):
        return b.copy() if a is None else np.maximum(self._fit(a), self._fit(b))

    def tick(self, warps):
        self.table[warps, warps] += 1

    # -- fence.mbarrier_init, which orders initialisations of mbarriers alone -----------------------------------

    def fence_init(self, warps):
        for warp in np.asarray(warps).tolist():
            self.init_fenced[warp] = self.table[warp].copy()
        self.tick(warps)

    def publish_init(self, clock, warps):
        """What a relaxed arrival of the warps carries; joined to `clock`."""
        for warp in np.asarray(warps).tolist():
            if warp in self.init_fenced:
                clock = self.join(clock, self.init_fenced[warp])
        return clock

    def acquire_init(self, warps, clock):
        for warp in np.asarray(warps).tolist():
            self.init_seen[warp] = self.join(self.init_seen.get(warp), clock)

    def sees_init(self, warp, agent, clock):
        seen = self.init_seen.get(warp)
        return seen is not None and agent < len(seen) and seen[agent] >= clock

    # -- strong operations on global memory ----------------------------------------------------------------

    def fence(self, warps):
        """A fence of gpu scope: later strong writes publish what came before, earlier strong reads take effect."""
        for warp in np.asarray(warps).tolist():
            seen = self.seen.pop(warp, None)
            if seen is not None:
                self.acquire([warp], seen)
            self.released[warp] = self.table[warp].copy()
        self.tick(warps)

    def strong_read(self, address, warp, acquire):
        found = self.locations.get(address)
        if found is None:
            return
        if acquire:
            self.acquire([warp], found)
        else:
            self.seen[warp] = self.join(self.seen.get(warp), found)

    def strong_write(self, address, warp, release, extends):
        """`extends`: an atomic, which keeps what earlier writers have released there."""
        given = self.table[warp].copy() if release else self.released.get(warp)
        old = self.locations.get(address) if extends else None
        if given is not None:
            self.locations[address] = self.join(old, given)
        elif old is None:
            self.locations.pop(address, None)
        if release:
            self.tick([warp])
