"""Text and document forms: round trips over all formats, and refusal of everything else."""

import json
import re

import pytest
from humming_format import (
    NUMBERS,
    ActivationFormat,
    DocumentError,
    FormatError,
    NumberKind,
    ScaleFormat,
    TextError,
    WeightFormat,
    ZeroPointFormat,
    format_activation,
    format_weight,
    from_document,
    number,
    parse_activation,
    parse_weight,
    to_document,
    weight_from_document,
)
from humming_format.document import SCHEMA_FILE
from hypothesis import given
from hypothesis import strategies as st

SCALE_NUMBERS = [entry for entry in NUMBERS.values() if entry.kind in (NumberKind.FLOAT, NumberKind.EXPONENT)]
FLOATS = [entry for entry in SCALE_NUMBERS if entry.kind is NumberKind.FLOAT]
sizes = st.integers(1, 2**31 - 1)


@st.composite
def weight_formats(draw):
    entry = draw(st.sampled_from([entry for entry in NUMBERS.values() if entry.kind is not NumberKind.EXPONENT]))
    groups = draw(st.sampled_from(["none", "group", "channel", "tensor", "block"]))
    scale_number = draw(st.sampled_from(SCALE_NUMBERS))
    scale = {
        "none": lambda: None,
        "group": lambda: ScaleFormat(number=scale_number, group_k=draw(sizes)),
        "channel": lambda: ScaleFormat(number=scale_number, group_k=None),
        "tensor": lambda: ScaleFormat(number=scale_number, group_k=None, group_n=None),
        "block": lambda: ScaleFormat(number=scale_number, group_k=draw(sizes), group_n=draw(sizes)),
    }[groups]()
    outer = None
    if scale is not None and draw(st.booleans()):
        group_n = None if scale.group_n is None else scale.group_n * draw(st.integers(1, (2**31 - 1) // scale.group_n))
        group_k = None if scale.group_k is None else scale.group_k * draw(st.integers(1, (2**31 - 1) // scale.group_k))
        if draw(st.booleans()) or (group_n not in (None, 1) and group_k is None):
            group_n = group_k = None
        outer = ScaleFormat(number=draw(st.sampled_from(SCALE_NUMBERS)), group_k=group_k, group_n=group_n)
    if entry.kind is not NumberKind.UNSIGNED:
        return WeightFormat(number=entry, scale=scale, outer_scale=outer)
    stored = ["integer", "float"] + (["minimum"] if outer is None else [])
    zero = draw(st.sampled_from(["constant"] if scale is None else ["constant", *stored]))
    if zero == "constant":
        zero_point = ZeroPointFormat.constant(draw(st.integers(0, (1 << entry.bits) - 1)))
    elif zero == "integer":
        zero_point = ZeroPointFormat.integer()
    else:
        minimums = FLOATS if scale_number.kind is not NumberKind.FLOAT else [*FLOATS, scale_number]
        kind = ZeroPointFormat.minimum if zero == "minimum" else ZeroPointFormat.floating
        zero_point = kind(draw(st.sampled_from(minimums)))
    return WeightFormat(number=entry, scale=scale, zero_point=zero_point, outer_scale=outer)


@given(weight_formats())
def test_text_round_trip(weight):
    text = format_weight(weight)
    assert parse_weight(text) == weight
    assert format_weight(parse_weight(text)) == text


@given(weight_formats())
def test_document_round_trip_through_json(weight):
    document = json.loads(json.dumps(to_document(weight)))
    assert from_document(document) == weight == weight_from_document(document)


@given(st.text(alphabet="usebfgctzmxn0123456789:,*@é٣ \n", max_size=24))
def test_any_text_is_read_or_refused(text):
    try:
        weight = parse_weight(text)
    except TextError:
        return
    assert parse_weight(format_weight(weight)) == weight


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("u4g128", "u4g128"),
        ("u4g128z", "u4g128z"),
        ("u4g32m:f16", "u4g32m"),
        ("e2m1g32:bf16", "e2m1g32:bf16"),
        ("u8c:f32", "u8c:f32"),
        ("e0m3g128:bf16", "e0m3g128:bf16"),
        ("u4g128z8", "u4g128"),
        ("u4g128z0", "u4g128z0"),
        ("e4m3b128x128:f32", "e4m3b128x128:f32"),
        ("e4m3b1x128:f32", "e4m3g128:f32"),
        ("e4m3t:f32", "e4m3t:f32"),
        ("u4g32m:bf16,bf16", "u4g32m:bf16"),
        ("u4g32m:f16,f32", "u4g32m:f16,f32"),
        ("f16", "f16"),
        ("u4", "u4"),
        ("e2m1g16:e4m3*t:f32", "e2m1g16:e4m3*t"),
        ("e2m1g16:e4m3*c:bf16", "e2m1g16:e4m3*c:bf16"),
        ("u4g64f:f16,f16", "u4g64f"),
        ("nf4g64:f32", "nf4g64:f32"),
        ("iq4nlg32", "iq4nlg32"),
    ],
)
def test_spellings(text, shortest):
    assert format_weight(parse_weight(text)) == shortest


def test_what_the_examples_mean():
    weight = parse_weight("u4g128z:bf16")
    assert weight.number == number("u4")
    assert weight.scale == ScaleFormat(number=number("bf16"), group_k=128, group_n=1)
    assert weight.zero_point == ZeroPointFormat.integer()
    assert parse_weight("u4c").scale == ScaleFormat(number=number("f16"), group_k=None)
    assert parse_weight("u4c").zero_point == ZeroPointFormat.constant(8)
    assert parse_weight("e4m3b64x128").scale == ScaleFormat(number=number("f16"), group_n=64, group_k=128)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "u4g",
        "u4g0",
        "u4g-1",
        "u4g0128",
        "u9g128",
        "s1",
        "u4g128q",
        "u4z",
        "u4m",
        "u4:f16",
        "e2m1g32z",
        "s4g32m",
        "u4g128:u8",
        "u4g128:f17",
        "u4g128:f16,f32",
        "U4g128",
        " u4g128",
        "u4g128\n",
        "u4g128z16",
        "u4g99999999999",
        "e8m0",
        "e9m9g32",
        "u4b128",
        "u4b0x128",
        "u4g32m:e8m0",
        "u4g32f:e8m0",
        "u4*t",
        "u4g32*",
        "u4g32m*t",
        "u4g32*g16",
        "u4c*g32",
        "e2m1g16:e4m3@static",
        "e2m1g16f",
        "nf4g64z",
        None,
        4,
        "u4g" + "9" * 5000,
        "u٣g128",
    ],
)
def test_what_is_not_a_format_is_refused(text):
    with pytest.raises(TextError):
        parse_weight(text)


