"""ComputeConfig: what fixes the numbers that come out and the signature of the call.
Called by the rules, the composer and the plan.
Assumes names of humming_format numbers."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ComputeConfig:
    """Types of a GEMM: operands are of the activation's type, sums are f32, the output is rounded once."""

    activation: str  # "f16" or "bf16"
    output: str | None = None  # None: as the activation

    @property
    def output_number(self) -> str:
        """The name of the output's number."""
        return self.activation if self.output is None else self.output
