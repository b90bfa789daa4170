"""Quark checkpoints as the package exported them: exact values of each scheme, patterns of names, refusals by name."""

import copy

import numpy as np
import pytest
from humming_format import CheckpointError, format_activation, format_weight
from humming_format.checkpoint import read_checkpoint

STEM = "model.layers.0.self_attn.k_proj"
FORMATS = {
    "int4_wo_32": ("u4g32:bf16", None),
    "uint4_wo_32": ("u4g32z:bf16", None),
    "int8": ("u8t:f32", "s8t:f32@static"),
    "fp8": ("e4m3t:bf16", "e4m3t:f32@static"),
    "ptpc_fp8": ("e4m3c:bf16", "e4m3c:f32"),
    "mxfp4": ("e2m1g32:e8m0", "e2m1g32:e8m0"),
    "nvfp4": ("e2m1g16:e4m3*t", "e2m1g16:e4m3*t"),
    "mxfp6_e2m3": ("e2m3g32:e8m0", "e2m3g32:e8m0"),
    "mxfp6_e3m2": ("e3m2g32:e8m0", "e3m2g32:e8m0"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_scheme_is_decoded_as_quark_does(golden, decoded, same_bits, tmp_path, name):
    model = golden(f"quark_{name}")
    layer = read_checkpoint(model.write(tmp_path)).layer(STEM)
    text, activation = FORMATS[name]
    assert format_weight(layer.weight) == text
    assert (layer.activation and format_activation(layer.activation)) == activation
    ours, theirs = decoded(layer), model.expected[STEM]
    if name == "nvfp4":  # the package rounds the product of the two scales to f32 first
        assert np.allclose(ours, theirs, rtol=2**-22, atol=0)
    else:
        assert same_bits(ours + np.float32(0), theirs + np.float32(0))  # a zero may be negative on one side


def test_all_codes_in_both_orders(golden, decoded, tmp_path):
    """4-bit words by numpy: AWQ's order with "reorder", neighbours in order with "order"."""
    model = golden("quark_int4_wo_32")
    model.put(f"{STEM}.weight_scale", np.ones((2, 32), np.float32))
    model.put(f"{STEM}.weight", np.full((64, 4), 0x76543210, np.uint32).view(np.int32))
    ours = decoded(read_checkpoint(model.write(tmp_path)).layer(STEM))
    assert ours[:8, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    model.put(f"{STEM}.weight", np.full((64, 4), 0xFEDCBA98, np.uint32).view(np.int32))
    model.config["quantization_config"]["export"]["pack_method"] = "order"
    ours = decoded(read_checkpoint(model.write(tmp_path)).layer(STEM))
    assert ours[:8, 0].tolist() == [-8, -7, -6, -5, -4, -3, -2, -1]


def test_patterns_of_names(golden, tmp_path):
    model, other = golden("quark_fp8"), golden("quark_mxfp4")
    name = "model.layers.1.self_attn.k_proj"
    model.tensors |= {key.replace("layers.0", "layers.1"): value for key, value in other.tensors.items()}
    quant = model.config["quantization_config"]
    theirs = other.config["quantization_config"]["global_quant_config"]
    quant["layer_quant_config"] = {"*layers.1.*": theirs}
    texts = [format_weight(layer.weight) for layer in read_checkpoint(model.write(tmp_path)).quantized]
    assert texts == ["e4m3t:bf16", "e2m1g32:e8m0"]
    quant["layer_quant_config"]["*k_proj"] = copy.deepcopy(quant["global_quant_config"])
    with pytest.raises(CheckpointError, match=f"several layer_quant_config that fit '{name}'"):
        read_checkpoint(model.write(tmp_path))
    quant["layer_quant_config"] = {"*" * 9: theirs}
    with pytest.raises(CheckpointError, match="too long to be tried"):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("fp8", ("quant_mode",), "fx_graph_mode", "quant_mode has a value"),
        ("fp8", ("algo_config",), [{"name": "rotation"}], "algorithm is not described; got 'rotation'"),
        ("fp8", ("algo_config",), [{"name": "awq"}], None),
        ("fp8", ("export", "weight_format"), "fake_quantized", "weight_format has a value"),
        ("fp8", ("export", "pack_method"), "other", "pack_method is not described"),
        ("fp8", ("global_quant_config", "output_tensors"), {}, "output_tensors has a value"),
        ("fp8", ("global_quant_config", "weight"), None, "does not quantize weights"),
        ("fp8", ("global_quant_config", "weight", "dtype"), "mx9", "dtype is not described; got 'mx9'"),
        ("fp8", ("global_quant_config", "weight", "dtype"), "int8", "wrong dtype; got float8_e4m3fn"),
        ("fp8", ("global_quant_config", "weight", "qscheme"), "per_block", "qscheme is not described"),
        ("fp8", ("global_quant_config", "weight", "is_dynamic"), True, "is_dynamic is not described"),
        ("fp8", ("global_quant_config", "weight", "surprise"), 1, "unknown keys; got 'surprise'"),
        ("mxfp4", ("global_quant_config", "weight", "group_size"), 16, "this sharing of scales is not described"),
        ("mxfp4", ("global_quant_config", "weight", "group_size"), -1, "groups are not described"),
        ("mxfp4", ("global_quant_config", "weight", "scale_format"), "e5m3", "scale_format is not described"),
        ("mxfp4", ("global_quant_config", "weight", "scale_format"), None, "wrong dtype; got uint8"),
        ("nvfp4", ("global_quant_config", "weight", 1, "dtype"), "fp8_e5m2", "second level is not described"),
        ("uint4_wo_32", ("global_quant_config", "weight", "symmetric"), True, "unsigned integers is said to be"),
        ("uint4_wo_32", ("global_quant_config", "weight", "group_size"), 64, "wrong shape"),
        ("int8", ("global_quant_config", "input_tensors", "qscheme"), "per_channel", "ch_axis is not described"),
    ],
)
def test_configurations_that_are_refused(golden, tmp_path, name, path, value, message):
    model = golden(f"quark_{name}")
    place = model.config["quantization_config"]
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    if message is None:
        assert read_checkpoint(model.write(tmp_path)).quantized
        return
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("name", "ending", "array", "message"),
    [
        ("int4_wo_32", "weight_zero_point", np.ones((2, 4), np.int32), "says symmetric, but tensor .* holds zero"),
        ("uint4_wo_32", "weight_zero_point", np.ones((2, 3), np.int32), "packed as the codes are"),
        ("uint4_wo_32", "weight_scale", np.ones((32, 2), np.float32), "wrong shape"),
        ("int8", "weight", np.ones((32, 64), np.uint8), "wrong dtype; got uint8"),
        ("int8", "input_scale", np.ones(2, np.float32), "a single value"),
        ("nvfp4", "weight_scale_2", np.ones(2, np.float32), "a single value"),
        ("fp8", "weight_zero_point", np.zeros(1, np.int8), "weight_zero_point' is not expected here"),
        ("fp8", "bias", np.zeros(31, np.float32), "N is 32"),
    ],
)
def test_tensors_that_are_refused(golden, tmp_path, name, ending, array, message):
    model = golden(f"quark_{name}")
    model.put(f"{STEM}.{ending}", array)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))
