"""Rounding to a format: nearest codes, scales that reach the ends, zeros that stay zeros.

Run by pytest.
Assumes humming_format's number tables as the truth about code values.
"""

import pytest
import torch
from humming_format.text import parse_weight
from humming_torch.convert import quantize
from humming_torch.errors import WeightError


def all_values(weight):
    """Value of every code of every group: [n, groups, codes], in f64."""
    codes = torch.tensor([float(v) for v in weight.format.number.values()], dtype=torch.float64)
    values = codes.expand(*weight.scale.shape, -1).clone()
    if weight.zero_point is not None:
        values -= weight.zero_point.double().unsqueeze(2)
    elif weight.format.zero_point.value is not None:
        values -= weight.format.zero_point.value
    values *= weight.scale.double().unsqueeze(2)
    return values if weight.minimum is None else values + weight.minimum.double().unsqueeze(2)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 300.0])
def test_no_code_is_nearer_than_the_chosen_one(text, rand, scale):
    real = rand(1, 24, 200) * scale
    weight = quantize(real, parse_weight(text))
    group = torch.arange(200) // weight.group_k
    distance = (all_values(weight)[:, group] - real.double().unsqueeze(2)).abs()
    chosen = (weight.dequantize(torch.float64) - real.double()).abs()
    step = weight.scale.double()[:, group]
    # f32 division and rounding may pick the other side of an exact middle, not more.
    assert bool((chosen <= distance.amin(2) + 1e-6 * step).all())


def test_error_is_at_most_half_a_step_of_integers(rand):
    real = rand(2, 16, 256)
    for text in ("u4g64z:bf16", "u4g64m:bf16", "u8g64", "u4g64"):
        weight = quantize(real, parse_weight(text))
        error = (weight.dequantize() - real).abs().reshape(16, 4, 64).amax(2)
        # Half a step, and what rounding the scale (or the minimum) to 8 bits does to the far end of the range.
        assert bool((error <= 0.5 * weight.scale.float() + 0.04 * real.abs().amax()).all()), text


def test_zero_groups_stay_zero(text):
    real = torch.zeros(3, 160)
    real[1, 130] = 0.5
    values = quantize(real, parse_weight(text)).dequantize()
    assert torch.isfinite(values).all()
    assert torch.count_nonzero(values[0]) == torch.count_nonzero(values[2]) == 0
    assert values[1, 130] == pytest.approx(0.5, rel=0.01)


def test_columns_beyond_the_last_whole_group_have_their_own_scale(text, rand):
    real = rand(3, 8, 200)
    real[:, 192:] *= 100
    weight = quantize(real, parse_weight(text))
    assert weight.scale.shape[1] == weight.format.scale.groups_k(200)
    assert torch.isfinite(weight.dequantize()).all()


def test_representable_weights_come_back(rand):
    """Every e2m1 value, with scales that are powers of two, is kept exactly; -0 becomes 0."""
    table = torch.tensor([float(v) for v in parse_weight("e2m1g32").number.values()])
    real = table[torch.randint(0, 16, (4, 64), generator=torch.Generator().manual_seed(0))]
    real[:, ::32] = 6.0
    for power in (-3, 0, 5):
        weight = quantize(real * 2.0**power, parse_weight("e2m1g32"))
        assert torch.equal(weight.dequantize(), real * 2.0**power)
        assert 8 not in weight.codes


def test_ties_go_to_the_even_code():
    weight = quantize(torch.tensor([[6.0, 0.25, 0.75, 1.25, 2.5, 3.5, 5.0, -5.0]]), parse_weight("e2m1c:f32"))
    assert weight.dequantize().tolist() == [[6.0, 0.0, 1.0, 1.0, 2.0, 4.0, 4.0, -4.0]]


@pytest.mark.parametrize(
    ("real", "text", "word"),
    [
        (torch.full((2, 64), float("nan")), "u4g32", "NaN"),
        (torch.full((2, 64), 1e9), "u4g32", "f16"),
        (torch.ones(4), "u4g32", "matrix"),
        (torch.ones(4, 4, dtype=torch.int32), "u4g32", "floating"),
        (torch.ones(4, 4), "e4m3t:f32", "scale per row|per row"),
    ],
)
def test_what_cannot_be_quantized_is_refused(real, text, word):
    with pytest.raises(WeightError, match=word):
        quantize(real, parse_weight(text))
