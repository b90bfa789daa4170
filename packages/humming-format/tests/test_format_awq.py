"""AWQ checkpoints as AutoAWQ packed them, and packed anew with numpy: exact values, and refusals by name."""

import numpy as np
import pytest
from humming_format import CheckpointError, format_weight
from humming_format.checkpoint import read_checkpoint

NAME = "model.layers.0.mlp.up_proj"


@pytest.fixture
def model(golden):
    return golden("awq_g32")


@pytest.mark.parametrize(("name", "text"), [("awq_g32", "u4g32z"), ("awq_channel", "u4cz")])
def test_autoawq_packed_and_decoded(golden, decoded, same_bits, tmp_path, name, text):
    model = golden(name)
    layer = read_checkpoint(model.write(tmp_path)).layer(NAME)
    assert (layer.method, format_weight(layer.weight)) == ("awq", text)
    assert (layer.n, layer.k) == model.expected[NAME].shape
    assert same_bits(decoded(layer), model.expected[NAME])


def pack_awq(values):
    """[rows, N] -> int32 [rows, N / 8]: nibble i of a word holds column 0 2 4 6 1 3 5 7 of its eight."""
    rows, n = values.shape
    words = np.zeros((rows, n // 8), np.uint32)
    for nibble, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
        words |= values.reshape(rows, n // 8, 8)[:, :, column].astype(np.uint32) << (4 * nibble)
    return words.view(np.int32)


@pytest.mark.parametrize("group", [16, 64, 192, -1])
@pytest.mark.parametrize(("dtype", "suffix"), [("float16", ""), ("float32", ":f32")])
def test_packed_by_numpy(model, decoded, tmp_path, group, dtype, suffix):
    """Every group size, N that is a multiple of 8 alone, both ends of the zero points side by side."""
    n, k = 40, 192
    size = k if group == -1 else group
    random = np.random.default_rng(group + 2)
    codes, zeros = random.integers(0, 16, (k, n)), random.integers(0, 16, (k // size, n))
    zeros[0, :4] = 0, 15, 15, 0
    scales = (random.random((k // size, n)) + 0.01).astype(np.float16).astype(dtype)
    model.put(f"{NAME}.qweight", pack_awq(codes))
    model.put(f"{NAME}.qzeros", pack_awq(zeros))
    model.put(f"{NAME}.scales", scales)
    model.put(f"{NAME}.bias", np.zeros(n, np.float16))
    model.config["quantization_config"]["group_size"] = group
    layer = read_checkpoint(model.write(tmp_path)).layer(NAME)
    sharing = "c" if group == -1 else f"g{group}"
    assert format_weight(layer.weight) == f"u4{sharing}z{suffix}"
    groups = np.arange(k) // size
    expected = (codes - zeros[groups]) * scales.astype(np.float64)[groups]
    assert np.array_equal(decoded(layer).astype(np.float64), expected.T)


def test_without_zero_points(model, decoded, tmp_path):
    model.config["quantization_config"]["zero_point"] = False
    with pytest.raises(
        CheckpointError, match=r"says that there are no zero points, but tensor .*qzeros.* holds others"
    ):
        read_checkpoint(model.write(tmp_path))
    model.put(f"{NAME}.qzeros", np.full((3, 8), 0x88888888, np.uint32).view(np.int32))
    layer = read_checkpoint(model.write(tmp_path)).layer(NAME)
    assert format_weight(layer.weight) == "u4g32"
    constant = decoded(layer)
    model.config["quantization_config"]["zero_point"] = True
    assert np.array_equal(decoded(read_checkpoint(model.write(tmp_path)).layer(NAME)), constant)


def test_autoawqs_own_spelling(model, decoded, tmp_path):
    quant = model.config["quantization_config"]
    (tmp_path / "quant_config.json").write_text(
        '{"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}'
    )
    assert format_weight(read_checkpoint(model.write(tmp_path)).layer(NAME).weight) == "u4g32z"
    quant["group_size"] = 64
    with pytest.raises(CheckpointError, match="contradict each other"):
        read_checkpoint(model.write(tmp_path))
    quant.update(group_size=32, w_bit=3)
    with pytest.raises(CheckpointError, match="w_bit and bits contradict"):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 8}, "bits are not described; got 8; wanted 4"),
        ({"bits": True}, "bits are not described"),
        ({"bits": None}, "bits are not described"),
        ({"version": "gemv"}, "version is not described; got 'gemv'; wanted gemm"),
        ({"version": "marlin"}, "version is not described"),
        ({"version": 1}, "version is not described"),
        ({"version": None}, "does not state its version"),
        ({"group_size": 0}, "group_size is not described"),
        ({"group_size": -2}, "group_size is not described"),
        ({"group_size": "32"}, "group_size is not described"),
        ({"group_size": 36}, "K is not a multiple of the group size; got 96 and 36"),
        ({"group_size": 64}, "K is not a multiple of the group size"),
        ({"zero_point": "yes"}, "zero_point must be true or false"),
        ({"desc_act": True}, "desc_act has a value that is not described"),
        ({"codebook": 1}, "unknown keys; got 'codebook'"),
    ],
)
def test_configurations_that_are_refused(model, tmp_path, changes, message):
    model.config["quantization_config"].update(changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


def test_a_group_size_smaller_than_the_scales_imply(model, tmp_path):
    model.config["quantization_config"]["group_size"] = 16
    with pytest.raises(CheckpointError, match=r"got \[3, 64\]; wanted \[6, 64\]"):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize("missing", ["qweight", "qzeros", "scales"])
def test_missing_tensors_are_named(model, tmp_path, missing):
    del model.tensors[f"{NAME}.{missing}"]
    with pytest.raises(CheckpointError, match=rf"{NAME}\.{missing}' is missing"):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("ending", "array", "message"),
    [
        ("qweight", np.zeros((96, 64), np.int8), "wrong dtype; got int8 .*one value per byte"),
        ("qweight", np.zeros((96, 4), np.int32), r"wrong shape; got \[3, 64\]; wanted \[3, 32\]"),
        ("qweight", np.zeros(96, np.int32), r"wanted \[K, N / 8\]"),
        ("qzeros", np.zeros((1, 8), np.int32), "wrong shape"),
        ("qzeros", np.zeros((3, 8), np.int64), "wrong dtype"),
        ("scales", np.zeros((3, 64), np.int32), "wrong dtype"),
        ("bias", np.zeros(63, np.float16), "N is 64"),
        ("g_idx", np.zeros(96, np.int32), "g_idx' is not expected here"),
    ],
)
def test_tensors_of_another_layout_are_refused(model, tmp_path, ending, array, message):
    model.put(f"{NAME}.{ending}", array)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_checkpoint(model.write(tmp_path))
    assert NAME in str(caught.value)


def test_nothing_quantized_at_all(model, tmp_path):
    model.tensors = {"a.weight": ("float16", (1, 2), bytes(4))}
    with pytest.raises(CheckpointError, match=r"says AWQ, but there is no tensor named \*\.qweight"):
        read_checkpoint(model.write(tmp_path))


def test_checkpoint_format_is_not_for_awq(model, tmp_path):
    with pytest.raises(CheckpointError, match="checkpoint_format is for GPTQ checkpoints"):
        read_checkpoint(model.write(tmp_path), checkpoint_format="gptq")
