"""Scales, zero points, weight and activation formats: what is accepted, what is refused and how it is named."""

import pickle

import pytest
from humming_format import (
    ActivationFormat,
    CheckpointError,
    DescriptorError,
    FormatError,
    ScaleFormat,
    WeightFormat,
    ZeroPointFormat,
    ZeroPointKind,
    number,
    parse_weight,
    symmetric,
)
from humming_format.catalog import CATALOG, find

HALF = number("f16")


@pytest.mark.parametrize("size", [0, -1, -128, 1.5, True, "128", 2**31])
def test_a_group_size_that_is_not_a_count_is_refused_by_name(size):
    """Field report 6: an exporter's -1 must never arrive at a division."""
    with pytest.raises(DescriptorError, match="group_k of a scale") as caught:
        ScaleFormat(number=HALF, group_k=size)
    assert "None here" in str(caught.value)


def test_group_counts_round_up():
    scale = ScaleFormat(number=HALF, group_k=128)
    assert [scale.groups_k(k) for k in (0, 1, 128, 129, 232)] == [0, 1, 1, 2, 2]
    assert ScaleFormat(number=HALF, group_k=None).groups_k(232) == 1
    block = ScaleFormat(number=HALF, group_k=128, group_n=128)
    assert (block.groups_n(464), block.groups_k(130)) == (4, 2)
    assert ScaleFormat(number=HALF, group_k=None, group_n=None).groups_n(464) == 1


@pytest.mark.parametrize("group", [dict(group_k=128, group_n=None), dict(group_k=None, group_n=128)])
def test_half_shared_scales_are_refused(group):
    with pytest.raises(DescriptorError, match="not described"):
        ScaleFormat(number=HALF, **group)


@pytest.mark.parametrize("name", ["u8", "s4", "e0m3"])
def test_integer_scales_are_refused(name):
    with pytest.raises(DescriptorError, match="a scale must be"):
        ScaleFormat(number=number(name), group_k=32)


def test_unsigned_numbers_need_a_zero_point():
    with pytest.raises(DescriptorError, match=r"u4 without a zero point.*constant\(8\)"):
        WeightFormat(number=number("u4"), scale=ScaleFormat(number=HALF, group_k=128))


@pytest.mark.parametrize("name", ["s4", "e0m3", "e2m1", "f16"])
def test_other_numbers_have_none(name):
    with pytest.raises(DescriptorError, match="only unsigned numbers"):
        WeightFormat(number=number(name), zero_point=ZeroPointFormat.constant(8))


@pytest.mark.parametrize(
    "arguments",
    [
        dict(kind=ZeroPointKind.MINIMUM),
        dict(kind=ZeroPointKind.MINIMUM, number=number("u8")),
        dict(kind=ZeroPointKind.INTEGER, number=HALF),
        dict(kind=ZeroPointKind.CONSTANT),
        dict(kind=ZeroPointKind.CONSTANT, value=-1),
        dict(kind=ZeroPointKind.INTEGER, value=8),
        dict(kind="constant", value=8),
    ],
)
def test_contradictory_zero_points_are_refused(arguments):
    with pytest.raises(DescriptorError):
        ZeroPointFormat(**arguments)


def test_stored_zero_points_need_a_scale():
    for zero_point in (ZeroPointFormat.integer(), ZeroPointFormat.minimum(HALF)):
        with pytest.raises(DescriptorError, match="no scale"):
            WeightFormat(number=number("u4"), zero_point=zero_point)


def test_a_constant_outside_the_codes_is_refused():
    with pytest.raises(DescriptorError, match="outside the codes of u4"):
        WeightFormat(number=number("u4"), zero_point=ZeroPointFormat.constant(16))


@pytest.mark.parametrize("field", ["number", "scale", "zero_point"])
def test_wrong_types_are_refused(field):
    good = dict(number=number("s4"), scale=None, zero_point=ZeroPointFormat.none())
    with pytest.raises(DescriptorError, match=f"{field} of a weight format"):
        WeightFormat(**{**good, field: "u4"})
    with pytest.raises(DescriptorError, match="number for scales"):
        WeightFormat(number=number("e8m0"))


def test_symmetric_zero_points():
    assert symmetric(number("u4")) == ZeroPointFormat.constant(8)
    assert symmetric(number("u8")) == ZeroPointFormat.constant(128)
    assert symmetric(number("e2m1")) == ZeroPointFormat.none()


def test_activations_are_f16_or_bf16():
    assert ActivationFormat(number=number("bf16")).number.name == "bf16"
    with pytest.raises(DescriptorError, match="f16 or bf16"):
        ActivationFormat(number=number("e4m3"))
    with pytest.raises(DescriptorError, match="no scale"):
        ActivationFormat(number=HALF, scale=ScaleFormat(number=HALF, group_k=None))


@pytest.mark.parametrize(
    ("text", "bits"),
    [("u4g128", 4 + 16 / 128), ("u4g128z", 4 + 20 / 128), ("u4g32m", 5), ("u8g32", 8.5), ("u8c:f32", 8 + 32 / 4096)],
)
def test_stored_bits_per_weight(text, bits):
    assert parse_weight(text).stored_bits(1024, 4096) / (1024 * 4096) == bits


def test_errors_survive_pickling_and_keep_their_parts():
    error = CheckpointError("what", got="this", wanted="that", remedy="do so")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is CheckpointError and str(copy) == str(error) == "what; got this; wanted that; do so"
    assert (copy.what, copy.got, copy.wanted, copy.remedy) == ("what", "this", "that", "do so")


def test_descriptors_survive_pickling():
    weight = parse_weight("u4g32m:f16,f32")
    assert pickle.loads(pickle.dumps(weight)) == weight


def test_the_catalog_names_formats_and_suggests():
    assert find("gguf-q4_1").weight == parse_weight("u4g32m")
    assert len({row.name for row in CATALOG}) == len(CATALOG)
    for row in CATALOG:
        assert row.weight.number.bits in (2, 4, 5, 6, 8)
    with pytest.raises(FormatError, match="gptq-int4-g128"):
        find("gptq-int4-g182")
