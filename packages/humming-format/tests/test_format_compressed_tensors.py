"""compressed-tensors checkpoints as the package compressed them: exact values, groups and targets, refusals by name."""

import copy

import numpy as np
import pytest
from humming_format import CheckpointError, format_activation, format_weight
from humming_format.checkpoint import StoredScale, read_checkpoint
from humming_format.checkpoint.targets import compiled

# Module -> text of the weights, text of the activations.
FORMATS = {
    "pack4_group": ("u4g32:f32", None),
    "pack4_group_asymmetric": ("u4g32z:bf16", None),
    "pack4_channel_asymmetric": ("u4cz", None),
    "pack8_channel": ("u8c:bf16", None),
    "pack3_group": ("u3g16z:f32", None),
    "pack5_tensor": ("u5t:f32", None),
    "int8_channel": ("u8c:f32", "s8c:f32"),
    "int8_tensor_asymmetric": ("u8tz:f32", "u8tz:f32@static"),
    "int4_in_bytes": ("u4c:f32", "s8c:f32"),
    "int4_group_in_bytes": ("u4g32z:f32", None),
    "float_tensor": ("e4m3t:f32", "e4m3t:f32@static"),
    "float_channel": ("e4m3c:bf16", "e4m3c:f32"),
    "float_block": ("e4m3b16x16:f32", "e4m3g16:f32"),
    "nvfp4": ("e2m1g16:e4m3*t", "e2m1g16:e4m3*t"),
    "nvfp4_power_of_two": ("e2m1g16:e4m3*t", None),
    "mxfp4": ("e2m1g32:e8m0", None),
    "mxfp6": ("e2m3g32:e8m0", None),
    "mxfp8": ("e4m3g32:e8m0", "e4m3g32:e8m0"),
}


@pytest.fixture
def model(golden):
    return golden("compressed_tensors")


def only(model, *modules):
    """The checkpoint with some of its modules, one group each."""
    quant = model.config["quantization_config"]
    kept = [f"model.{module}" for module in modules]
    model.tensors = {key: value for key, value in model.tensors.items() if key.rpartition(".")[0] in kept}
    groups = {name: group for name, group in quant["config_groups"].items() if group["targets"][0] in kept}
    quant["config_groups"] = groups
    return next(iter(groups.values()))


@pytest.mark.parametrize("module", FORMATS)
def test_every_way_of_storing_is_decoded_as_the_package_does(model, decoded, same_bits, tmp_path, module):
    checkpoint = read_checkpoint(model.write(tmp_path))
    assert len(checkpoint.quantized) == len(FORMATS) == len(model.expected) and checkpoint.notes == ()
    layer = checkpoint.layer(f"model.{module}")
    text, activation = FORMATS[module]
    assert format_weight(layer.weight) == text
    assert (layer.activation and format_activation(layer.activation)) == activation
    ours, theirs = decoded(layer), model.expected[layer.name]
    if module != "nvfp4":
        assert same_bits(ours, theirs)
        return
    # The package divides each scale by the global one; here one over it is rounded to f32 once, as field report 4 asks.
    global_scale = model.array(f"{layer.name}.weight_global_scale")[0]
    assert layer.layout.outer_scale is StoredScale.DIVISOR
    assert np.allclose(ours, theirs, rtol=2**-22, atol=0) and np.mean(ours == theirs) > 0.1
    codes = theirs / theirs[0, 0]
    assert np.isfinite(codes).all() and np.float32(1) / global_scale != np.float64(1) / global_scale


def test_nvfp4_by_numpy(model, decoded, tmp_path):
    """e2m1 times e4m3 times f32(1 / global), rounded once; and identical bf16 for both conventions of the global."""
    name = "model.nvfp4"
    layer = read_checkpoint(model.write(tmp_path)).layer(name)
    packed, scale = model.array(f"{name}.weight_packed"), model.array(f"{name}.weight_scale")
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    scales = scale.view(ml_dtypes.float8_e4m3fn).astype(np.float64).repeat(16, 1)
    multiplier = np.float64(np.float32(1) / model.array(f"{name}.weight_global_scale")[0])
    exact = table[codes] * scales * multiplier  # 2 + 4 + 24 bits: exact in f64
    assert np.array_equal(decoded(layer), exact.astype(np.float32))
    theirs = model.expected[name]
    assert np.array_equal(theirs.astype(ml_dtypes.bfloat16), exact.astype(ml_dtypes.bfloat16))


