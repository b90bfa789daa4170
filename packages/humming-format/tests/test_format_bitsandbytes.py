"""bitsandbytes checkpoints as the package quantized them: exact values with and without nested scales, refusals."""

import json

import numpy as np
import pytest
from humming_format import CheckpointError, format_weight
from humming_format.checkpoint import read_checkpoint

FORMATS = {
    "nf4": ("nf4g64:f32", "bitsandbytes:nf4"),
    "nf4_nested": ("nf4g64:f32", "bitsandbytes:nf4:nested"),
    "fp4": ("bnbfp4g128:f32", "bitsandbytes:fp4"),
    "fp4_nested": ("bnbfp4g64:f32", "bitsandbytes:fp4:nested"),
}
STATE = "model.nf4.weight.quant_state.bitsandbytes__nf4"
NESTED_STATE = "model.nf4_nested.weight.quant_state.bitsandbytes__nf4"


@pytest.fixture
def model(golden):
    return golden("bitsandbytes")


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_is_decoded_as_bitsandbytes_does(model, decoded, tmp_path, name):
    checkpoint = read_checkpoint(model.write(tmp_path))
    assert len(checkpoint.quantized) == len(FORMATS)
    layer = checkpoint.layer(f"model.{name}")
    assert (format_weight(layer.weight), layer.method) == FORMATS[name]
    rows = range(layer.n) if layer.n < 20 else [0, 1, 77, 127, 128, 159]
    assert np.array_equal(decoded(layer, rows), model.expected[layer.name][list(rows)])


def change_state(model, name, **changes):
    state = json.loads(model.tensors[name][2]) | changes
    state = {key: value for key, value in state.items() if value is not KeyError}
    model.put(name, np.frombuffer(json.dumps(state).encode(), np.uint8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_type": "af4"}, "quant_type is not described; got 'af4'; wanted nf4 or fp4"),
        ({"quant_type": "fp4"}, "holds another table of values than fp4"),
        ({"blocksize": 48}, "blocksize is not described"),
        ({"blocksize": 32}, r"wrong shape; got \[16\]; wanted \[32\]"),
        ({"shape": [4, 256]}, "N is 4"),
        ({"shape": [32, 32]}, "blocks run over the ends of rows"),
        ({"shape": [8, 128, 1]}, "shape is not that of a matrix"),
        ({"shape": [8, 64]}, "wrong shape"),
        ({"shape": KeyError}, "lacks shape"),
        ({"nested_offset": 0.5}, "lacks nested_blocksize, nested_dtype"),
        ({"surprise": 0.5}, "unknown keys; got 'surprise'"),
    ],
)
def test_states_that_are_refused(model, tmp_path, changes, message):
    change_state(model, STATE, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nested_blocksize": 0}, "nested_blocksize is not described"),
        ({"nested_blocksize": 128}, r"wrong shape; got \[2\]; wanted \[3\]"),
        ({"nested_offset": "0"}, "nested_offset is not a number"),
        ({"nested_offset": 1e300}, "nested_offset is no f32"),
    ],
)
def test_nested_states_that_are_refused(model, tmp_path, changes, message):
    change_state(model, NESTED_STATE, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


def test_a_state_that_is_no_json(model, tmp_path):
    model.put(STATE, np.zeros(40, np.uint8))
    with pytest.raises(CheckpointError, match="is not valid JSON"):
        read_checkpoint(model.write(tmp_path))
    model.put(STATE, np.zeros(1 << 17, np.uint8))
    with pytest.raises(CheckpointError, match="too large for a state"):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"load_in_8bit": True}, "load_in_8bit has a value"),
        ({"load_in_4bit": False}, "load_in_4bit has a value"),
        ({"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage has a value"),
        ({"surprise": 1}, "unknown keys; got 'surprise'"),
    ],
)
def test_configurations_that_are_refused(model, tmp_path, changes, message):
    model.config["quantization_config"].update(changes)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("weight", np.zeros((511, 1), np.uint8), "two to a byte"),
        ("weight", np.zeros((8, 128), np.int8), "wrong dtype; got int8"),
        ("weight.absmax", np.zeros(16, np.uint8), "wrong dtype; got uint8"),
        ("weight.quant_map", np.linspace(-1, 1, 16, dtype=np.float32), "holds another table of values than nf4"),
        ("weight.nested_absmax", np.zeros(1, np.float32), "nested_absmax' is not expected here"),
        ("SCB", np.zeros(8, np.float32), "SCB' is not expected here"),
        ("bias", np.zeros(9, np.float32), "N is 8"),
    ],
)
def test_tensors_that_are_refused(model, tmp_path, name, array, message):
    model.put(f"model.nf4.{name}", array)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(model.write(tmp_path))
