"""GPTQ folders, packed independently: exact values, both ways of storing zero points, and refusals by name."""

import json

import attrs
import numpy as np
import pytest
from humming_format import CheckpointError, format_weight
from humming_format.checkpoint import GptqLayout, decode_rows, read_checkpoint
from humming_format.checkpoint.gptq_config import GUARDED_KEYS, HARMLESS_KEYS, MEANING_KEYS

NAME = "model.layers.0.mlp.down_proj"


def values(layer, rows=None):
    """Our exact decode, as float64: lossless for these small numbers."""
    return np.array([[float(value) for value in row] for row in decode_rows(layer, rows or range(layer.n))])


def test_the_two_versions_are_equal_and_right(gptq_model, write_gptq):
    """Field report 1: zp - 1 stored (v1), zp stored (v2), with zero points 0 and 15, marked or asked for."""
    model = gptq_model(n=64, k=256, group_size=128)
    assert {0, 15} <= set(model.zeros[0, :2].tolist())
    readings = {
        "v1": read_checkpoint(write_gptq(model, 1, checkpoint_format="gptq")),
        "v2": read_checkpoint(write_gptq(model, 2, checkpoint_format="gptq_v2")),
        "v1, nothing stated": read_checkpoint(write_gptq(model, 1)),
        "v2, asked": read_checkpoint(write_gptq(model, 2), checkpoint_format="gptq_v2"),
        "v2, wrongly stated": read_checkpoint(
            write_gptq(model, 2, checkpoint_format="gptq"), checkpoint_format="gptq_v2"
        ),
        "v1, spelled format": read_checkpoint(write_gptq(model, 1, format="gptq")),
    }
    for what, checkpoint in readings.items():
        assert np.array_equal(values(checkpoint.layer(NAME)), model.weights), what
        assert checkpoint.method == ("gptq_v2" if what.startswith("v2") else "gptq")
    assert "does not state checkpoint_format" in readings["v1, nothing stated"].notes[0]
    assert "as asked" in readings["v2, wrongly stated"].notes[0]
    assert readings["v2"].notes == readings["v2, asked"].notes == ()
    assert all("all ones" in note for note in readings["v1"].notes)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_note_where_exporters_differ(gptq_model, write_gptq, bits):
    """A v1 zero point 0 is stored as all ones, which whole-word exporters write otherwise; without one, no doubt."""
    model = gptq_model(bits=bits)
    doubt = read_checkpoint(write_gptq(model, 1, checkpoint_format="gptq"))
    assert any("all ones" in note for note in doubt.notes) == (bits != 3)
    model.zeros = np.maximum(model.zeros, 1)
    assert read_checkpoint(write_gptq(model, 1, checkpoint_format="gptq")).notes == ()
    assert read_checkpoint(write_gptq(model, 2, checkpoint_format="gptq_v2")).notes == ()


def test_the_wrong_version_would_show(gptq_model, write_gptq):
    """The test above can fail: read by the other rule, every weight is off by one scale step, or by 15 at the wrap."""
    model = gptq_model(n=64, k=256, group_size=128)
    wrong = values(read_checkpoint(write_gptq(model, 2, checkpoint_format="gptq")).layer(NAME))
    assert not np.any(wrong == model.weights)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_stored_zero_points_wrap(bits):
    """The rule for v1, stored all ones: zero point 0, not 2**bits."""
    first, second = GptqLayout(bits=bits, zero_offset=1), GptqLayout(bits=bits, zero_offset=0)
    top = (1 << bits) - 1
    assert [first.zero_of(stored) for stored in (top, 0, top - 1)] == [0, 1, top]
    assert [second.zero_of(stored) for stored in (top, 0)] == [top, 0]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group_size", [-1, 32, 128])
def test_every_width_group_and_version(gptq_model, write_gptq, bits, version, group_size):
    model = gptq_model(n=32, k=160, bits=bits, group_size=group_size, seed=bits)  # 128 leaves a partial last group
    checkpoint = read_checkpoint(write_gptq(model, version, checkpoint_format=["", "gptq", "gptq_v2"][version]))
    layer = checkpoint.layer(NAME)
    assert (layer.n, layer.k, layer.column_order) == (32, 160, False)
    assert format_weight(layer.weight) == f"u{bits}{'c' if group_size == -1 else f'g{group_size}'}z"
    assert layer.layout == GptqLayout(bits=bits, zero_offset=2 - version)
    assert np.array_equal(values(layer), model.weights)


