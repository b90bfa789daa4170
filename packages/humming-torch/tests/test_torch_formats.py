"""Formats that can be described and are not carried here are refused by name; those that are carried mean the same.

Run by pytest.
Assumes humming_format's exact decode as the truth about values.
"""

import pytest
import torch
from humming_format.reference import decode_weight
from humming_format.text import parse_weight
from humming_torch.convert import CanonicalWeight, quantize
from humming_torch.errors import WeightError
from humming_torch.pack import pack, unpack
from humming_torch.packed_weight import packed_shapes

LEVELS, FLOAT, TABLE = "two levels of scales", "float zero points", "are those of a table"

REFUSED = [
    ("u4g128*t", LEVELS),
    ("u4g128*c", LEVELS),
    ("u4c*t", LEVELS),
    ("e2m1g32*t", LEVELS),
    ("e2m1g16:e4m3*t", LEVELS),
    ("u4g128f", FLOAT),
    ("u8g64f:bf16", FLOAT),
    ("u4cf:f32", FLOAT),
    ("e4m3b128x128:f32", "no scale per row"),
    ("e2m1g32:e8m0", "scales in e8m0"),
    ("e2m1g16:e4m3", "scales in e4m3"),
    ("f16", "not a quantized one"),
]


def tensors(text, n=8, k=256):
    """Codes and scales that would do for the format, were it carried."""
    scale = parse_weight(text).scale
    groups = 1 if scale is None else scale.groups_k(k)
    return {"codes": torch.zeros(n, k, dtype=torch.uint8), "scale": torch.ones(n, groups, dtype=torch.float16)}


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_a_canonical_weight_without_room_for_a_part_is_refused(text, words):
    with pytest.raises(WeightError) as caught:
        CanonicalWeight(format=parse_weight(text), **tensors(text))
    assert f"format {text} " in str(caught.value) and words in str(caught.value) and "wanted" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"), [*REFUSED, ("nf4g64", TABLE), ("bnbfp4g64:f32", TABLE), ("iq4nlg32", TABLE)]
)
def test_rounding_to_what_is_not_carried_is_refused(text, words):
    with pytest.raises(WeightError) as caught:
        quantize(torch.randn(8, 256), parse_weight(text))
    assert f"cannot quantize to {text}: " in str(caught.value) and words in str(caught.value)
    assert "Try" in str(caught.value)


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_the_packed_layout_refuses_them_too(text, words):
    """A document of a saved layer may name any format."""
    with pytest.raises(WeightError, match="packed layout does not hold"):
        packed_shapes(parse_weight(text), 64, 256)


@pytest.mark.parametrize("text", ["nf4g64", "bnbfp4g64:bf16", "iq4nlg32"])
def test_codebook_codes_are_carried_with_their_own_values(text):
    weight_format = parse_weight(text)
    k, group = 128, weight_format.scale.group_k
    codes = torch.arange(64 * k, dtype=torch.int64).reshape(64, k) % 16
    scale = (2.0 ** torch.arange(-3, k // group - 3)).to(torch.bfloat16 if "bf16" in text else torch.float16)
    weight = CanonicalWeight(format=weight_format, codes=codes.to(torch.uint8), scale=scale.expand(64, -1).contiguous())
    wanted = [
        [float(decode_weight(weight_format, int(codes[row, j]), float(scale[j // group]))) for j in range(k)]
        for row in (0, 1)
    ]
    assert weight.dequantize(torch.float64)[:2].tolist() == wanted
    assert torch.equal(unpack(pack(weight)).dequantize(), weight.dequantize())
