"""Text pictures that teach: which lane holds what of an operand, and what the warps of a block did one after the other.
Called by people, from a Python prompt.
Assumes a report that was made with timeline=True."""

from __future__ import annotations

from tests.emulator import fragments
from tests.emulator.api import program

KINDS = (
    ("C", ("cp.async",)),
    ("W", ("cp.async.wait", "cp.async.bulk.wait", "mbarrier.try_wait", "mbarrier.test_wait", "wgmma.wait")),
    ("a", ("mbarrier.arrive",)),
    ("L", ("ld.shared", "ldmatrix")),
    ("M", ("mma.", "wgmma.mma_async")),
    ("B", ("bar.", "barrier.")),
    ("s", ("st.shared",)),
    ("S", ("st.global", "cp.async.bulk.tensor.2d.global")),
)
LEGEND = "C copy  W wait  a arrive  L shared load  M multiply  B barrier  s shared store  S global store"


def lane_map(operand, bits=16, k=16):
    """Rows and columns of operand "a", "b" or "c" of mma.sync; each cell says lane.register."""
    cells = {}
    per = 32 // bits
    for lane in range(32):
        if operand == "c":
            for index in range(4):
                cells[fragments.accumulator(lane, index)] = f"{lane}.{index}"
            continue
        place, registers = (
            (fragments.operand_a, k * bits // 64) if operand == "a" else (fragments.operand_b, k * bits // 128)
        )
        for register in range(registers):
            for element in range(per):
                cells[place(lane, register, element, bits, k)] = f"{lane}.{register}"
    rows, columns = max(r for r, _ in cells) + 1, max(c for _, c in cells) + 1
    head = "     " + " ".join(f"{c:>4}" for c in range(columns))
    return "\n".join([head, *(f"{r:>4} " + " ".join(f"{cells[r, c]:>4}" for c in range(columns)) for r in range(rows))])


def letters(instructions):
    """One letter for each kind of work in a stretch of code, runs of one kind once."""
    found = ""
    for ins in instructions:
        best = ""
        for letter, prefixes in KINDS:
            if any(ins.name.startswith(p) for p in prefixes):
                best = letter  # a later kind is the more special one
                if letter == "W":
                    break
        if best and not found.endswith(best):
            found += best
    return found


def timeline(report, ptx, symbol, block=(0, 0, 0), width=110):
    """What each warp of a block did, in the order of the emulator's turns (not of time)."""
    instructions = program(ptx, symbol).instructions
    steps = [(warps, letters(instructions[a : b + 1])) for place, warps, a, b in report.timeline if place == block]
    steps = [(warps, text) for warps, text in steps if text]
    count = max((int(w) for warps, _ in steps for w in warps), default=-1) + 1
    rows = [""] * count
    for warps, text in steps:
        here = {int(w) for w in warps}
        for warp in range(count):
            rows[warp] += text if warp in here else " " * len(text)
    parts = [LEGEND]
    for start in range(0, max(map(len, rows), default=0), width):
        parts.extend(f"warp {w:>2} |{row[start : start + width]}" for w, row in enumerate(rows))
        parts.append("")
    return "\n".join(parts)