def test_signed_bytes_are_not_packed_words(model, decoded, tmp_path):
    """Field report 2: int4 in int8 bytes, all 16 codes, is q * s; the same bytes under pack-quantized are refused."""
    group = only(model, "int4_in_bytes")
    codes = np.tile(np.arange(-8, 8, dtype=np.int8), (16, 4))
    model.put("model.int4_in_bytes.weight", codes)
    layer = read_checkpoint(model.write(tmp_path)).layer("model.int4_in_bytes")
    scale = model.array("model.int4_in_bytes.weight_scale")
    assert np.array_equal(decoded(layer), codes * scale)
    codes[3, 5] = 8
    model.put("model.int4_in_bytes.weight", codes)
    with pytest.raises(
        CheckpointError, match="holds a value that does not fit; got 8 at row 3, column 5; wanted -8 to 7"
    ):
        decoded(read_checkpoint(model.write(tmp_path)).layer("model.int4_in_bytes"))
    group["format"] = "pack-quantized"
    with pytest.raises(CheckpointError, match=r"weight_packed' is missing"):
        read_checkpoint(model.write(tmp_path))
    model.put("model.int4_in_bytes.weight_packed", model.array("model.int4_in_bytes.weight"))
    del model.tensors["model.int4_in_bytes.weight"]
    model.put("model.int4_in_bytes.weight_shape", np.array([16, 64]))
    with pytest.raises(CheckpointError, match=r"got int8 .*one value per byte is the format int-quantized"):
        read_checkpoint(model.write(tmp_path))


