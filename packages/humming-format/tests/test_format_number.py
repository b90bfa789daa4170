"""Numbers: every code of every number against hand values, numpy, ml_dtypes and plain floating-point arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from humming_format import NUMBERS, DescriptorError, NumberKind, WeightFormat, number, parse_weight
from humming_format.reference import decode_weight, encode_nearest

SMALL = [entry for entry in NUMBERS.values() if entry.bits <= 8]


def same(ours, theirs):
    """Equal as floats, NaN and the sign of zero included."""
    ours, theirs = float(ours), float(theirs)
    if math.isnan(ours) or math.isnan(theirs):
        return math.isnan(ours) and math.isnan(theirs)
    return ours == theirs and math.copysign(1, ours) == math.copysign(1, theirs)


def test_the_table_holds_exactly_the_numbers_that_are_promised():
    names = [f"u{bits}" for bits in range(1, 9)] + [f"s{bits}" for bits in range(2, 9)]
    names += [f"e0m{mantissa}" for mantissa in range(1, 8)]
    names += [f"e{e}m{m}" for e in range(1, 8) for m in range(0, 7) if 3 <= 1 + e + m <= 8]
    names += ["e8m0", "f16", "bf16", "f32", "nf4", "bnbfp4", "iq4nl"]
    assert sorted(NUMBERS) == sorted(names)
    assert all(NUMBERS[name].name == name and number(name) is NUMBERS[name] for name in names)


def test_fp4_by_hand():
    """Field report 3: exponent 0 is subnormal, so codes 0, 1, 8 and 9 are 0, 0.5, -0 and -0.5."""
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = number("e2m1").values()
    assert all(
        same(ours, theirs) for ours, theirs in zip(values, positive + [-value for value in positive], strict=True)
    )


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(1, 8), Fraction(32)])
def test_fp4_under_scales(scale):
    """Field report 3, with scales: zeros stay zeros, keeping their sign, and all else is scaled exactly."""
    weight = parse_weight("e2m1g32:f32")
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    for code, value in enumerate(positive + [-value for value in positive]):
        assert same(decode_weight(weight, code, scale), value * float(scale))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e4m3", "float8_e4m3fn"),
        ("e5m2", "float8_e5m2"),
        ("e2m1", "float4_e2m1fn"),
        ("e2m3", "float6_e2m3fn"),
        ("e3m2", "float6_e3m2fn"),
        ("e8m0", "float8_e8m0fnu"),
        ("bf16", "bfloat16"),
        ("s4", "int4"),
        ("u4", "uint4"),
        ("s2", "int2"),
        ("u2", "uint2"),
    ],
)
def test_every_code_against_ml_dtypes(name, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    entry = number(name)
    width = np.uint16 if entry.bits == 16 else np.uint8
    codes = np.arange(1 << entry.bits, dtype=width)
    # A sub-byte integer of ml_dtypes lives sign-extended in a byte.
    stored = ((codes ^ (1 << (entry.bits - 1))) - (1 << (entry.bits - 1))).astype(np.uint8) if name[0] == "s" else codes
    with np.errstate(invalid="ignore"):  # signalling NaNs
        theirs = stored.view(getattr(ml_dtypes, dtype)).astype(np.float64)
    assert all(same(ours, value) for ours, value in zip(entry.values(), theirs, strict=True))


def test_e3m4_against_ml_dtypes_where_it_is_finite_there():
    """ml_dtypes gives e3m4 infinities and NaNs; here only e4m3 and e5m2 have any, and the rest is equal."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    theirs = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e3m4).astype(np.float64)
    for ours, value in zip(number("e3m4").values(), theirs, strict=True):
        assert same(ours, value) or (not math.isfinite(value) and abs(ours) >= 16)


def test_f16_against_numpy():
    theirs = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    assert all(same(ours, value) for ours, value in zip(number("f16").values(), theirs, strict=True))


def test_f32_against_numpy():
    random = np.random.default_rng(0)
    codes = np.concatenate([random.integers(0, 1 << 32, 20000), [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 1]])
    theirs = codes.astype(np.uint32).view(np.float32)
    assert all(same(number("f32").decode(int(code)), value) for code, value in zip(codes, theirs, strict=True))