@pytest.mark.parametrize("bits", [4, 8])
def test_group_size_minus_one_is_one_group_of_k(gptq_model, write_gptq, bits):
    """Field report 6: scales [1, N], no division by -1."""
    model = gptq_model(n=64, k=2048, bits=bits, group_size=-1)
    layer = read_checkpoint(write_gptq(model)).layer(NAME)
    assert layer.weight.scale.group_k is None and layer.weight.scale.groups_k(layer.k) == 1
    assert layer.tensors["scale"].shape == (1, 64)
    assert np.array_equal(values(layer, [0, 1, 63]), model.weights[[0, 1, 63]])


@pytest.mark.parametrize("group_size", [0, -2, -128, 128.0, "128", True, None])
def test_other_group_sizes_are_refused(gptq_model, write_gptq, group_size):
    with pytest.raises(CheckpointError, match="group_size"):
        read_checkpoint(write_gptq(gptq_model(), group_size=group_size))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("stated", ["gptq", "gptq_v2"])
def test_symmetric_layers_ignore_how_zero_points_are_stored(gptq_model, write_gptq, version, stated):
    model = gptq_model(symmetric=True)
    checkpoint = read_checkpoint(write_gptq(model, version, checkpoint_format=stated))
    layer = checkpoint.layer(NAME)
    assert format_weight(layer.weight) == "u4g128"
    assert np.array_equal(values(layer), model.weights)
    assert bool(checkpoint.notes) == (stated != ["", "gptq", "gptq_v2"][version])


def test_symmetric_with_other_zero_points_is_a_contradiction(gptq_model, write_gptq):
    model = gptq_model(symmetric=True)
    model.zeros[-1, -1] = 9
    with pytest.raises(CheckpointError, match=r"says sym, but tensor .*qzeros.* holds other zero points"):
        read_checkpoint(write_gptq(model))


def test_absent_sym_means_the_stored_zero_points(gptq_model, write_gptq):
    model = gptq_model()
    folder = write_gptq(model)
    config = model.config()
    del config["sym"], config["desc_act"]
    (folder / "quantize_config.json").write_text(json.dumps(config))
    assert np.array_equal(values(read_checkpoint(folder).layer(NAME)), model.weights)


def test_act_order(gptq_model, write_gptq):
    model = gptq_model(k=288, group_size=64, act_order=True)
    layer = read_checkpoint(write_gptq(model)).layer(NAME)
    assert layer.column_order
    assert np.array_equal(values(layer), model.weights)


def test_act_order_shows_in_the_data_whatever_the_configuration_says(gptq_model, write_gptq):
    model = gptq_model(k=288, group_size=64, act_order=True)
    layer = read_checkpoint(write_gptq(model, desc_act=False)).layer(NAME)
    assert layer.column_order and np.array_equal(values(layer), model.weights)
    plain = gptq_model(k=288, group_size=64)
    assert not read_checkpoint(write_gptq(plain, desc_act=True)).layer(NAME).column_order


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.fill(0), "does not give each group 64 columns"),
        (lambda g: g.__setitem__(0, -1), "points outside the groups"),
        (lambda g: g.__setitem__(0, 4), "points outside the groups"),
    ],
)
def test_group_indices_that_cannot_be(gptq_model, write_gptq, change, message):
    model = gptq_model(k=256, group_size=64)
    change(model.g_idx)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(write_gptq(model))


def test_what_an_entry_says(gptq_model, write_gptq):
    folder = write_gptq(gptq_model())
    checkpoint = read_checkpoint(folder)
    assert [entry.name for entry in checkpoint.layers] == ["model.embed_tokens", NAME]
    assert checkpoint.quantized == (checkpoint.layer(NAME),)
    assert [place.tensor for place in checkpoint.others] == ["model.norm.weight"]
    layer = checkpoint.layer(NAME)
    assert set(layer.tensors) == {"codes", "scale", "zero_point", "group_index", "bias"}
    data = (folder / "model.safetensors").read_bytes()
    from safetensors.numpy import load_file

    stored = load_file(folder / "model.safetensors")
    for place in layer.tensors.values():
        again = np.frombuffer(data[place.offset : place.offset + place.nbytes], place.dtype).reshape(place.shape)
        assert np.array_equal(again, stored[place.tensor])
        assert place.read() == again.tobytes()
    size = 32 * 64 * 4 + 2 * 8 * 4 + 2 * 64 * 2 + 256 * 4
    assert layer.stored_bytes == size + 64 * 2
    assert layer.bits_per_weight == 8 * size / (64 * 256)
    with pytest.raises(CheckpointError, match="no layer 'lm_head'"):
        checkpoint.layer("lm_head")