def test_every_scale_byte(model, decoded, tmp_path):
    """All 256 e4m3 and e8m0 scales under a code of 1.0; groups of zeros stay zeros unless the scale is NaN."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for module, kind, size in (("nvfp4_power_of_two", "float8_e4m3fn", 16), ("mxfp4", "float8_e8m0fnu", 32)):
        model = copy.deepcopy(model)
        name, scales = f"model.{module}", np.arange(256, dtype=np.uint8).reshape(8, 32)
        stored = "float8_e4m3fn" if kind == "float8_e4m3fn" else "uint8"
        model.put(f"{name}.weight_scale", scales, stored)
        nibbles = np.full((8, 32 * size // 2), 0x22, np.uint8)
        nibbles[:, ::2] = 0x00
        model.put(f"{name}.weight_packed", nibbles)
        ours = decoded(read_checkpoint(model.write(tmp_path / module)).layer(name))
        values = scales.view(getattr(ml_dtypes, kind)).astype(np.float32).repeat(size, 1)
        if module.startswith("nvfp4"):
            values = values / np.float32(512)
        assert np.array_equal(ours[:, 2::4], values[:, 2::4], equal_nan=True)
        finite = ~np.isnan(values[:, ::4])
        assert np.all(ours[:, ::4][finite] == 0) and np.all(np.isnan(ours[:, ::4][~finite]))


def test_act_order(model, decoded, tmp_path):
    """Older versions store the group of each column; all minus ones mean the plain order."""
    only(model, "pack4_group")
    name = "model.pack4_group"
    plain = decoded(read_checkpoint(model.write(tmp_path)).layer(name))
    scale = model.array(f"{name}.weight_scale")
    index = np.random.default_rng(0).permutation(np.arange(64) // 32).astype(np.int32)
    model.put(f"{name}.weight_g_idx", index)
    layer = read_checkpoint(model.write(tmp_path)).layer(name)
    assert layer.column_order
    codes = np.rint(plain / scale.repeat(32, 1))
    assert np.array_equal(decoded(layer), (codes * scale[:, index]).astype(np.float32))
    model.put(f"{name}.weight_g_idx", np.full(64, -1, np.int32))
    layer = read_checkpoint(model.write(tmp_path)).layer(name)
    assert not layer.column_order and np.array_equal(decoded(layer), plain)
    model.put(f"{name}.weight_g_idx", np.zeros(64, np.int32))
    with pytest.raises(CheckpointError, match="does not give each group 32 columns"):
        read_checkpoint(model.write(tmp_path))


def two_schemes(model):
    """pack4_group and pack8_channel, with the groups of each."""
    only(model, "pack4_group", "pack8_channel")
    groups = model.config["quantization_config"]["config_groups"]
    return {group["targets"][0].removeprefix("model."): group for group in groups.values()}


def test_names_come_before_patterns_and_patterns_before_classes(model, tmp_path):
    groups = two_schemes(model)
    groups["pack4_group"]["targets"] = ["Linear"]
    groups["pack8_channel"]["targets"] = [r"re:model\.pack8.*"]
    texts = [format_weight(layer.weight) for layer in read_checkpoint(model.write(tmp_path)).quantized]
    assert texts == ["u4g32:f32", "u8c:bf16"]
    groups["pack4_group"]["targets"] = ["model.pack4_group"]
    groups["pack8_channel"]["targets"] = ["re:.*"]
    assert [format_weight(layer.weight) for layer in read_checkpoint(model.write(tmp_path)).quantized] == texts


def test_one_class_for_all(model, tmp_path):
    only(model, "pack4_group")["targets"] = ["Linear"]
    assert format_weight(read_checkpoint(model.write(tmp_path)).layer("model.pack4_group").weight) == "u4g32:f32"


def test_two_classes_are_not_guessed_between(model, tmp_path):
    groups = two_schemes(model)
    groups["pack4_group"]["targets"], groups["pack8_channel"]["targets"] = ["Linear"], ["Embedding"]
    with pytest.raises(CheckpointError, match=r"several groups that 'model.pack4_group' may fall under.*Embedding"):
        read_checkpoint(model.write(tmp_path))


def test_a_module_without_a_group_and_an_ignored_one(model, tmp_path):
    groups = two_schemes(model)
    groups["pack4_group"]["targets"] = ["model.other"]
    with pytest.raises(CheckpointError, match=r"has no group for 'model.pack4_group'"):
        read_checkpoint(model.write(tmp_path))
    groups["pack4_group"]["targets"] = ["re:.*"]
    for ignored in ("model.pack4_group", "re:.*pack4"):
        model.config["quantization_config"]["ignore"] = [ignored]
        with pytest.raises(CheckpointError, match=r"says to ignore 'model.pack4_group', but it is quantized"):
            read_checkpoint(model.write(tmp_path))


def test_targets_that_are_not_quantized_are_noted(model, tmp_path):
    only(model, "pack4_group")["targets"] = ["re:.*"]
    model.put("model.gate.weight", np.zeros((4, 8), np.float32))
    assert "1 modules are targets but stored unquantized, such as 'model.gate'" in (
        read_checkpoint(model.write(tmp_path)).notes
    )
    model.config["quantization_config"]["ignore"] = ["model.gate"]
    assert read_checkpoint(model.write(tmp_path)).notes == ()
    model.put("model.gate.weight", np.zeros((4, 8), np.int8))
    with pytest.raises(CheckpointError, match=r"model\.gate\.weight_scale' is missing"):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    "pattern", ["re:(a+)+$", "re:(a|a)*b", "re:[", "re:" + "a" * 2000, "re:" + ".*" * 9, "re:(?P<"]
)
def test_patterns_that_are_none_or_might_not_end(model, tmp_path, pattern):
    only(model, "pack4_group")["targets"] = [pattern]
    with pytest.raises(CheckpointError, match=r"pattern is too long|not a regular expression"):
        read_checkpoint(model.write(tmp_path))


def test_the_usual_patterns_are_allowed():
    for pattern in (r"re:.*self_attn\.(q|k|v|o)_proj$", r"re:model\.layers\.(1[0-9]|[2-9])\..*", "re:.*[+*]?lm_head"):
        assert compiled(pattern, "it").match("model.layers.12.self_attn.q_proj.lm_head") or "[+*]" not in pattern


@pytest.mark.parametrize(
    ("module", "changes", "message"),
    [
        ("pack4_group", {"num_bits": 9}, "num_bits is not described"),
        ("pack4_group", {"num_bits": 8}, r"wrong shape; got \[12, 8\]; wanted \[12, 16\]"),
        ("pack4_group", {"group_size": 16}, r"wrong shape; got \[12, 2\]; wanted \[12, 4\]"),
        ("pack4_group", {"group_size": 48}, "K is not a multiple of the group size; got 64 and 48"),
        ("pack4_group", {"group_size": 0}, "group_size must be"),
        ("pack4_group", {"group_size": None}, "strategy group needs a group_size"),
        ("pack4_group", {"strategy": "channel"}, "a group_size goes with strategy group"),
        ("pack4_group", {"strategy": "attn_head", "group_size": None}, "strategy is not described"),
        ("pack4_group", {"type": "float"}, "packed floats are not described"),
        ("pack4_group", {"type": "uint"}, "type is not described"),
        ("pack4_group", {"dynamic": True}, "dynamic weights are not described"),
        ("pack4_group", {"symmetric": False}, "weight_zero_point' is missing"),
        ("pack4_group", {"actorder": "sometimes"}, "actorder is not described"),
        ("pack4_group", {"codebook": True}, "unknown keys; got 'codebook'"),
        ("pack4_group_asymmetric", {"symmetric": True}, "wrong dtype; got int32"),
        ("int4_group_in_bytes", {"symmetric": True}, "says symmetric, but tensor .* holds zero points"),
        ("int8_channel", {"type": "float"}, "wrong dtype; got int8"),
        ("float_channel", {"type": "int"}, "wrong dtype; got float8_e4m3fn"),
        ("float_channel", {"num_bits": 4}, "floats of this kind are not described"),
        ("float_block", {"block_structure": [32, 16]}, r"got \[3, 3\]; wanted \[2, 3\]"),
        ("float_block", {"block_structure": [0, 16]}, "block_structure must be two sizes"),
        ("nvfp4", {"group_size": 32}, "weights of this kind are not described in this format; got 4 bits, float"),
        ("mxfp4", {"scale_dtype": "torch.float16"}, "scale_dtype is not described"),
        ("mxfp4", {"symmetric": False}, "weight_zero_point' is missing"),
    ],
)
def test_weights_that_are_refused(model, tmp_path, module, changes, message):
    only(model, module)["weights"].update(changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("module", "changes", "message"),
    [
        ("int8_channel", {"strategy": "channel", "dynamic": False}, "static activations are described per tensor only"),
        ("int8_channel", {"strategy": "tensor", "dynamic": False}, "input_scale' is missing"),
        ("int8_channel", {"dynamic": "local"}, "this strategy of activations is not described"),
        ("nvfp4", {"dynamic": True}, "this strategy of activations is not described"),
        ("float_channel", {"symmetric": False}, "floats with a zero point are not described"),
        ("float_channel", {"num_bits": 5}, "floats of this width"),
    ],
)
def test_activations_that_are_refused(model, tmp_path, module, changes, message):
    only(model, module)["input_activations"].update(changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization_status": "frozen"}, "quantization_status is not described; got 'frozen'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config has a value"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config has a value"),
        ({"config_groups": {}}, "has no config_groups"),
        ({"config_groups": {"W8A8": ["Linear"]}}, "is not spelled out"),
        ({"ignore": "lm_head"}, "ignore must be a list of strings"),
        ({"sparse": 1}, "unknown keys; got 'sparse'"),
    ],
)
def test_configurations_that_are_refused(model, tmp_path, changes, message):
    model.config["quantization_config"].update(changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize("form", ["marlin-24", "dense", None, "sparse-bitmask"])
def test_formats_that_are_refused(model, tmp_path, form):
    only(model, "pack4_group")["format"] = form
    with pytest.raises(CheckpointError, match="format is not described"):
        read_checkpoint(model.write(tmp_path))


def test_three_bits_with_unused_bits_in_words(model, tmp_path):
    """Ten 3-bit fields to a word, as old versions packed: another shape, or, for few columns, two readings."""
    only(model, "pack3_group")
    name = "model.pack3_group"
    model.put(f"{name}.weight_packed", np.zeros((8, 7), np.int32))
    with pytest.raises(CheckpointError, match=r"got \[8, 7\]; wanted \[8, 6\].*unused for 3, 5, 6 or 7 bits"):
        read_checkpoint(model.write(tmp_path))
    model.put(f"{name}.weight_packed", np.zeros((8, 2), np.int32))
    model.put(f"{name}.weight_shape", np.array([8, 16]))
    model.put(f"{name}.weight_scale", np.ones((8, 1), np.float32))
    model.put(f"{name}.weight_zero_point", np.zeros((1, 1), np.int32))
    with pytest.raises(CheckpointError, match="may be packed in two ways"):
        read_checkpoint(model.write(tmp_path))


def test_a_global_scale_of_zero_is_no_divisor(model, decoded, tmp_path):
    model.put("model.nvfp4.weight_global_scale", np.zeros(1, np.float32))
    with pytest.raises(CheckpointError, match="stored as a divisor is zero"):
        decoded(read_checkpoint(model.write(tmp_path)).layer("model.nvfp4"))


def test_quantized_outputs_and_caches_are_noted(model, tmp_path):
    group = only(model, "float_tensor")
    group["output_activations"] = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    model.put("model.float_tensor.output_scale", np.ones(1, np.float32))
    model.config["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    notes = read_checkpoint(model.write(tmp_path)).notes
    assert "quantized outputs, with scales at 1 layers" in notes[0] and "key-value cache" in notes[1]
