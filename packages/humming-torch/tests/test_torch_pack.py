"""Packing: the stated order word by word, padding that means zero, and back again bit for bit.

Run by pytest.
Assumes humming_kernels.packed_layout as the statement of the order, walked here field by field in plain Python.
"""

import os
import subprocess
import sys

import pytest
import torch
from humming_format.text import parse_weight
from humming_kernels.packed_layout import PackedLayout, scale_row_order
from humming_torch import settings
from humming_torch.convert import CanonicalWeight, quantize
from humming_torch.errors import HummingTorchError, WeightError
from humming_torch.pack import pack, unpack

SHAPES = [(64, 64), (130, 232), (1, 1), (65, 129), (464, 464)]


def random_weight(text, n, k, seed=0):
    """Every code, scales that are all different, random zero points."""
    weight_format = parse_weight(text)
    generator = torch.Generator().manual_seed(seed)
    like = quantize(torch.randn(n, k, generator=generator), weight_format)
    top = 1 << weight_format.number.bits
    codes = torch.randint(0, top, (n, k), generator=generator).to(torch.uint8)
    zero = like.zero_point
    if zero is not None:
        zero = torch.randint(0, top, zero.shape, generator=generator).to(torch.uint8)
    return CanonicalWeight(format=weight_format, codes=codes, scale=like.scale, zero_point=zero, minimum=like.minimum)


def same(one, other):
    return (one is None and other is None) or (one.dtype == other.dtype and torch.equal(one, other))


@pytest.mark.parametrize("shape", SHAPES)
def test_unpack_gives_back_what_was_packed(text, shape):
    weight = random_weight(text, *shape)
    back = unpack(pack(weight))
    for name in ("codes", "scale", "zero_point", "minimum", "bias", "column_order"):
        assert same(getattr(weight, name), getattr(back, name)), name
    assert back.format == weight.format
    assert same(weight.dequantize(), back.dequantize())


@pytest.mark.parametrize(("text", "padding"), [("u4g32", 8), ("u8g32", 128), ("e0m3g32", 0), ("u4g32z", 0)])
def test_words_hold_the_fields_that_the_layout_states(text, padding):
    n, k = 130, 200
    weight = random_weight(text, n, k)
    packed = pack(weight)
    bits = weight.format.number.bits
    assert packed.weight.shape == (3, 4, 128 * bits)
    codes = torch.full((192, 256), padding, dtype=torch.uint8)
    codes[:n, :k] = weight.codes
    codes = codes.tolist()
    fields = PackedLayout(bits).fields()
    for strip in range(3):
        for brick in range(4):
            words = packed.weight[strip, brick].tolist()
            for word, holds in zip(words, fields, strict=True):
                wanted = 0
                for field in holds:
                    code = codes[64 * strip + field.row][64 * brick + field.k]
                    wanted |= (code >> field.code_shift & (1 << field.width) - 1) << field.shift
                assert word % (1 << 32) == wanted


def test_scales_and_zero_points_stand_in_lane_order_with_zeros_beyond_n():
    weight = random_weight("u4g32z", 130, 200)
    packed = pack(weight)
    assert packed.weight_scale.shape == packed.zero_point.shape == (3, 7, 64)
    for position, row in enumerate(scale_row_order()):
        for strip in range(3):
            real = 64 * strip + row
            for packed_values, values in ((packed.weight_scale, weight.scale), (packed.zero_point, weight.zero_point)):
                wanted = values[real].tolist() if real < 130 else [0] * 7
                assert packed_values[strip, :, position].tolist() == wanted


def test_channel_scales_stand_in_row_order_in_f32():
    weight = random_weight("u8c", 130, 64)
    packed = pack(weight)
    assert packed.weight_scale.dtype == torch.float32 and packed.weight_scale.shape == (192,)
    assert torch.equal(packed.weight_scale[:130].half(), weight.scale[:, 0])
    assert packed.weight_scale[130:].count_nonzero() == 0
    with_minimum = pack(random_weight("u8cm", 130, 64))
    assert with_minimum.weight_scale.shape == with_minimum.zero_point.shape == (3, 1, 64)
    assert with_minimum.zero_point.dtype == torch.float16


