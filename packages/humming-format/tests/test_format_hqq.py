"""HQQ checkpoints as the package packs them: exact values of every width, refusals by name."""

import numpy as np
import pytest
from humming_format import CheckpointError, format_weight
from humming_format.checkpoint import read_checkpoint

FORMATS = {1: "u1g32f", 2: "u2g16f", 3: "u3g32f", 4: "u4g32f", 8: "u8g64f"}
NAME = "model.bits4"


@pytest.fixture
def model(golden):
    return golden("hqq")


@pytest.mark.parametrize("bits", FORMATS)
def test_every_width_is_decoded_as_hqq_does(model, decoded, same_bits, tmp_path, bits):
    checkpoint = read_checkpoint(model.write(tmp_path))
    assert len(checkpoint.quantized) == len(FORMATS) and checkpoint.others == ()
    layer = checkpoint.layer(f"model.bits{bits}")
    assert format_weight(layer.weight) == FORMATS[bits]
    ours, theirs = decoded(layer), model.expected[layer.name]
    assert same_bits(ours + np.float32(0), theirs + np.float32(0))  # a zero may be negative there


def test_all_codes_and_zero_points_between_them(model, decoded, tmp_path):
    """(code - zero) * scale with a zero point that no integer is, by numpy."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 16, (24, 32))
    model.put(f"{NAME}.W_q", (codes[:12] << 4 | codes[12:]).astype(np.uint8))
    zero = (random.random((24, 1)) * 15).astype(np.float16)
    scale = random.random((24, 1)).astype(np.float16)
    model.put(f"{NAME}.zero", zero)
    model.put(f"{NAME}.scale", scale)
    layer = read_checkpoint(model.write(tmp_path)).layer(NAME)
    exact = (codes - zero.astype(np.float64)) * scale.astype(np.float64)
    assert np.array_equal(decoded(layer), exact.astype(np.float32).reshape(12, 64))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("axis", np.array(0, np.int32), "axis has a value that is not described; got.*groups across rows"),
        ("view_as_float", np.array(1, np.uint8), "view_as_float has a value"),
        ("quant_scale", np.array(1, np.uint8), "quant_scale has a value"),
        ("quant_zero", np.array(1, np.uint8), "quant_zero has a value"),
        ("nbits", np.array(3, np.int32), "nbits and packing differ"),
        ("nbits", np.array(4, np.float32), "wrong dtype; got float32"),
        ("packing", np.frombuffer(b"4bit_i9", np.uint8), "packing is not described; got '4bit_i9'"),
        ("packing", np.zeros(99, np.uint8), "wrong shape"),
        ("group_size", np.array(48, np.int32), "K is not a multiple of the group size"),
        ("group_size", np.array(64, np.int32), "packed as 4bit_u8"),
        ("group_size", np.array(0, np.int32), "K is not a multiple of the group size"),
        ("shape", np.array([12, 64, 1]), "shape is not that of a matrix"),
        ("shape", np.array([12, -64]), "shape is not that of a matrix"),
        ("W_q", np.zeros((13, 32), np.uint8), "packed as 4bit_u8"),
        ("W_q", np.zeros((12, 32), np.int32), "wrong dtype; got int32"),
        ("zero", np.zeros((24, 1), np.uint8), "wrong dtype; got uint8"),
        ("scale", np.zeros((12, 1), np.float16), "there are 24 groups"),
        ("bias", np.zeros(11, np.float16), "N is 12"),
    ],
)
def test_tensors_that_are_refused(model, tmp_path, name, array, message):
    model.put(f"{NAME}.{name}", array)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda quant: quant["quant_config"].update(scale_quant_params={"nbits": 8}), "scale_quant_params has a value"),
        (lambda quant: quant["quant_config"].update(lora=1), "unknown keys; got 'lora'"),
        (lambda quant: quant.update(quant_config=None), "quant_config is not an object"),
        (lambda quant: quant.update(quant_config={"self_attn.q_proj": 3}), "is not an object"),
        (lambda quant: quant.update(skip_modules="lm_head"), "skip_modules must be a list"),
    ],
)
def test_configurations_that_are_refused(model, tmp_path, change, message):
    change(model.config["quantization_config"])
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


def test_a_configuration_per_kind_of_layer(model, tmp_path):
    quant = model.config["quantization_config"]
    quant["quant_config"] = {"self_attn.q_proj": quant["quant_config"], "mlp.up_proj": quant["quant_config"]}
    assert len(read_checkpoint(model.write(tmp_path)).quantized) == len(FORMATS)
