"""Bit streams against numpy's packbits and one big integer; the exact decode against floats and hand values."""

import math
from fractions import Fraction

import numpy as np
import pytest
from humming_format import FormatError, parse_weight
from humming_format.packing import pack, unpack, words_needed
from humming_format.reference import add, decode_matrix, decode_weight, multiply, round_to_f32
from hypothesis import given
from hypothesis import strategies as st


@given(st.data(), st.integers(1, 16), st.sampled_from([8, 16, 32, 64]))
def test_pack_and_unpack(data, bits, word_bits):
    codes = data.draw(st.lists(st.integers(0, (1 << bits) - 1), max_size=70))
    words = pack(codes, bits, word_bits)
    assert len(words) == words_needed(len(codes), bits, word_bits) == math.ceil(len(codes) * bits / word_bits)
    assert unpack(words, bits, len(codes), word_bits) == codes
    # independently: the stream as one integer
    assert sum(w << (i * word_bits) for i, w in enumerate(words)) == sum(c << (i * bits) for i, c in enumerate(codes))


@pytest.mark.parametrize("bits", range(1, 9))
def test_against_packbits(bits):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, 96)
    stream = (codes[:, None] >> np.arange(bits)) & 1
    words = np.packbits(stream.astype(np.uint8).ravel(), bitorder="little").view("<u4")
    assert pack(codes.tolist(), bits) == words.tolist()


def test_the_drawing_in_the_docstring():
    assert pack([1, 2, 3], 4) == [0x321]
    assert pack([0] * 10 + [7], 3) == [0xC0000000, 1]


@pytest.mark.parametrize("codes", [[16], [-1], [1.0], [True], ["1"]])
def test_codes_that_do_not_fit(codes):
    with pytest.raises(FormatError, match="code 0 does not fit"):
        pack(codes, 4)


def test_wrong_words_and_counts():
    with pytest.raises(FormatError, match="too few words"):
        unpack([0], 4, 9)
    with pytest.raises(FormatError, match="too few words"):
        unpack([0], 4, -1)
    with pytest.raises(FormatError, match="unsigned 32-bit word"):
        unpack([-1], 4, 8)
    for bits in (0, 65, True, 4.0):
        with pytest.raises(FormatError, match="bits of a code"):
            pack([0], bits)


def test_each_rule_of_the_zero_point_by_hand():
    third = Fraction(1, 3)
    assert decode_weight(parse_weight("u4g32"), 15, third) == 7 * third
    assert decode_weight(parse_weight("u4g32z"), 3, third, 16) == -13 * third
    assert decode_weight(parse_weight("u4g32z0"), 3, third) == 1
    assert decode_weight(parse_weight("u4g32m"), 3, third, Fraction(-2)) == -1
    assert decode_weight(parse_weight("s4g32"), 8, 2.0) == -16
    assert decode_weight(parse_weight("e4m3"), 0x38) == 1


def test_ints_are_stored_codes_and_fractions_are_values():
    half = 0x3800  # 0.5 in f16
    assert decode_weight(parse_weight("u4g32m"), 3, half, half) == 2
    assert decode_weight(parse_weight("e2m1g32:e8m0"), 7, 128) == 12
    assert decode_weight(parse_weight("u4g32"), 9, Fraction(half)) == half


@pytest.mark.parametrize(
    ("text", "scale", "zero"),
    [
        ("u4g32", None, None),
        ("u4", Fraction(1), None),
        ("u4g32", Fraction(1), 8),
        ("u4g32z", Fraction(1), None),
        ("u4g32z", Fraction(1), Fraction(8)),
        ("u4g32z", Fraction(1), -1),
        ("u4g32m", Fraction(1), None),
    ],
)
def test_missing_or_extra_parts(text, scale, zero):
    with pytest.raises(FormatError):
        decode_weight(parse_weight(text), 1, scale, zero)


specials = st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -2.5, 0.75])


def exact(value):
    return value if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0) else Fraction(value)


@given(specials, specials)
def test_arithmetic_with_specials_is_that_of_floats(left, right):
    for ours, theirs in (
        (multiply(exact(left), exact(right)), left * right),
        (add(exact(left), exact(right)), left + right),
    ):
        assert float(ours) == theirs or (math.isnan(float(ours)) and math.isnan(theirs))


def test_huge_fractions_meet_specials():
    huge = Fraction(10) ** 400
    assert multiply(huge, -math.inf) == -math.inf
    assert multiply(-huge, -0.0) == 0
    assert add(huge, math.inf) == math.inf
    assert add(huge, -0.0) == huge