def test_activations():
    for text in ("f16", "bf16"):
        assert format_activation(parse_activation(text)) == text
        assert from_document(to_document(parse_activation(text))) == ActivationFormat(number=number(text))
    for text in (
        "e4m3c:f32",
        "e4m3t:f32@static",
        "s8c:f32",
        "u8cz:f32",
        "e4m3g128:f32",
        "e2m1g16:e4m3*t",
        "e4m3g32:e8m0",
    ):
        activation = parse_activation(text)
        assert format_activation(activation) == text
        assert from_document(json.loads(json.dumps(to_document(activation)))) == activation
        assert activation.static == text.endswith("@static")
    for text in ("f32", "e4m3", "", None, "f16@static", "f16g32", "u8cm", "e4m3c@", "@static", "bf16c:f32", "f32c"):
        with pytest.raises(TextError):
            parse_activation(text)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"schema": True},
        {"schema": None},
        {"kind": "layer"},
        {"kind": ["weight"]},
        {"number": "u99"},
        {"number": ["u4"]},
        {"extra": 1},
        {"scale": "f16"},
        {"scale": {"number": "f16", "group_k": -1, "group_n": 1}},
        {"scale": {"number": "f16", "group_k": 128}},
        {"scale": {"number": "f16", "group_k": 128, "group_n": 1, "more": 0}},
        {"zero_point": None},
        {"zero_point": {}},
        {"zero_point": {"kind": "none"}},
        {"zero_point": {"kind": "float"}},
        {"zero_point": {"kind": "double", "number": "f16"}},
        {"outer_scale": {}},
        {"outer_scale": {"number": "f32", "group_k": 64, "group_n": 1}},
        {"zero_point": {"kind": ["none"]}},
        {"zero_point": {"kind": "constant"}},
        {"zero_point": {"kind": "constant", "value": "8"}},
        {"zero_point": {"kind": "minimum", "number": None}},
    ],
)
def test_wrong_documents_are_refused(change):
    document = to_document(parse_weight("u4g128"))
    document.update(change)
    with pytest.raises(DocumentError):
        from_document(document)


