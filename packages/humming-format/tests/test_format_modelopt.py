"""ModelOpt checkpoints as the package exported them: exact values of each algorithm, both conventions, refusals."""

import json

import numpy as np
import pytest
from humming_format import CheckpointError, format_activation, format_weight
from humming_format.checkpoint import StoredScale, read_checkpoint

FORMATS = {
    "nvfp4": ("NVFP4", "e2m1g16:e4m3*t", "e2m1g16:e4m3*t"),
    "w4a16_nvfp4": ("W4A16_NVFP4", "e2m1g16:e4m3*t", None),
    "w4a8_nvfp4_fp8": ("W4A8_NVFP4_FP8", "e2m1g32:e4m3*t", "e4m3t:f32@static"),
    "w4a8_mxfp4_fp8": ("W4A8_MXFP4_FP8", "e2m1g32:e8m0", "e4m3t:f32"),
    "mxfp8": ("MXFP8", "e4m3g32:e8m0", "e4m3g32:e8m0"),
    "fp8": ("FP8", "e4m3t:f32", "e4m3t:f32@static"),
    "fp8_channel": ("FP8_PER_CHANNEL_PER_TOKEN", "e4m3c:f32", "e4m3c:f32"),
    "int8": ("W8A16", "u8c:f32", None),
    "int8_smooth": ("W8A8_SQ_PER_CHANNEL", "u8c:f32", "s8t:f32@static"),
}
UP, KEY = "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.k_proj"