@pytest.mark.parametrize("missing", ["qweight", "qzeros", "scales"])
def test_missing_tensors_are_named(gptq_model, write_gptq, missing):
    model = gptq_model()
    tensors = {name: tensor for name, tensor in model.tensors(1).items() if not name.endswith(missing)}
    tensors |= model.tensors(1, "model.layers.1.mlp.down_proj")
    with pytest.raises(CheckpointError, match=rf"{NAME}\.{missing}.* is missing"):
        read_checkpoint(write_gptq(model, tensors=tensors))


def test_a_group_index_is_needed_with_desc_act_only(gptq_model, write_gptq):
    model = gptq_model()
    tensors = {name: tensor for name, tensor in model.tensors(1).items() if not name.endswith("g_idx")}
    with pytest.raises(CheckpointError, match=r"g_idx.* is missing"):
        read_checkpoint(write_gptq(model, tensors=tensors, desc_act=True))
    assert np.array_equal(values(read_checkpoint(write_gptq(model, tensors=tensors)).layer(NAME)), model.weights)


def test_no_quantized_tensor_at_all(gptq_model, write_gptq):
    with pytest.raises(CheckpointError, match=r"no tensor named \*\.qweight"):
        read_checkpoint(write_gptq(gptq_model(), tensors={"lm_head.weight": np.zeros((4, 4), np.float16)}))


@pytest.mark.parametrize(
    ("ending", "change", "message"),
    [
        # Field report 2: one int4 per int8 byte is not a tensor of packed words.
        ("qweight", lambda t: np.zeros((256, 64), np.int8), "wrong dtype; got int8 .*one value per byte"),
        ("qweight", lambda t: t.astype(np.int64), "wrong dtype; got int64"),
        ("qweight", lambda t: t[None], "wrong shape"),
        ("qweight", lambda t: t[:16], "K 128 in groups of 128 is 1 groups"),
        ("qweight", lambda t: t[:0], "whole numbers N and K"),
        ("qzeros", lambda t: t.astype(np.int16), "wrong dtype; got int16"),
        ("qzeros", lambda t: t[:1], r"wrong shape; got \[1, 8\]; wanted \[2, 8\]"),
        ("qzeros", lambda t: np.concatenate([t, t], 1), r"wanted \[2, 8\]"),
        ("scales", lambda t: t.T.copy(), r"wrong shape; got \[64, 2\]; wanted \[2, 64\]"),
        ("scales", lambda t: t.astype(np.float64), "wrong dtype; got float64"),
        ("scales", lambda t: np.concatenate([t, t]), "is 2 groups"),
        ("g_idx", lambda t: t.astype(np.int64), "wrong dtype; got int64"),
        ("g_idx", lambda t: t[:-1], "K is 256"),
        ("bias", lambda t: t[:-1], "N is 64"),
        ("bias", lambda t: t.astype(np.int32), "wrong dtype; got int32"),
    ],
)
def test_tensors_of_another_layout_are_refused(gptq_model, write_gptq, ending, change, message):
    model = gptq_model()
    tensors = model.tensors(1)
    tensors[f"{NAME}.{ending}"] = np.ascontiguousarray(change(tensors[f"{NAME}.{ending}"]))
    with pytest.raises(CheckpointError, match=message) as caught:
        read_checkpoint(write_gptq(model, tensors=tensors))
    assert NAME in str(caught.value)


def test_a_group_size_smaller_than_the_scales_imply(gptq_model, write_gptq):
    """Scales made for g=128 (2 groups), g=32 declared (8 groups): both counts are named."""
    with pytest.raises(CheckpointError, match=r"got \[2, 64\]; wanted \[8, 64\]"):
        read_checkpoint(write_gptq(gptq_model(), group_size=32))


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_other_scale_numbers(gptq_model, write_gptq, kind):
    model = gptq_model()
    model.scales = model.scales.astype(kind)
    layer = read_checkpoint(write_gptq(model)).layer(NAME)
    assert format_weight(layer.weight) == ("u4g128z:f32" if kind == "float32" else "u4g128z")
    assert np.array_equal(values(layer), model.weights)


def test_unknown_configuration_keys_are_listed(gptq_model, write_gptq):
    with pytest.raises(CheckpointError, match=r"unknown keys.*'codebook', 'zeropoint_kind'"):
        read_checkpoint(write_gptq(gptq_model(), zeropoint_kind="float", codebook=[1, 2]))


