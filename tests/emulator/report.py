"""What a run did: instruction counts, bytes per space, widths of accesses, bank conflicts.
Filled by `machine` and the instruction rooms, returned by `api.run`.
Assumes counts are of warp-instructions: one per warp that has at least one active lane."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class BankAccess:
    """Shared accesses of one PTX line. replays: wavefronts beyond the least possible."""

    line: int
    text: str
    executions: int = 0
    wavefronts: int = 0
    replays: int = 0


@dataclass
class Report:
    kernel: str
    counts: dict = field(default_factory=dict)  # opcode with modifiers -> warp-instructions
    line_counts: dict = field(default_factory=dict)  # PTX line -> warp-instructions
    bytes: dict = field(default_factory=dict)  # "global load" ... -> bytes
    widths: dict = field(default_factory=dict)  # ("global load", bytes per thread) -> threads
    banks: dict = field(default_factory=dict)  # PTX line -> BankAccess
    steps: int = 0  # vectorised instructions executed
    blocks: int = 0
    timeline: list = field(default_factory=list)  # (block, warps, first and last position), if asked for
    notes: list = field(default_factory=list)

    def note_banks(self, instruction, addresses, size, threads):
        entry = self.banks.get(instruction.line)
        if entry is None:
            entry = self.banks[instruction.line] = BankAccess(instruction.line, instruction.text)
        entry.executions += 1
        wavefronts, replays = bank_wavefronts(addresses, size, threads)
        entry.wavefronts += wavefronts
        entry.replays += replays

    def opcode(self, prefix):
        """Warp-instructions whose name begins with the prefix."""
        return sum(n for name, n in self.counts.items() if name == prefix or name.startswith(prefix + "."))

    def replays(self, prefix=""):
        return sum(b.replays for b in self.banks.values() if b.text.lstrip("@!%p0123456789 ").startswith(prefix))

    def wide_fraction(self, what="global load"):
        """Share of the bytes of an access kind that moved 16 bytes per thread."""
        total = sum(size * n for (kind, size), n in self.widths.items() if kind == what)
        wide = sum(size * n for (kind, size), n in self.widths.items() if kind == what and size >= 16)
        return wide / total if total else 1.0

    def __str__(self):
        lines = [f"kernel {self.kernel}: {self.blocks} blocks, {sum(self.counts.values())} warp-instructions"]
        for name, count in sorted(self.counts.items(), key=lambda item: -item[1])[:25]:
            lines.append(f"  {count:8d}  {name}")
        for what, count in sorted(self.bytes.items()):
            lines.append(f"  {what}: {count} bytes")
        for (what, size), count in sorted(self.widths.items()):
            lines.append(f"  {what} of {size} bytes per thread: {count} times")
        for access in self.banks.values():
            if access.replays:
                lines.append(
                    f"  bank conflicts: {access.replays} replays in {access.wavefronts} wavefronts, "
                    f"PTX line {access.line}: {access.text}"
                )
        return "\n".join(lines)


def bank_wavefronts(addresses, size, threads):
    """(wavefronts, replays) of a shared access; a warp's 8-byte access is two, its 16-byte access four wavefronts."""
    phases = max(1, size // 4)
    threads = np.asarray(threads)
    groups = (threads >> 5) * phases + ((threads & 31) * phases >> 5)
    first = np.asarray(addresses).astype(np.int64) >> 2
    if phases > 1:
        words = (first[:, None] + np.arange(phases)).reshape(-1)
        groups = np.repeat(groups, phases)
    else:
        words = first
    groups = groups - groups.min()
    keys = np.unique((groups << 32) | words)
    counts = np.bincount((keys >> 32) * 32 + (keys & 31))
    counts = np.pad(counts, (0, -len(counts) % 32)).reshape(-1, 32).max(axis=1)
    used = counts[counts > 0]
    return int(used.sum()), int((used - 1).sum())