@pytest.mark.parametrize("entry", [entry for entry in SMALL if entry.kind is NumberKind.FLOAT], ids=lambda e: e.name)
def test_every_small_float_against_the_definition_in_floats(entry):
    e_bits, m_bits = int(entry.name[1]), int(entry.name[3])
    bias = 2 ** (e_bits - 1) - 1
    for code, ours in enumerate(entry.values()):
        sign = -1.0 if code >> (e_bits + m_bits) else 1.0
        exponent, mantissa = code >> m_bits & (1 << e_bits) - 1, code & (1 << m_bits) - 1
        if entry.name == "e4m3" and code & 0x7F == 0x7F:
            expected = math.nan
        elif entry.name == "e5m2" and exponent == 31:
            expected = math.nan if mantissa else sign * math.inf
        elif exponent == 0:
            expected = sign * mantissa / 2**m_bits * 2.0 ** (1 - bias)
        else:
            expected = sign * (1 + mantissa / 2**m_bits) * 2.0 ** (exponent - bias)
        assert same(ours, expected), code


def test_integers_and_sign_magnitude_by_hand():
    assert number("u3").values() == tuple(range(8))
    assert number("s3").values() == (0, 1, 2, 3, -4, -3, -2, -1)
    assert number("e0m2").values() == (0, 1, 2, 3, 0, -1, -2, -3)
    assert same(number("e0m2").decode(4), -0.0)
    assert number("u1").values() == (0, 1)


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("e4m3", 448),
        ("e5m2", 57344),
        ("e2m1", 6),
        ("e2m3", 7.5),
        ("e3m2", 28),
        ("f16", 65504),
        ("u8", 255),
        ("s4", 7),
        ("e0m3", 7),
        ("e8m0", 2.0**127),
        ("bf16", 3.3895313892515355e38),
        ("f32", 3.4028234663852886e38),
        ("nf4", 1),
        ("bnbfp4", 1),
        ("iq4nl", 113),
    ],
)
def test_largest(name, largest):
    assert number(name).largest == Fraction(largest)


def test_e8m0_ends():
    assert number("e8m0").decode(0) == Fraction(1, 2**127)
    assert number("e8m0").decode(127) == 1
    assert math.isnan(number("e8m0").decode(255))


@pytest.mark.parametrize("code", [-1, 16, 1.0, True, None, "1"])
def test_a_code_that_does_not_fit_is_refused(code):
    with pytest.raises(DescriptorError, match="not a code of number u4"):
        number("u4").decode(code)


@pytest.mark.parametrize("name", ["u0", "u9", "s1", "e8m1", "e0m8", "e1m0", "int4", "", None, 4])
def test_an_unknown_number_is_refused(name):
    with pytest.raises(DescriptorError, match="unknown number"):
        number(name)


def test_the_refusal_translates_the_usual_spellings():
    with pytest.raises(DescriptorError, match="u4 or s4"):
        number("int4")


@pytest.mark.parametrize("entry", SMALL, ids=lambda entry: entry.name)
def test_encode_nearest_finds_every_finite_value_again(entry):
    for value in entry.values():
        if isinstance(value, Fraction):
            assert entry.decode(encode_nearest(entry, value)) == value


def test_encode_nearest_rounds_ties_to_even_as_numpy_does():
    random = np.random.default_rng(1)
    codes = random.integers(0, 0x7BFF, 4)  # the finite positive f16 below the largest
    values = codes.astype(np.uint16).view(np.float16).astype(np.float64)
    above = (codes + 1).astype(np.uint16).view(np.float16).astype(np.float64)
    halfway = (values + above) / 2
    for value in halfway:
        assert encode_nearest(number("f16"), Fraction(value)) == int(np.float16(value).view(np.uint16))
    assert encode_nearest(number("e2m1"), Fraction(100)) == 7


def test_numbers_compare_and_hash_by_value():
    assert number("u4") == number("u4") != number("s4")
    assert len({WeightFormat(number=number("s4")), WeightFormat(number=number("s4"))}) == 1


def test_codebooks_against_their_publishers():
    """IQ4_NL against gguf's own table; NF4 and FP4 by the f32 values in bitsandbytes 0.50.2's get_4bit_type."""
    gguf = pytest.importorskip("gguf")
    assert number("iq4nl").values() == tuple(gguf.quants.IQ4_NL.kvalues)
    nf4 = "-1 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 -0.18477343022823334 "
    nf4 += "-0.09105003625154495 0 0.07958029955625534 0.16093020141124725 0.24611230194568634 0.33791524171829224 "
    nf4 += "0.44070982933044434 0.5626170039176941 0.7229568362236023 1"
    assert [float(value) for value in number("nf4").values()] == [float(text) for text in nf4.split()]
    fp4 = [0, 0.0052083334885537624, 0.6666666865348816, 1, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25]
    assert [float(value) for value in number("bnbfp4").values()] == fp4 + [-value for value in fp4]
    assert all(number(name).signed for name in ("nf4", "bnbfp4", "iq4nl"))