def test_chunks_change_nothing(monkeypatch):
    weight = random_weight("u4g64z", 300, 200)
    whole = pack(weight)
    monkeypatch.setattr(settings, "current", lambda: settings.Settings(pack_chunk_bytes=1))
    chunked = pack(weight)
    assert torch.equal(whole.weight, chunked.weight)
    assert torch.equal(unpack(chunked).codes, weight.codes)


MEASURE = """
import resource, torch
from humming_format.text import parse_weight
from humming_torch.convert import CanonicalWeight
from humming_torch.pack import pack, unpack
torch.set_num_threads(1)
def weight(n, k):
    return CanonicalWeight(format=parse_weight("u4g128"), codes=torch.randint(0, 16, (n, k), dtype=torch.uint8),
                           scale=torch.ones(n, -(-k // 128), dtype=torch.float16))
unpack(pack(weight(64, 64)))
large = weight(4096, 8192)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
packed = pack(large)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, packed.nbytes // 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss counts KiB on Linux")
def test_packing_needs_its_output_and_one_chunk():
    environment = {**os.environ, "HUMMING_TORCH_PACK_CHUNK_MIB": "4"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, env=environment, check=True, timeout=120
    )
    grown, output = map(int, done.stdout.split())
    assert output > 16 * 1024
    # 4 MiB of chunk; twice that again for what the allocator keeps between chunks. All at once would take 130 MiB.
    assert grown <= output + 12 * 1024


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_bad_chunk_size_names_its_variable(value):
    with pytest.raises(HummingTorchError, match="HUMMING_TORCH_PACK_CHUNK_MIB"):
        settings.Settings.from_environment({"HUMMING_TORCH_PACK_CHUNK_MIB": value})
    assert settings.Settings.from_environment({"HUMMING_TORCH_PACK_CHUNK_MIB": " 2 "}).pack_chunk_bytes == 2 << 20


def parts(text="u4g128z", n=64, k=256, **changes):
    weight = random_weight(text, n, k)
    found = {
        "format": weight.format,
        "codes": weight.codes,
        "scale": weight.scale,
        "zero_point": weight.zero_point,
        "minimum": weight.minimum,
    }
    return {**found, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # Scales made for two groups where the format makes eight, and the other way round; zero points likewise.
        ({"format": parse_weight("u4g32z")}, ("scale", "[64, 2]", "[64, 8]")),
        ({"scale": torch.ones(64, 8, dtype=torch.float16)}, ("scale", "[64, 8]", "[64, 2]")),
        ({"zero_point": torch.ones(64, 8, dtype=torch.uint8)}, ("zero point", "[64, 8]", "[64, 2]")),
        ({"zero_point": None}, ("needs zero_point",)),
        ({"zero_point": torch.ones(64, 2)}, ("zero point", "float32", "uint8")),
        ({"minimum": torch.ones(64, 2)}, ("has no minimum",)),
        ({"scale": torch.ones(64, 2)}, ("scale", "float32", "float16")),
        ({"codes": torch.zeros(64, 256, dtype=torch.int32)}, ("codes", "int32", "uint8")),
        ({"codes": torch.full((64, 256), 16, dtype=torch.uint8)}, ("16", "u4", "at most 15")),
        ({"bias": torch.ones(63)}, ("bias", "[63]", "[64]")),
        ({"column_order": torch.zeros(256, dtype=torch.int64)}, ("column order", "permutation")),
        ({"column_order": torch.arange(255)}, ("column order", "[255]", "[256]")),
    ],
)
def test_tensors_that_do_not_fit_name_both_sides(changes, words):
    with pytest.raises(WeightError) as caught:
        CanonicalWeight(**parts(**changes))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["u5g32", "u4g32:f32", "u4g32m:f16,bf16", "e4m3t"])
def test_formats_that_the_layout_does_not_hold_are_refused(text):
    weight_format = parse_weight(text)
    with pytest.raises(WeightError):
        pack(
            CanonicalWeight(
                format=weight_format,
                codes=torch.zeros(4, 32, dtype=torch.uint8),
                scale=torch.ones(4, 1, dtype=torch.float32 if ":f32" in text else torch.float16),
                minimum=torch.ones(4, 1, dtype=torch.bfloat16) if "m:" in text else None,
            )
        )
