"""Random and adversarial quantized weights with their exact float64 values.

Called by tests/gpu and by benchmarks/: one maker, so that a benchmark row is checked on the same terms as a test.
Assumes torch and humming_format; the exact values use the number's own decode table, not the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from humming_format.number import Number
from humming_format.text import parse_weight
from humming_format.weight import WeightFormat

TORCH_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}

# Token counts at which tiles, warps and instruction shapes begin or end.
TOKEN_COUNTS = (0, 1, 2, 7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1024, 4097)

# (N, K): SmolLM2's layers, two square sizes, and sizes that no tile divides.
SMOLLM2_SHAPES = ((192, 576), (576, 192), (576, 576), (1536, 576), (576, 1536))
RAGGED_SHAPES = ((130, 232), (464, 704))
LARGE_SHAPES = ((4096, 4096), (8192, 8192))


@dataclass(frozen=True, kw_only=True)
class WeightCase:
    """One quantized weight [n, k]: the codes, what scales them, and (by `exact`) its real values in float64."""

    text: str
    weight_format: WeightFormat
    n: int
    k: int
    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    minimum: torch.Tensor | None
    bias: torch.Tensor | None = None

    @property
    def stored_bytes(self) -> float:
        """Bytes of codes, scales, zero points and minima: what any kernel has to read."""
        total = self.n * self.k * self.weight_format.number.bits / 8
        for tensor in (self.scale, self.zero_point, self.minimum):
            if tensor is not None:
                total += tensor.numel() * tensor.element_size()
        return total

    def unscaled(self) -> torch.Tensor:
        """The value of every code before its scale: decode, less the zero point. float64 [n, k]."""
        values = value_table(self.weight_format.number, self.codes.device)[self.codes.long()]
        if self.zero_point is not None:
            values = values - self.spread(self.zero_point)
        elif self.minimum is None:
            values = values - constant_zero(self.weight_format)
        return values

    def exact(self) -> torch.Tensor:
        """The real value of every weight, float64 [n, k]."""
        weight = self.unscaled() * self.spread(self.scale)
        return weight if self.minimum is None else weight + self.spread(self.minimum)

    def replaced(self, **changes: Any) -> WeightCase:
        """The same case with other tensors."""
        return replace(self, **changes)

    def spread(self, per_group: torch.Tensor) -> torch.Tensor:
        """One value per group -> one value per weight, in float64."""
        group = self.weight_format.scale.group_k or self.k
        return per_group.double().repeat_interleave(group, dim=1)[:, : self.k]


def value_table(number: Number, device: torch.device | str) -> torch.Tensor:
    return torch.tensor([float(number.decode(code)) for code in range(1 << number.bits)], dtype=torch.float64).to(
        device
    )


def constant_zero(weight_format: WeightFormat) -> float:
    """What is subtracted from every code of a format with no stored zero point."""
    value = getattr(weight_format.zero_point, "value", None)
    return float(value) if value is not None else 0.0


def make_case(
    text: str, n: int, k: int, *, seed: int = 0, device: str = "cuda", bias_dtype: torch.dtype | None = None
) -> WeightCase:
    """A weight of format `text` with every code present and scales that jump by powers of two between neighbours.

    The scale of group g in row r is base * 2**((g + r) % 5 - 2) * (1 .. 2), so a scale taken from the wrong group or
    row is off by at least a factor of two. `base` keeps outputs near 8 for unit-variance activations, so that
    neither f16 overflow nor f16 subnormals blur the comparison.
    """
    weight_format = parse_weight(text)
    generator = torch.Generator(device=device).manual_seed(seed * 7919 + n * 31 + k)
    number = weight_format.number
    codes = torch.randint(0, 1 << number.bits, (n, k), generator=generator, device=device, dtype=torch.uint8)
    groups = -(-k // (weight_format.scale.group_k or k))
    scale_dtype = TORCH_DTYPES[weight_format.scale.number.name]

    table = value_table(number, "cpu")
    rms = float((table - table.mean()).square().mean().sqrt())
    steps = (torch.arange(groups, device=device)[None, :] + torch.arange(n, device=device)[:, None]) % 5 - 2
    mantissa = 1 + torch.rand((n, groups), generator=generator, device=device)
    base = 8 / (rms * k**0.5)
    scale = (base * torch.exp2(steps.float()) * mantissa).to(scale_dtype)

    kind = weight_format.zero_point.kind.name
    zero_point = minimum = None
    if kind == "INTEGER":
        zero_point = torch.randint(0, 1 << number.bits, (n, groups), generator=generator, device=device).to(torch.uint8)
    if kind == "MINIMUM":
        spread = torch.randn((n, groups), generator=generator, device=device)
        minimum = ((spread - 1) * rms * scale.float()).to(scale_dtype)
    bias = None
    if bias_dtype is not None:
        bias = (4 * torch.randn(n, generator=generator, device=device)).to(bias_dtype)
    return WeightCase(
        text=text,
        weight_format=weight_format,
        n=n,
        k=k,
        codes=codes,
        scale=scale,
        zero_point=zero_point,
        minimum=minimum,
        bias=bias,
    )


def make_activation(
    rows: int, k: int, dtype: torch.dtype, *, seed: int = 1, device: str = "cuda", positive: bool = False
) -> torch.Tensor:
    """Unit-variance activations; `positive` gives all-positive ones, where a biased accumulator shows."""
    generator = torch.Generator(device=device).manual_seed(seed * 104729 + k)
    values = torch.randn((rows, k), generator=generator, device=device)
    return (values.abs() if positive else values).to(dtype)


def _format_texts() -> tuple[str, ...]:
    kinds = ("u4{0}", "u4{0}z", "u4{0}m", "u8{0}", "u8{0}z", "u8{0}m", "e0m3{0}", "e2m1{0}")
    texts = [
        f"{kind.format(f'g{group}')}:{scale}" for kind in kinds for group in (32, 64, 128) for scale in ("f16", "bf16")
    ]
    for kind in kinds:
        # A channel scale is f32, except beside a minimum, where both are stored like those of a group.
        texts += [f"{kind.format('c')}:{scale}" for scale in (("f16", "bf16") if kind.endswith("m") else ("f32",))]
    return tuple(texts)


# Every weight format that dense kernels take.
FORMAT_TEXTS = _format_texts()
