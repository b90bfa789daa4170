"""FP8 checkpoints as transformers stores and decodes them: exact values of blocks, rows, tensors, experts; refusals."""

import numpy as np
import pytest
from humming_format import CheckpointError, format_activation, format_weight
from humming_format.checkpoint import decode_rows, read_checkpoint

FORMATS = {
    "fp8_block": {
        "model.whole": ("e4m3b16x32:f32", "e4m3g32:f32"),
        "model.partial": ("e4m3b16x32:f32", "e4m3g32:f32"),
        "model.experts.gate_up_proj": ("e4m3b16x32:f32", "e4m3g32:f32"),
    },
    "fp8_exponents": {
        "layers.0.attn.wq_a": ("e4m3b16x32:e8m0", "e4m3g32:e8m0"),
        "layers.0.ffn.experts.0.w1": ("e2m1g32:e8m0", "e4m3g32:e8m0"),
    },
    "fp8_plain": {
        "model.tensor": ("e4m3t:f32", "e4m3t:f32@static"),
        "model.channel": ("e4m3c:f32", "e4m3t:f32@static"),
    },
}


@pytest.mark.parametrize("name", FORMATS)
def test_what_transformers_stores_is_decoded_as_it_does(golden, decoded, same_bits, tmp_path, name):
    model = golden(name)
    checkpoint = read_checkpoint(model.write(tmp_path))
    assert checkpoint.method == "fp8"
    assert {
        layer.name: (format_weight(layer.weight), format_activation(layer.activation)) for layer in checkpoint.quantized
    } == FORMATS[name]
    seen = 0
    for layer in checkpoint.quantized:
        for one in [layer] if layer.experts is None else [layer.expert(index) for index in range(layer.experts)]:
            assert same_bits(decoded(one), model.expected[one.name])
            seen += 1
    assert seen == len(model.expected)


def test_experts_are_a_stack(golden, tmp_path):
    model = golden("fp8_block")
    layer = read_checkpoint(model.write(tmp_path)).layer("model.experts.gate_up_proj")
    assert (layer.experts, layer.n, layer.k, layer.weights) == (3, 32, 64, 3 * 32 * 64)
    assert (layer.parts, layer.interleaved) == (("gate", "up"), False)
    assert layer.bits_per_weight == 8 + 32 / (16 * 32)
    with pytest.raises(CheckpointError, match="is a stack of 3 experts"):
        decode_rows(layer, [0])
    with pytest.raises(CheckpointError, match="has no expert 3; got 3 experts"):
        layer.expert(3)
    with pytest.raises(CheckpointError, match="has no expert 0; got no stack"):
        layer.expert(0).expert(0)


def test_the_scale_is_a_multiplier_in_spite_of_its_name(golden, decoded, tmp_path):
    model = golden("fp8_block")
    name = "model.whole"
    model.put(f"{name}.weight", np.full((48, 64), 0x38, np.uint8), "float8_e4m3fn")  # 1.0
    layer = read_checkpoint(model.write(tmp_path)).layer(name)
    scale = model.array(f"{name}.weight_scale_inv")
    assert np.array_equal(decoded(layer), scale.repeat(16, 0).repeat(32, 1))


