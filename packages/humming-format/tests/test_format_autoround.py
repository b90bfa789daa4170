"""AutoRound checkpoints as its packers make them: exact values of each packing, layers of their own, refusals."""

import numpy as np
import pytest
from humming_format import CheckpointError, format_weight
from humming_format.checkpoint import read_checkpoint

STEM = "model.layers.0.mlp.up_proj"
CASES = {
    "gptq": ("u4g32z", "auto-round:gptq"),
    "plain": ("u2g32z", "auto-round:gptq_v2"),
    "plain_5_bits": ("u5g32z", "auto-round:gptq_v2"),
    "gptqmodel": ("u8c", "auto-round:gptq_v2"),
    "gptq_3_bits": ("u3g64z", "auto-round:gptq"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_packing_is_decoded_as_autoround_does(golden, decoded, same_bits, tmp_path, name):
    model = golden(f"autoround_{name}")
    checkpoint = read_checkpoint(model.write(tmp_path))
    layer = checkpoint.layer(STEM)
    assert (format_weight(layer.weight), layer.method) == CASES[name] and checkpoint.method == "auto-round"
    assert same_bits(decoded(layer), model.expected[STEM])


def test_the_two_rules_for_zero_points_differ_by_one(golden, decoded, tmp_path):
    model = golden("autoround_gptq")
    model.config["quantization_config"]["packing_format"] = "auto_round"
    ours = decoded(read_checkpoint(model.write(tmp_path)).layer(STEM))
    assert not np.any(ours == model.expected[STEM])


def test_awq_packing(golden, decoded, same_bits, tmp_path):
    model, awq = golden("autoround_gptq"), golden("awq_g32")
    model.tensors = awq.tensors
    model.config["quantization_config"]["packing_format"] = "auto_round:auto_awq"
    layer = read_checkpoint(model.write(tmp_path)).layer(STEM)
    assert (format_weight(layer.weight), layer.method) == ("u4g32z", "auto-round:awq")
    assert same_bits(decoded(layer), awq.expected[STEM])


def test_layers_of_their_own(golden, decoded, same_bits, tmp_path):
    model, other = golden("autoround_plain"), golden("autoround_plain_5_bits")
    name = "model.layers.1.mlp.up_proj"
    model.tensors |= {key.replace("layers.0", "layers.1"): value for key, value in other.tensors.items()}
    quant = model.config["quantization_config"]
    quant["extra_config"] = {name: {"bits": 5}, "lm_head": {"bits": 16}, r".*shared_expert_gate.*": {"bits": 16}}
    checkpoint = read_checkpoint(model.write(tmp_path))
    assert [format_weight(layer.weight) for layer in checkpoint.quantized] == ["u2g32z", "u5g32z"]
    assert same_bits(decoded(checkpoint.layer(name)), other.expected[STEM])
    for extra, message in [
        ({name: {"bits": 16}}, "is not quantized, but it is"),
        ({".*layers.1.*": {"bits": 5}}, "patterns are described for unquantized layers only"),
        ({name: 5}, "is not an object"),
        ({name: {"bits": 5, "smooth": 1}}, "unknown keys; got 'smooth'"),
        ({name: {"act_bits": 8}}, "act_bits has a value"),
        ([], "extra_config is not an object"),
    ]:
        quant["extra_config"] = extra
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing_format": "auto_round:fp8_static"}, "packing_format is not described; got 'auto_round:fp8_static'"),
        ({"packing_format": None}, "packing_format is not described"),
        ({"packing_format": "auto_round:auto_awq"}, "K is not a multiple of the group size"),
        ({"bits": 9}, "bits are not described"),
        ({"bits": 8}, "wrong shape"),
        ({"sym": None}, "sym must be true or false"),
        ({"sym": True}, "holds other zero points"),
        ({"group_size": 0}, "group_size is not described"),
        ({"group_size": 64}, "wrong shape"),
        ({"act_bits": 8}, "act_bits has a value"),
        ({"data_type": "mx_fp"}, "data_type has a value"),
        ({"super_bits": 6}, "super_bits has a value"),
        ({"rotation_configs": [1]}, "rotation_configs has a value"),
        ({"surprise": 1}, "unknown keys; got 'surprise'"),
    ],
)
def test_configurations_that_are_refused(golden, tmp_path, changes, message):
    model = golden("autoround_gptq")
    model.config["quantization_config"].update(changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


def test_nothing_quantized_at_all(golden, tmp_path):
    model = golden("autoround_gptq")
    model.tensors = {"a.weight": ("float16", (1, 2), bytes(4))}
    with pytest.raises(CheckpointError, match="says AutoRound, but there is no tensor"):
        read_checkpoint(model.write(tmp_path))