@pytest.mark.parametrize("name", FORMATS)
def test_every_algorithm_is_decoded_as_the_package_does(golden, decoded, same_bits, tmp_path, name):
    model = golden(f"modelopt_{name}")
    checkpoint = read_checkpoint(model.write(tmp_path))
    algorithm, text, activation = FORMATS[name]
    assert [layer.name for layer in checkpoint.quantized] == [UP, KEY]
    for layer in checkpoint.quantized:
        assert layer.method == f"modelopt:{algorithm}"
        assert format_weight(layer.weight) == text
        assert (layer.activation and format_activation(layer.activation)) == activation
        ours, theirs = decoded(layer), model.expected[layer.name]
        if "nvfp4" not in name:
            assert same_bits(ours, theirs)
            continue
        # The package rounds the product of the two scales to f32 before it multiplies the code; this is exact.
        assert layer.layout.outer_scale is StoredScale.MULTIPLIER
        assert np.allclose(ours, theirs, rtol=2**-22, atol=0)
        scales, outer = model.array(f"{layer.name}.weight_scale"), model.array(f"{layer.name}.weight_scale_2")
        ml_dtypes = pytest.importorskip("ml_dtypes")
        product = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * outer
        codes = np.rint(2 * ours / product.repeat(layer.k // scales.shape[1], 1)) / 2
        assert set(np.abs(codes).ravel().tolist()) <= {0, 0.5, 1, 1.5, 2, 3, 4, 6}
        assert np.array_equal(codes * product.repeat(layer.k // scales.shape[1], 1), theirs)


def test_a_power_of_two_as_second_scale_is_exact_in_both(golden, decoded, same_bits, tmp_path):
    """Field report 4: stored as a multiplier here and as a divisor by compressed-tensors, the weights are the same."""
    model = golden("modelopt_w4a16_nvfp4")
    model.put(f"{UP}.weight_scale_2", np.array(2.0**-9, np.float32))
    ours = decoded(read_checkpoint(model.write(tmp_path / "modelopt")).layer(UP))
    other = golden("compressed_tensors")
    name = "model.nvfp4_power_of_two"
    quant = other.config["quantization_config"]
    quant["config_groups"] = {key: group for key, group in quant["config_groups"].items() if group["targets"] == [name]}
    other.tensors = {}
    other.put(f"{name}.weight_packed", model.array(f"{UP}.weight"))
    other.put(f"{name}.weight_scale", model.array(f"{UP}.weight_scale"), "float8_e4m3fn")
    other.put(f"{name}.weight_global_scale", np.array([2.0**9], np.float32))
    assert same_bits(decoded(read_checkpoint(other.write(tmp_path / "other")).layer(name)), ours)


def test_both_conventions_of_a_common_global_scale_give_identical_bf16(golden, decoded, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = golden("modelopt_w4a16_nvfp4")
    model.put(f"{UP}.weight_scale_2", np.array(0.00028, np.float32))
    ours = decoded(read_checkpoint(model.write(tmp_path / "modelopt")).layer(UP))
    other = golden("compressed_tensors")
    name = "model.nvfp4"
    other.tensors = {key: value for key, value in other.tensors.items() if key.startswith(name + ".input")}
    other.put(f"{name}.weight_packed", model.array(f"{UP}.weight"))
    other.put(f"{name}.weight_scale", model.array(f"{UP}.weight_scale"), "float8_e4m3fn")
    other.put(f"{name}.weight_global_scale", np.array([1 / np.float32(0.00028)], np.float32))
    theirs = decoded(read_checkpoint(other.write(tmp_path / "other")).layer(name))
    assert np.array_equal(ours.astype(ml_dtypes.bfloat16), theirs.astype(ml_dtypes.bfloat16))


def test_each_projection_keeps_its_own_second_scale(golden, tmp_path):
    model = golden("modelopt_nvfp4")
    layers = read_checkpoint(model.write(tmp_path)).quantized
    assert layers[0].tensors["outer_scale"].read() != layers[1].tensors["outer_scale"].read()
    assert set(layers[0].tensors) == {"codes", "scale", "outer_scale", "activation_outer_scale"}


def test_a_scale_on_the_input_is_kept_as_a_tensor(golden, tmp_path):
    model = golden("modelopt_int8_smooth")
    checkpoint = read_checkpoint(model.write(tmp_path))
    assert checkpoint.notes[0].startswith(f"2 layers, such as '{UP}', multiply the columns of their input")
    layer = checkpoint.layer(UP)
    assert layer.tensors["activation_multiplier"].shape == (layer.k,)
    model = golden("modelopt_nvfp4")
    model.put(f"{UP}.pre_quant_scale", np.ones(32, np.float32))
    with pytest.raises(CheckpointError, match="pre_quant_scale' is not expected here"):
        read_checkpoint(model.write(tmp_path / "nvfp4"))
    model.config["quantization"].update(quant_algo="NVFP4_AWQ", pre_quant_scale=True, has_zero_point=False)
    assert "activation_multiplier" in read_checkpoint(model.write(tmp_path / "awq")).layer(UP).tensors


def test_both_files_and_their_contradiction(golden, tmp_path):
    model = golden("modelopt_w4a16_nvfp4")
    folder = model.write(tmp_path)
    theirs = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}
    (folder / "hf_quant_config.json").write_text(json.dumps(theirs))
    assert len(read_checkpoint(folder).quantized) == 2
    theirs["quantization"]["quant_algo"] = "NVFP4"
    (folder / "hf_quant_config.json").write_text(json.dumps(theirs))
    with pytest.raises(CheckpointError, match="contradict each other"):
        read_checkpoint(folder)


def test_mixed_precision_goes_by_layer(golden, tmp_path):
    model, other = golden("modelopt_nvfp4"), golden("modelopt_fp8")
    model.tensors = {key: value for key, value in model.tensors.items() if key.startswith(UP)}
    model.tensors |= {key: value for key, value in other.tensors.items() if key.startswith(KEY)}
    layers = {UP: {"quant_algo": "NVFP4", "group_size": 16}, KEY: {"quant_algo": "FP8"}}
    model.config["quantization"] = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    texts = [format_weight(layer.weight) for layer in read_checkpoint(model.write(tmp_path)).quantized]
    assert texts == ["e2m1g16:e4m3*t", "e4m3t:f32"]
    removed = layers.pop(KEY)
    with pytest.raises(CheckpointError, match=r"does not say how 'model.layers.0.self_attn.k_proj' is quantized"):
        read_checkpoint(model.write(tmp_path))
    layers |= {KEY: removed, "model.other": removed}
    with pytest.raises(CheckpointError, match=r"'model\.other\.weight_scale' is missing"):
        read_checkpoint(model.write(tmp_path))
    layers.clear()
    with pytest.raises(CheckpointError, match="without quantized_layers"):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_algo": "W4A8_AWQ"}, "quant_algo is not described; got 'W4A8_AWQ'; wanted NVFP4"),
        ({"quant_algo": None}, "quant_algo is not described"),
        ({"quant_algo": "FP8"}, "weight_scale_2' is not expected here"),
        ({"group_size": 32}, r"wrong shape; got \[64, 2\]; wanted \[64, 1\]"),
        ({"group_size": -1}, "group_size is not described"),
        ({"has_zero_point": True}, "has_zero_point has a value"),
        ({"quantized_layers": {UP: {}}}, "quantized_layers goes with MIXED_PRECISION"),
        ({"exclude_modules": "lm_head"}, "exclude_modules must be a list"),
        ({"rotation": 1}, "unknown keys; got 'rotation'"),
    ],
)
def test_configurations_that_are_refused(golden, tmp_path, changes, message):
    model = golden("modelopt_nvfp4")
    model.config["quantization"].update(changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("ending", "array", "message"),
    [
        ("weight", np.zeros((64, 16), np.int8), "wrong dtype; got int8"),
        ("weight", np.zeros((64, 24), np.uint8), r"wanted \[64, 3\]"),
        ("weight_scale", np.zeros((64, 2), np.float32), "wrong dtype; got float32"),
        ("weight_scale_2", np.zeros(2, np.float32), "a single value"),
        ("weight_scale_2", np.zeros(1, np.float16), "wrong dtype; got float16"),
        ("input_scale", np.zeros(2, np.float32), "a single value"),
        ("zero_point", np.zeros(2, np.float32), "zero_point' is not expected here"),
    ],
)
def test_tensors_that_are_refused(golden, tmp_path, ending, array, message):
    model = golden("modelopt_nvfp4")
    model.put(f"{UP}.{ending}", array)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))
