"""Memory that shows stray writes and reads: NaN-filled outputs between guard regions, NaN around activations.

Called by tests/gpu.
Assumes a CUDA device.
"""

from __future__ import annotations

import torch

GUARD_ELEMENTS = 4096
# A bit pattern that is a finite, unusual number in f16, bf16 and f32 alike.
GUARD_PATTERN = 0x5AD3


class GuardedOutput:
    """A contiguous [m, n] tensor full of NaN, with a pattern before and after it that must not change."""

    def __init__(self, m: int, n: int, dtype: torch.dtype) -> None:
        size = m * n
        self.words = torch.full((size + 2 * GUARD_ELEMENTS,), GUARD_PATTERN, dtype=torch.int16, device="cuda")
        self.tensor = self.words[GUARD_ELEMENTS : GUARD_ELEMENTS + size].view(dtype).view(m, n)
        self.tensor.fill_(float("nan"))

    def faults(self) -> list[str]:
        """What is wrong after a launch: elements never written, guards overwritten."""
        before, after = self.words[:GUARD_ELEMENTS], self.words[-GUARD_ELEMENTS:]
        counts = torch.stack(
            [
                torch.isnan(self.tensor).sum(),
                (before != GUARD_PATTERN).sum(),
                (after != GUARD_PATTERN).sum(),
            ]
        ).tolist()
        labels = (
            "elements are NaN or were not written",
            "guard words before were overwritten",
            "guard words after were",
        )
        return [f"{count} {label}" for count, label in zip(counts, labels, strict=True) if count]


def poisoned_rows(rows: torch.Tensor) -> torch.Tensor:
    """A copy of `rows` whose neighbours in memory, on both sides, are NaN."""
    m, k = rows.shape
    # 8 elements are 16 bytes, so the copy keeps the alignment that a fresh tensor has.
    edge = 64 * 8
    flat = torch.full((m * k + 2 * edge,), float("nan"), dtype=rows.dtype, device=rows.device)
    inside = flat[edge : edge + m * k].view(m, k)
    inside.copy_(rows)
    return inside
