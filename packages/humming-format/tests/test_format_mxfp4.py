"""MXFP4 checkpoints of gpt-oss, decoded by transformers: exact values of every expert, interleaved rows, refusals."""

import numpy as np
import pytest
from humming_format import CheckpointError, format_weight
from humming_format.checkpoint import read_checkpoint
from humming_format.inspect_report import report_document, report_text

STEM = "model.layers.0.mlp.experts"


@pytest.fixture
def model(golden):
    return golden("mxfp4")


def test_every_expert_is_decoded_as_transformers_does(model, decoded, same_bits, tmp_path):
    checkpoint = read_checkpoint(model.write(tmp_path))
    assert [(layer.name, layer.experts, layer.n, layer.k) for layer in checkpoint.quantized] == [
        (f"{STEM}.down_proj", 2, 10, 64),
        (f"{STEM}.gate_up_proj", 2, 12, 96),
    ]
    for layer in checkpoint.quantized:
        assert format_weight(layer.weight) == "e2m1g32:e8m0"
        for index in range(2):
            one = layer.expert(index)
            assert same_bits(decoded(one), model.expected[one.name])
    assert [entry.name for entry in checkpoint.layers if entry.weight is None] == ["model.layers.0.self_attn.q_proj"]


def test_gate_and_up_take_turns(model, tmp_path):
    checkpoint = read_checkpoint(model.write(tmp_path))
    gate_up, down = checkpoint.layer(f"{STEM}.gate_up_proj"), checkpoint.layer(f"{STEM}.down_proj")
    assert (gate_up.parts, gate_up.interleaved) == (("gate", "up"), True)
    assert (down.parts, down.interleaved) == ((), False)
    bias = gate_up.expert(1).tensors["bias"]
    assert bias.shape == (12,) and bias.read() == model.array(f"{STEM}.gate_up_proj_bias")[1].tobytes()


def test_inspect_counts_the_weights_of_all_experts(model, tmp_path):
    checkpoint = read_checkpoint(model.write(tmp_path))
    document = report_document(checkpoint)
    assert document["totals"]["quantized_weights"] == 2 * (12 * 96 + 10 * 64)
    assert document["totals"]["quantized_bits_per_weight"] == 4.25
    assert document["layers"][0]["experts"] == 2
    assert "2 x 12 x 96" in report_text(checkpoint)


def test_every_scale(model, decoded, tmp_path):
    """All 256 exponents; 255 is NaN even over zeros, as OCP says."""
    model.put(f"{STEM}.down_proj_scales", np.arange(512, dtype=np.uint16).astype(np.uint8).reshape(2, 128, 2))
    blocks = np.full((2, 128, 2, 16), 0x20, np.uint8)
    model.put(f"{STEM}.down_proj_blocks", blocks)
    model.put(f"{STEM}.down_proj_bias", np.zeros((2, 128), np.float32))
    ours = decoded(read_checkpoint(model.write(tmp_path)).layer(f"{STEM}.down_proj").expert(0))
    exponents = np.arange(256).reshape(128, 2).repeat(32, 1)
    expected = np.where(np.arange(64) % 2, np.exp2(exponents - 127.0), 0.0)
    expected[exponents == 255] = np.nan
    assert np.array_equal(ours, expected.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("gate_up_proj_blocks", np.zeros((2, 12, 3, 32), np.uint8), "a block is 16 bytes"),
        ("gate_up_proj_blocks", np.zeros((2, 12, 48), np.uint8), r"wanted \[experts, N, K / 32, 16\]"),
        ("gate_up_proj_blocks", np.zeros((2, 12, 3, 16), np.int8), "wrong dtype; got int8"),
        ("gate_up_proj_blocks", np.zeros((3, 12, 3, 16), np.uint8), "a first side of 3 experts"),
        ("gate_up_proj_scales", np.zeros((2, 12, 4), np.uint8), "one scale per block"),
        ("gate_up_proj_scales", np.zeros((2, 12, 3), np.float32), "wrong dtype"),
        ("gate_up_proj_bias", np.zeros((2, 11), np.float32), "N is 12"),
        ("gate_up_proj_zeros", np.zeros((2, 12), np.uint8), "gate_up_proj_zeros' is not expected here"),
        ("router_blocks", np.zeros((2, 12, 3, 16), np.uint8), "router_blocks' is of no known stack"),
    ],
)
def test_tensors_that_are_refused(model, tmp_path, name, array, message):
    model.put(f"{STEM}.{name}", array)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize("missing", ["gate_up_proj_blocks", "gate_up_proj_scales"])
def test_missing_tensors_are_named(model, tmp_path, missing):
    del model.tensors[f"{STEM}.{missing}"]
    with pytest.raises(CheckpointError, match=rf"{missing}' is missing"):
        read_checkpoint(model.write(tmp_path))


def test_no_blocks_at_all(model, tmp_path):
    model.tensors = {}
    model.put("a.weight", np.zeros((2, 2), np.float32))
    with pytest.raises(CheckpointError, match=r"there is no tensor named \*_blocks"):
        read_checkpoint(model.write(tmp_path))
