"""Every code in every position of a brick, and every useful scale, bit for bit through the whole product.

Called by pytest and by run_on_device.sh.
Assumes a CUDA device. One-hot activations make each output a single weight, so nothing but decoding can differ.
"""

from __future__ import annotations

import pytest
import torch
from humming_format.number import number
from humming_format.reference import decode_weight
from humming_format.text import parse_weight

from tests.support.layers import make_linear
from tests.support.weight_cases import TORCH_DTYPES, WeightCase, make_case

BRICK = 64
# Zero points and minima that decode exactly in both activation types, whatever the code.
KINDS = ("u4{0}", "u4{0}z", "u4{0}m", "u8{0}", "u8{0}z", "u8{0}m", "e0m3{0}", "e2m1{0}")
TEXTS = tuple(kind.format("g64") + f":{scale}" for kind in KINDS for scale in ("f16", "bf16")) + tuple(
    kind.format("c") + (":f16" if kind.endswith("m") else ":f32") for kind in KINDS
)


def exhaustive_case(text: str) -> WeightCase:
    """As many bricks as there are codes; in brick b, the code at (row, k) is b + row + 7 k: each code everywhere."""
    weight_format = parse_weight(text)
    codes_count = 1 << weight_format.number.bits
    side = int(codes_count**0.5)
    n = k = side * BRICK
    row = torch.arange(n, device="cuda")[:, None]
    column = torch.arange(k, device="cuda")[None, :]
    brick = (row // BRICK) * side + column // BRICK
    codes = ((brick + row % BRICK + 7 * (column % BRICK)) % codes_count).to(torch.uint8)
    case = make_case(text, n, k)
    # Powers of two, so that code * scale is exact in every type; they differ between neighbouring rows and groups.
    groups = case.scale.shape[1]
    steps = (torch.arange(n, device="cuda")[:, None] + 3 * torch.arange(groups, device="cuda")[None, :]) % 7 - 3
    scale = torch.exp2(steps.float()).to(case.scale.dtype)
    minimum = None if case.minimum is None else (-4 * scale.float()).to(case.minimum.dtype)
    zero_point = None
    if case.zero_point is not None:
        # Eight values from the lowest to the highest; all pairs of code and zero point have their own test below.
        eighth = (torch.arange(n, device="cuda")[:, None] * 5 + torch.arange(groups, device="cuda")[None, :]) % 8
        zero_point = (eighth * (codes_count - 1) // 7).to(torch.uint8)
    return case.replaced(codes=codes, scale=scale, minimum=minimum, zero_point=zero_point)


def reference_values(case: WeightCase, dtype: torch.dtype) -> torch.Tensor:
    """The weight by humming_format's exact decode of every (code, scale, zero point) that occurs, float64 [n, k]."""
    zero = case.minimum if case.minimum is not None else case.zero_point
    keys = torch.stack(
        [
            case.codes.double(),
            case.spread(case.scale),
            torch.zeros_like(case.codes, dtype=torch.float64) if zero is None else case.spread(zero),
        ]
    ).reshape(3, -1)
    unique, index = torch.unique(keys, dim=1, return_inverse=True)
    values = [
        float(decode_weight(case.weight_format, int(code), scale, None if zero is None else exact_zero(case, value)))
        for code, scale, value in unique.t().tolist()
    ]
    exact = torch.tensor(values, dtype=torch.float64, device="cuda")[index].view(case.n, case.k)
    assert torch.equal(exact, exact.to(dtype).double()), "the case itself is not exact in the activation type"
    return exact


def exact_zero(case: WeightCase, value: float) -> float | int:
    return value if case.minimum is not None else int(value)


def test_every_code_is_in_every_position() -> None:
    for text in ("u4g64", "u8g64"):
        case = exhaustive_case(text)
        side = case.n // BRICK
        codes = case.codes.view(side, BRICK, side, BRICK).permute(1, 3, 0, 2).reshape(BRICK * BRICK, -1)
        assert torch.equal(codes.long().sort(dim=1).values, torch.arange(side * side, device="cuda").expand_as(codes))


@pytest.mark.parametrize("activation", ["f16", "bf16"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_code_everywhere_bit_for_bit(text: str, activation: str) -> None:
    dtype = TORCH_DTYPES[activation]
    case = exhaustive_case(text)
    # + 0 turns -0 into +0: a sum that begins at +0 never ends at -0, and both decode from real codes.
    wanted = reference_values(case, dtype).t().to(dtype) + 0
    linear = make_linear(case, dtype, max_m=case.k)
    identity = torch.eye(case.k, dtype=dtype, device="cuda")
    for rows in sorted({min(8, case.k), 16, 64, 256, case.k}):
        result = torch.full((case.k, case.n), float("nan"), dtype=dtype, device="cuda")
        for first in range(0, case.k, rows):
            linear.forward_into(identity[first : first + rows], result[first : first + rows])
        different = (result + 0).view(torch.int16) != wanted.view(torch.int16)
        assert not bool(different.any()), (
            f"{int(different.sum())} of {different.numel()} weights differ at M={rows}; the first at (k, n) "
            f"{different.nonzero()[0].tolist()}: got {result[different][0]}, wanted {wanted[different][0]}"
        )


@pytest.mark.parametrize("text", ["u4g32:f16", "e0m3g32:f16", "e2m1g32:f16", "u8g32:f16"])
def test_every_f16_scale(text: str) -> None:
    check_scales(text, "f16", torch.arange(1, 0x7C00, dtype=torch.int32))


@pytest.mark.parametrize("text", ["u4g32:bf16", "e0m3g32:bf16", "e2m1g32:bf16", "u8g32:bf16"])
def test_bf16_scales_of_eighty_binades(text: str) -> None:
    """From 2**-60 to 2**20: a constant that a decoder owes and folds into the scale must not leave the type's range."""
    check_scales(text, "bf16", torch.arange((127 - 60) << 7, (127 + 20) << 7, dtype=torch.int32))


def check_scales(text: str, activation: str, patterns: torch.Tensor) -> None:
    """A weight of value one in each group gives back the scale itself."""
    dtype = TORCH_DTYPES[activation]
    one = one_code(text)
    n, group = 512, 32
    groups = -(-len(patterns) // n)
    padded = torch.cat([patterns, patterns[: n * groups - len(patterns)]])
    scale = padded.to(torch.int16).view(dtype).view(n, groups).cuda()
    case = make_case(text, n, groups * group)
    case = case.replaced(codes=torch.full_like(case.codes, one), scale=scale)
    linear = make_linear(case, dtype, max_m=groups)
    rows = torch.zeros((groups, case.k), dtype=dtype, device="cuda")
    rows[torch.arange(groups), torch.arange(groups) * group + 5] = 1
    result = torch.full((groups, n), float("nan"), dtype=dtype, device="cuda")
    linear.forward_into(rows, result)
    different = result.t() != scale
    assert not bool(different.any()), (
        f"{int(different.sum())} of {different.numel()} scales differ; for example {scale[different][0]} "
        f"gave {result.t()[different][0]}"
    )


@pytest.mark.parametrize("activation", ["f16", "bf16"])
@pytest.mark.parametrize("text", ["u4g32z:f16", "u8g32z:f16"])
def test_every_code_with_every_zero_point(text: str, activation: str) -> None:
    """(code - zero) is a small integer, exact in both types: 65 536 pairs for eight bits."""
    dtype = TORCH_DTYPES[activation]
    count = 1 << parse_weight(text).number.bits
    n, group = max(count * count // 128, 16), 32
    groups = count * count // n
    pair = torch.arange(count * count, device="cuda").view(n, groups)
    case = make_case(text, n, groups * group)
    case = case.replaced(
        codes=(pair % count).to(torch.uint8).repeat_interleave(group, dim=1),
        zero_point=(pair // count).to(torch.uint8),
        scale=torch.ones_like(case.scale),
    )
    linear = make_linear(case, dtype, max_m=groups)
    rows = torch.zeros((groups, case.k), dtype=dtype, device="cuda")
    rows[torch.arange(groups), torch.arange(groups) * group + 9] = 1
    result = torch.full((groups, n), float("nan"), dtype=dtype, device="cuda")
    linear.forward_into(rows, result)
    assert torch.equal(result.t().double(), (pair % count - pair // count).double())


def one_code(text: str) -> int:
    """The code whose value is exactly one."""
    weight_format = parse_weight(text)
    zero = weight_format.zero_point.value or 0
    decode = number(weight_format.number.name).decode
    return next(code for code in range(1 << weight_format.number.bits) if float(decode(code)) - zero == 1)
