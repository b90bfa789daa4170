"""Conversion of GPTQ and GGUF layers is exact, against packers and decoders that are not ours.

Run by pytest.
Assumes the makers of conftest.py for GPTQ and the gguf package for GGUF.
"""

import gguf
import numpy as np
import pytest
import torch
from humming_format.checkpoint import decode_rows, read_checkpoint
from humming_format.errors import CheckpointError
from humming_torch.convert import read_bias, read_layer, read_layers
from humming_torch.errors import ConversionError


def convert(folder, name, **options):
    checkpoint = read_checkpoint(folder, **options)
    return read_layer(checkpoint.layer(name), bias=read_bias(checkpoint, checkpoint.layer(name)))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group_size", [128, 32, -1])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("checkpoint_format", ["gptq", "gptq_v2"])
def test_gptq_is_exact(tmp_path, gptq_layer, layer_name, same_bits, bits, group_size, symmetric, checkpoint_format):
    layer = gptq_layer(n=96, k=256, bits=bits, group_size=group_size, symmetric=symmetric, bias=True, seed=bits)
    weight = convert(layer.write(tmp_path, checkpoint_format), layer_name)
    assert same_bits(weight.dequantize(), layer.weight)
    assert torch.equal(weight.bias, torch.from_numpy(layer.bias))
    assert weight.column_order is None


@pytest.mark.parametrize(("bits", "group_size"), [(4, 128), (8, 64), (4, -1)])
def test_versions_1_and_2_of_the_same_weights_are_equal(tmp_path, gptq_layer, layer_name, same_bits, bits, group_size):
    """Zero points 0 and 2**bits - 1 are in the layer: stored minus one, 0 becomes the largest field and comes back."""
    layer = gptq_layer(bits=bits, group_size=group_size)
    first = convert(layer.write(tmp_path / "one", "gptq"), layer_name)
    second = convert(layer.write(tmp_path / "two", "gptq_v2"), layer_name)
    assert {0, (1 << bits) - 1} <= set(first.zero_point.flatten().tolist())
    assert torch.equal(first.zero_point, second.zero_point)
    assert same_bits(first.dequantize(), second.dequantize())
    assert same_bits(first.dequantize(), layer.weight)


def test_the_version_can_be_stated_where_the_config_does_not(tmp_path, gptq_layer, layer_name, same_bits):
    layer = gptq_layer()
    layer.write(tmp_path, "gptq_v2", checkpoint_format=None)
    assert same_bits(convert(tmp_path, layer_name, checkpoint_format="gptq_v2").dequantize(), layer.weight)
    assert not same_bits(convert(tmp_path, layer_name).dequantize(), layer.weight)
    assert any("checkpoint_format" in note for note in read_checkpoint(tmp_path).notes)


@pytest.mark.parametrize(("k", "group_size"), [(256, 64), (224, 64), (256, -1)])
def test_act_order_sorts_columns_and_dequantizes_in_their_own_order(
    tmp_path, gptq_layer, layer_name, same_bits, k, group_size
):
    layer = gptq_layer(k=k, group_size=group_size, act_order=True)
    weight = convert(layer.write(tmp_path), layer_name)
    assert same_bits(weight.dequantize(), layer.weight)
    if group_size != -1:
        groups = torch.from_numpy(layer.group_index)[weight.column_order]
        assert torch.equal(groups, torch.arange(k) // group_size)


def test_group_size_minus_one_is_one_group(tmp_path, gptq_layer, layer_name):
    for bits in (4, 8):
        layer = gptq_layer(n=64, k=2048, bits=bits, group_size=-1)
        weight = convert(layer.write(tmp_path / str(bits)), layer_name)
        assert weight.scale.shape == weight.zero_point.shape == (64, 1)


def test_unequal_groups_are_refused(tmp_path, gptq_layer, layer_name):
    layer = gptq_layer(act_order=True)
    layer.group_index = np.minimum(np.arange(layer.k) // 100, 1)
    with pytest.raises((CheckpointError, ConversionError), match="columns"):
        convert(layer.write(tmp_path), layer_name)


def test_a_declared_group_size_that_the_scales_contradict_names_both_counts(tmp_path, gptq_layer, layer_name):
    layer = gptq_layer(k=256, group_size=128)
    layer.write(tmp_path, group_size=32)
    with pytest.raises((CheckpointError, ConversionError)) as caught:
        convert(tmp_path, layer_name)
    assert "2" in str(caught.value) and "8" in str(caught.value)


def test_symmetric_layers_need_their_constant(tmp_path, gptq_layer, layer_name):
    layer = gptq_layer(symmetric=False)
    layer.symmetric = True
    with pytest.raises((CheckpointError, ConversionError), match="zero point"):
        convert(layer.write(tmp_path), layer_name)


def test_gptq_agrees_with_exact_fractions(tmp_path, gptq_layer, layer_name):
    layer = gptq_layer(n=32, k=64, group_size=32, act_order=True)
    entry = read_checkpoint(layer.write(tmp_path)).layer(layer_name)
    exact = torch.tensor([[float(v) for v in row] for row in decode_rows(entry, [0, 31])], dtype=torch.float64)
    assert torch.equal(read_layer(entry).dequantize(torch.float64)[[0, 31]], exact)


def write_gguf(path, tensors, kind, bias=None):
    writer = gguf.GGUFWriter(path, "llama")
    for name, values in tensors.items():
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    if bias is not None:
        writer.add_tensor("blk.0.attn_q.bias", bias)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_equals_its_own_dequantization(tmp_path, same_bits, kind):
    """Random rows, rows of zeros, rows whose minimum or scale is negative, tiny or large."""
    random = np.random.default_rng(3)
    values = random.standard_normal((48, 96)).astype(np.float32)
    values[1] = 0
    values[2] = -np.abs(values[2])
    values[3] *= 1e-6
    values[4] *= 3e3
    kind = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "model.gguf", {"blk.0.attn_q.weight": values}, kind, random.random(48, np.float32))
    (stored,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name.endswith("weight"))
    checkpoint = read_checkpoint(path)
    ((entry, weight),) = read_layers(checkpoint)
    assert same_bits(weight.dequantize(), torch.from_numpy(gguf.quants.dequantize(stored.data, kind)))
    assert weight.bias is not None and weight.bias.shape == (48,)
    assert read_layer(entry).bias is None


def test_layers_are_read_one_by_one(tmp_path, monkeypatch):
    """Nothing is read before it is asked for: a layer's tensors are opened when its turn comes."""
    values = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_0
    path = write_gguf(tmp_path / "m.gguf", {f"blk.{i}.ffn_up.weight": values for i in range(3)}, kind)
    checkpoint = read_checkpoint(path)
    opened = []
    place = type(checkpoint.layers[0].tensors["blocks"])
    original = place.read_pieces
    monkeypatch.setattr(place, "read_pieces", lambda self, size: (opened.append(self.tensor), original(self, size))[1])
    layers = read_layers(checkpoint)
    assert opened == []
    next(layers)
    assert opened == ["blk.0.ffn_up.weight"]


def test_a_plain_layer_is_refused_by_name(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((32, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConversionError, match=r"blk\.0\.ffn_up\.weight.*float32"):
        read_layer(read_checkpoint(tmp_path / "m.gguf").layer("blk.0.ffn_up.weight"))