@pytest.mark.parametrize("text", ["u4g32", "u4g32z", "u4g32m", "u4c:f32", "s4t:f32", "e2m1g32:e8m0", "e0m3b2x32:f32"])
def test_matrices_against_float64(text):
    weight = parse_weight(text)
    n, k = 5, 72  # a partial last group, and a partial last block
    random = np.random.default_rng(3)
    codes = random.integers(0, 1 << weight.number.bits, (n, k))
    groups_n, groups_k = weight.scale.groups_n(n), weight.scale.groups_k(k)
    if text.endswith("e8m0"):
        stored = random.integers(120, 135, (groups_n, groups_k))
        scale = 2.0 ** (stored - 127)
        scales = stored.tolist()
    else:
        scale = random.integers(1, 100, (groups_n, groups_k)) / 64
        scales = [[Fraction(value) for value in row] for row in scale]
    rows = np.arange(n)[:, None] // (weight.scale.group_n or n)
    columns = np.arange(k)[None, :] // (weight.scale.group_k or k)
    values = np.array([float(value) for value in weight.number.values()])[codes]
    zeros = None
    if text == "u4g32z":
        zero = random.integers(0, 16, (groups_n, groups_k))
        expected, zeros = (values - zero[rows, columns]) * scale[rows, columns], zero.tolist()
    elif text == "u4g32m":
        zero = random.integers(-99, 99, (groups_n, groups_k)) / 8
        expected = values * scale[rows, columns] + zero[rows, columns]
        zeros = [[Fraction(value) for value in row] for row in zero]
    else:
        expected = (values - (weight.zero_point.value or 0)) * scale[rows, columns]
    ours = decode_matrix(weight, codes.tolist(), scales, zeros)
    assert np.array_equal(np.array([[float(value) for value in row] for row in ours]), expected)


def test_group_counts_that_disagree_are_named():
    weight = parse_weight("u4g32")
    codes = [[0] * 256]
    with pytest.raises(
        FormatError, match=r"scales have the wrong shape; got 1 rows of \[2\] columns; wanted 1 rows of 8"
    ):
        decode_matrix(weight, codes, [[Fraction(1)] * 2])
    with pytest.raises(FormatError, match="scales are missing"):
        decode_matrix(weight, codes)
    with pytest.raises(FormatError, match="zero points are not part"):
        decode_matrix(weight, codes, [[Fraction(1)] * 8], [[8] * 8])
    with pytest.raises(FormatError, match="codes have the wrong shape"):
        decode_matrix(weight, [[0], [0, 0]], [[Fraction(1)]] * 2)


def test_two_levels_of_scales():
    """Each weight is its code times the scale of its group times the outer scale of its row."""
    weight = parse_weight("e2m1g2:e4m3*c")
    codes = [[2, 4, 7, 9], [1, 2, 3, 4]]
    scales, outers = [[Fraction(2), Fraction(3)], [Fraction(5), Fraction(7)]], [[Fraction(1, 4)], [Fraction(10)]]
    expected = [[1 / 2, 1, 9 / 2, -3 / 8], [25, 50, 105, 140]]
    assert decode_matrix(weight, codes, scales, None, outers) == expected
    with pytest.raises(FormatError, match=r"outer scales are missing; wanted a matrix \[2\]\[1\]"):
        decode_matrix(weight, codes, scales)
    with pytest.raises(FormatError, match="outer scales have the wrong shape"):
        decode_matrix(weight, codes, scales, None, [[1]])
    with pytest.raises(FormatError, match="this format has no outer scale"):
        decode_weight(parse_weight("u4c"), 1, 1, None, 1)
    assert weight.stored_bits(2, 4) == 8 * 4 + 4 * 8 + 2 * 32


def test_float_zero_points():
    weight = parse_weight("u4g64f")
    assert decode_weight(weight, 3, Fraction(1, 2), Fraction(15, 2)) == Fraction(-9, 4)
    assert decode_weight(weight, 3, 0x3800, 0x4780) == Fraction(-9, 4)  # stored codes: 0.5 and 7.5
    with pytest.raises(FormatError, match="a float zero point is needed"):
        decode_weight(weight, 3, Fraction(1))


def test_rounding_to_f32_once():
    """Against numpy for exact f64, and by hand where rounding twice would be wrong."""
    random = np.random.default_rng(0)
    for value in random.standard_normal(2000) * 10.0 ** random.integers(-44, 38, 2000):
        assert float(round_to_f32(Fraction(value))) == float(np.float32(value))
    half = Fraction(1, 2**24)  # 1 + half lies between 1 and the next f32; a little above it must go up
    assert round_to_f32(1 + half) == 1
    assert round_to_f32(1 + half + Fraction(1, 2**80)) == 1 + 2 * half
    assert round_to_f32(1 + 3 * half - Fraction(1, 2**80)) == 1 + 2 * half
    assert round_to_f32(Fraction(10) ** 39) == math.inf and round_to_f32(-(Fraction(10) ** 400)) == -math.inf
    assert round_to_f32(Fraction(1, 10**60)) == 0 and math.isnan(round_to_f32(math.nan))