def test_every_code_and_every_exponent(golden, decoded, tmp_path):
    """All 256 weights and all 256 e8m0 scales, NaN where the bits say so."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = golden("fp8_exponents")
    model.config["quantization_config"]["weight_block_size"] = [1, 1]
    name = "layers.0.attn.wq_a"
    weights = np.arange(256, dtype=np.uint8).reshape(1, 256)
    model.put(f"{name}.weight", weights, "float8_e4m3fn")
    for dtype in ("float8_e8m0fnu", "uint8"):
        model.put(f"{name}.scale", weights[:, ::-1], dtype)
        ours = decoded(read_checkpoint(model.write(tmp_path)).layer(name))
        scales = weights[:, ::-1].copy().view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            theirs = (weights.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * scales).astype(np.float32)
        assert np.array_equal(ours, theirs, equal_nan=True)
    del model.config["quantization_config"]["scale_fmt"]
    with pytest.raises(CheckpointError, match=r"wrong dtype; got uint8.*scale_fmt ue8m0"):
        read_checkpoint(model.write(tmp_path))


def test_fused_projections_with_blocks_of_their_own_are_refused(golden, tmp_path):
    """Two halves of 24 rows quantized apart have 2 + 2 blocks of 16 rows, not 3."""
    model = golden("fp8_block")
    model.put("model.whole.weight_scale_inv", np.ones((4, 2), np.float32))
    with pytest.raises(CheckpointError, match=r"got \[4, 2\]; wanted \[3, 2\].*fused after they were quantized"):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_scheme": "sometimes"}, "activation_scheme is not described"),
        ({"activation_scheme": "static"}, "activation_scale' is missing"),
        ({"fmt": "e5m2"}, "fmt has a value"),
        ({"scale_fmt": "e4m3"}, "scale_fmt is not described"),
        ({"weight_block_size": [128]}, "weight_block_size must be two sizes"),
        ({"weight_block_size": [128, -1]}, "weight_block_size must be two sizes"),
        ({"weight_block_size": [32, 32]}, r"wrong shape; got \[3, 2\]; wanted \[2, 2\]"),
        ({"weight_block_size": None}, "a single value"),
        ({"rounding": "up"}, "unknown keys; got 'rounding'"),
    ],
)
def test_configurations_that_are_refused(golden, tmp_path, changes, message):
    model = golden("fp8_block")
    model.config["quantization_config"].update(changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("name", "array", "dtype", "message"),
    [
        ("whole.weight", np.zeros((48, 64), np.uint8), "float8_e5m2", "wrong dtype; got float8_e5m2"),
        ("whole.weight", np.zeros((48, 64), np.int8), None, "wrong dtype; got int8.*expert_dtype fp4"),
        ("whole.weight", np.zeros((48, 64), np.float16), None, "wrong dtype; got float16"),
        ("whole.weight", np.zeros((3, 48, 64), np.uint8), "float8_e4m3fn", r"wanted \[N, K\]"),
        ("whole.weight_scale_inv", np.zeros((3, 2), np.int32), None, "wrong dtype; got int32"),
        ("whole.weight_scale", np.zeros((3, 2), np.float32), None, "has several scales"),
        ("whole.weight_zero_point", np.zeros(1, np.float32), None, "weight_zero_point' is not expected here"),
        ("whole.input_scale", np.zeros(2, np.float32), None, "wanted a single value"),
        ("partial.bias", np.zeros(40, np.float16), None, "N is 41"),
        ("experts.gate_up_proj_scale_inv", np.zeros((2, 2, 2), np.float32), None, "a first side of 3 experts"),
        ("experts.gate_up_proj_scale_inv", np.zeros((3, 1, 2), np.float32), None, r"wanted \[2, 2\]"),
    ],
)
def test_tensors_that_are_refused(golden, tmp_path, name, array, dtype, message):
    model = golden("fp8_block")
    model.put(f"model.{name}", array, dtype)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


def test_what_dynamic_activations_share_is_stated_where_it_is_assumed(golden, tmp_path):
    model = golden("fp8_plain")
    assert read_checkpoint(model.write(tmp_path)).notes == ()
    model.config["quantization_config"]["activation_scheme"] = "dynamic"
    checkpoint = read_checkpoint(model.write(tmp_path))
    assert "taken as per token" in checkpoint.notes[0]
    assert format_activation(checkpoint.layer("model.channel").activation) == "e4m3c:f32"


def test_no_eight_bit_weight_at_all(golden, tmp_path):
    model = golden("fp8_block")
    model.tensors = {"lm_head.weight": model.tensors["lm_head.weight"]}
    with pytest.raises(CheckpointError, match="says FP8, but no weight is of 8-bit floats"):
        read_checkpoint(model.write(tmp_path))