def test_the_keys_of_the_exporters_are_known(gptq_model, write_gptq):
    changes = {key: None for key in HARMLESS_KEYS}
    changes |= {key: harmless[-1] for key, harmless in GUARDED_KEYS.items()}
    changes |= dict(lm_head=False, meta={"quantizer": ["gptqmodel:1.0"]}, pack_dtype="int32", method="gptq")
    changes |= dict(dynamic={"-:.*lm_head": {}}, act_bits=16, format="gptq", checkpoint_format="gptq")
    model = gptq_model()
    assert np.array_equal(values(read_checkpoint(write_gptq(model, **changes)).layer(NAME)), model.weights)
    assert not MEANING_KEYS & HARMLESS_KEYS and not set(GUARDED_KEYS) & (HARMLESS_KEYS | MEANING_KEYS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(bits=5), "bits not described"),
        (dict(bits="4"), "bits not described"),
        (dict(bits=True), "bits not described"),
        (dict(bits=[4]), "bits not described"),
        (dict(checkpoint_format="marlin"), "checkpoint_format is not described; got 'marlin'; wanted gptq or gptq_v2"),
        (dict(checkpoint_format=2), "checkpoint_format is not described"),
        (dict(checkpoint_format="gptq", format="gptq_v2"), "contradict"),
        (dict(is_marlin_format=True), "is_marlin_format"),
        (dict(pack_dtype="int16"), "pack_dtype"),
        (dict(rotation="hadamard"), "rotation"),
        (dict(act_bits=8), "act_bits 8"),
        (dict(dynamic={"+:.*down.*": {"bits": 8}}), "dynamic"),
        (dict(dynamic=[1]), "dynamic"),
        (dict(sym=1), "sym must be true or false"),
        (dict(desc_act="no"), "desc_act must be true or false"),
        (dict(quant_method="vptq"), r"'vptq'; wanted gptq, .*\(or a GGUF file\)"),
        (dict(quant_method=["gptq"]), "quant_method is not described"),
    ],
)
def test_configurations_that_are_refused(gptq_model, write_gptq, changes, message):
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(write_gptq(gptq_model(), **changes))


@pytest.mark.parametrize("key", ["bits", "group_size"])
def test_configurations_that_lack_something(gptq_model, write_gptq, key):
    model = gptq_model()
    folder = write_gptq(model)
    config = model.config()
    del config[key]
    (folder / "quantize_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"lacks {key}"):
        read_checkpoint(folder)


def test_configuration_in_config_json(gptq_model, write_safetensors, tmp_path):
    model = gptq_model()
    folder = write_safetensors(tmp_path / "hf", model.tensors(2), None)
    with pytest.raises(CheckpointError, match="no quantization configuration"):
        read_checkpoint(folder)
    config = {"hidden_size": 64, "quantization_config": model.config(checkpoint_format="gptq_v2")}
    (folder / "config.json").write_text(json.dumps(config))
    assert np.array_equal(values(read_checkpoint(folder).layer(NAME)), model.weights)
    # a file alone finds the configuration beside it
    assert read_checkpoint(folder / "model.safetensors").method == "gptq_v2"
    # both configurations, of which one is silent on checkpoint_format
    (folder / "quantize_config.json").write_text(json.dumps(model.config()))
    assert read_checkpoint(folder).method == "gptq_v2"
    (folder / "quantize_config.json").write_text(json.dumps(model.config(group_size=64)))
    with pytest.raises(CheckpointError, match="contradict each other on group_size"):
        read_checkpoint(folder)
    (folder / "quantize_config.json").unlink()
    del config["quantization_config"]["quant_method"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="does not name its quant_method"):
        read_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps({"quantization_config": [4]}))
    with pytest.raises(CheckpointError, match="not a JSON object"):
        read_checkpoint(folder)


def test_an_unknown_checkpoint_format_argument(gptq_model, write_gptq):
    with pytest.raises(CheckpointError, match="unknown checkpoint_format; got 'v2'"):
        read_checkpoint(write_gptq(gptq_model()), checkpoint_format="v2")


def test_decode_rows_refuses_what_it_cannot_know(gptq_model, write_gptq):
    checkpoint = read_checkpoint(write_gptq(gptq_model()))
    with pytest.raises(CheckpointError, match="no described quantization"):
        decode_rows(checkpoint.layer("model.embed_tokens"), [0])
    with pytest.raises(CheckpointError, match="no row 64"):
        decode_rows(checkpoint.layer(NAME), [64])


def test_a_file_that_shrinks_after_it_was_described(gptq_model, write_gptq):
    folder = write_gptq(gptq_model())
    layer = read_checkpoint(folder).layer(NAME)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        layer.tensors["codes"].read()
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        layer.tensors["codes"].read()
    assert attrs.evolve(layer, tensors={}).stored_bytes == 0


def test_a_tensor_that_has_no_place_in_a_layer_is_named(gptq_model, write_gptq):
    model = gptq_model()
    tensors = model.tensors(1) | {f"{NAME}.perm": np.zeros(256, np.int32)}
    with pytest.raises(CheckpointError, match=rf"{NAME}\.perm' is not expected here"):
        read_checkpoint(write_gptq(model, tensors=tensors))
