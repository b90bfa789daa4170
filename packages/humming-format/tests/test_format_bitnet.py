"""BitNet checkpoints as transformers packs them: exact values, both meanings of the scale, refusals by name."""

import numpy as np
import pytest
from humming_format import CheckpointError, format_activation, format_weight
from humming_format.checkpoint import StoredScale, read_checkpoint


@pytest.mark.parametrize(
    ("name", "rule"), [("bitlinear", StoredScale.DIVISOR), ("autobitlinear", StoredScale.MULTIPLIER)]
)
def test_ternary_weights_are_decoded_as_transformers_does(golden, decoded, tmp_path, name, rule):
    model = golden(f"bitnet_{name}")
    layer = read_checkpoint(model.write(tmp_path)).layer("model.q_proj")
    assert (layer.n, layer.k, layer.layout.scale) == (24, 40, rule)
    assert format_weight(layer.weight) == "u2tz1:bf16" and format_activation(layer.activation) == "s8c:f32"
    assert np.array_equal(decoded(layer), model.expected["model.q_proj"])
    assert layer.bits_per_weight == 2 + 16 / (24 * 40)


def test_the_rows_of_a_byte_lie_a_quarter_apart(golden, decoded, tmp_path):
    model = golden("bitnet_autobitlinear")
    model.put("model.q_proj.weight", np.full((2, 3), 0b10_01_00_10, np.uint8))
    model.put("model.q_proj.weight_scale", np.array([2], np.float32))
    ours = decoded(read_checkpoint(model.write(tmp_path)).layer("model.q_proj"))
    assert ours[:, 0].tolist() == [2, 2, -2, -2, 0, 0, 2, 2]


def test_a_norm_before_the_product_is_noted(golden, tmp_path):
    model = golden("bitnet_bitlinear")
    assert read_checkpoint(model.write(tmp_path)).notes == ()
    model.config["quantization_config"]["use_rms_norm"] = True
    assert "use_rms_norm" in read_checkpoint(model.write(tmp_path)).notes[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_class": "linear"}, "linear_class is not described"),
        ({"quantization_mode": "online"}, "quantization_mode has a value"),
        ({"modules_to_not_convert": 3}, "modules_to_not_convert must be a list"),
        ({"use_rms_norm": 1}, "use_rms_norm must be true or false"),
        ({"surprise": 1}, "unknown keys; got 'surprise'"),
    ],
)
def test_configurations_that_are_refused(golden, tmp_path, changes, message):
    model = golden("bitnet_bitlinear")
    model.config["quantization_config"].update(changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("weight", np.zeros((6, 40), np.int8), "wrong dtype; got int8"),
        ("weight", np.zeros(40, np.uint8), r"wanted \[N / 4, K\]"),
        ("weight_scale", np.zeros(24, np.float32), "a single value"),
        ("weight_zero", np.zeros(1, np.float32), "weight_zero' is not expected here"),
        ("bias", np.zeros(6, np.float32), "N is 24"),
    ],
)
def test_tensors_that_are_refused(golden, tmp_path, name, array, message):
    model = golden("bitnet_bitlinear")
    model.put(f"model.q_proj.{name}", array)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


def test_a_scale_of_zero_is_no_divisor(golden, decoded, tmp_path):
    model = golden("bitnet_bitlinear")
    model.put("model.q_proj.weight_scale", np.zeros(1, np.float32))
    with pytest.raises(CheckpointError, match="stored as a divisor is zero"):
        decoded(read_checkpoint(model.write(tmp_path)).layer("model.q_proj"))