def fits(value, schema, root):
    """Whether a value fits a JSON Schema, of the keywords that ours uses; refuses any other keyword."""
    known = {"$ref", "oneOf", "const", "enum", "type", "properties", "required", "additionalProperties", "pattern"}
    assert set(schema) <= known | {"minimum", "maximum", "title", "description", "$schema", "$defs"}
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "oneOf" in schema:
        return sum(fits(value, one, root) for one in schema["oneOf"]) == 1
    if "const" in schema:
        return type(value) is type(schema["const"]) and value == schema["const"]
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {"null": type(None), "integer": int, "string": str, "boolean": bool, "object": dict}
    if type(value) is not kinds[schema["type"]]:
        return False
    if isinstance(value, str):
        return re.search(schema["pattern"], value) is not None
    if isinstance(value, int) and not isinstance(value, bool):
        return schema["minimum"] <= value <= schema["maximum"]
    if isinstance(value, dict):
        inner = schema["properties"]
        return set(schema["required"]) <= set(value) <= set(inner) and all(
            fits(value[key], inner[key], root) for key in value
        )
    return True


PUBLISHED = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


@given(weight_formats())
def test_every_document_fits_the_published_schema(weight):
    document = to_document(weight)
    assert fits(document, PUBLISHED, PUBLISHED)
    assert not fits({**document, "extra": 1}, PUBLISHED, PUBLISHED)
    assert not fits({**document, "schema": 2}, PUBLISHED, PUBLISHED)
    for key in set(document) - {"outer_scale"}:
        assert not fits({name: value for name, value in document.items() if name != key}, PUBLISHED, PUBLISHED)


def test_the_published_schema_knows_every_number_and_activations():
    pattern = PUBLISHED["$defs"]["number"]["pattern"]
    assert all(re.search(pattern, name) for name in NUMBERS)
    assert not any(re.search(pattern, name) for name in ("u9", "s1", "e0m8", "e9m0", "int4", "", "u4x"))
    for text in ("f16", "e4m3c:f32", "e4m3t:f32@static", "u8cz:f32", "e2m1g16:e4m3*t"):
        assert fits(to_document(parse_activation(text)), PUBLISHED, PUBLISHED)


def test_documents_of_before_two_levels_keep_their_form():
    """What earlier versions wrote is what this one writes, key for key, and reads."""
    assert to_document(parse_weight("u4g32m")) == {
        "schema": 1,
        "kind": "weight",
        "number": "u4",
        "scale": {"number": "f16", "group_k": 32, "group_n": 1},
        "zero_point": {"kind": "minimum", "number": "f16"},
    }
    assert to_document(parse_activation("bf16")) == {"schema": 1, "kind": "activation", "number": "bf16"}


def test_wrong_activation_documents_are_refused():
    document = to_document(parse_activation("e4m3t:f32@static"))
    for change in (
        {"static": 1},
        {"extra": 1},
        {"scale": None},
        {"outer_scale": 3},
        {"zero_point": {"kind": "integer"}},
    ):
        with pytest.raises(DocumentError):
            from_document({**document, **change})
    for key in document:
        with pytest.raises(DocumentError):
            from_document({name: value for name, value in document.items() if name != key})


def test_missing_keys_and_wrong_kinds_are_refused():
    document = to_document(parse_weight("u4g128"))
    for key in document:
        with pytest.raises(DocumentError):
            from_document({name: value for name, value in document.items() if name != key})
    with pytest.raises(DocumentError, match="wrong kind"):
        weight_from_document(to_document(parse_activation("f16")))
    for wrong in (None, [], "u4", 4):
        with pytest.raises(DocumentError):
            from_document(wrong)
        with pytest.raises(DocumentError):
            to_document(wrong)
    with pytest.raises(FormatError):
        from_document({"schema": 1, "kind": "activation", "number": "e4m3"})
