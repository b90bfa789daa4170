"""Makers of small checkpoints, packed with numpy's packbits so that nothing is shared with humming_format.packing.
Called by the tests of humming-format, as fixtures.
Assumes numpy and the packages that exporters write with: safetensors and gguf."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file


def pack_stream(codes, bits):
    """Codes [count, width] -> int32 [count * bits / 32, width]: one little-endian bit stream per column."""
    count, width = codes.shape
    stream = ((codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1).astype(np.uint8)
    data = np.packbits(stream.reshape(count * bits, width), axis=0, bitorder="little")
    assert data.shape[0] % 4 == 0
    words = np.ascontiguousarray(data.reshape(-1, 4, width).transpose(0, 2, 1))
    return words.view("<i4").reshape(-1, width)


class GptqModel:
    """Random GPTQ weights, written in either format, with the values that they stand for."""

    def __init__(self, n=64, k=256, bits=4, group_size=128, symmetric=False, act_order=False, seed=0):
        random = np.random.default_rng(seed)
        size = k if group_size == -1 else group_size
        groups = -(-k // size)
        self.n, self.k, self.bits, self.group_size = n, k, bits, group_size
        self.symmetric, self.act_order = symmetric, act_order
        self.codes = random.integers(0, 1 << bits, (k, n))
        self.zeros = random.integers(0, 1 << bits, (groups, n))
        self.zeros[0, :2] = 0, (1 << bits) - 1  # the two ends, side by side: adding 1 to the second must not carry
        self.zeros[-1, -2:] = (1 << bits) - 1, 0
        if symmetric:
            self.zeros[:] = 1 << (bits - 1)
        self.scales = (random.random((groups, n)) * 0.1 + 0.001).astype(np.float16)
        self.g_idx = np.arange(k) // size
        if act_order:
            self.g_idx = random.permutation(self.g_idx)
        self.bias = random.standard_normal(n).astype(np.float16)

    @property
    def weights(self):
        """The real weights [n, k] in float64, where they are exact."""
        return ((self.codes - self.zeros[self.g_idx]) * self.scales.astype(np.float64)[self.g_idx]).T

    def tensors(self, version, prefix="model.layers.0.mlp.down_proj"):
        stored = self.zeros if version == 2 else (self.zeros - 1) % (1 << self.bits)
        return {
            f"{prefix}.qweight": pack_stream(self.codes, self.bits),
            f"{prefix}.qzeros": np.ascontiguousarray(pack_stream(stored.T, self.bits).T),
            f"{prefix}.scales": self.scales,
            f"{prefix}.g_idx": self.g_idx.astype(np.int32),
            f"{prefix}.bias": self.bias,
        }

    def config(self, **changes):
        config = {
            "bits": self.bits,
            "group_size": self.group_size,
            "desc_act": self.act_order,
            "sym": self.symmetric,
            "damp_percent": 0.01,
            "static_groups": False,
            "true_sequential": True,
            "model_name_or_path": None,
            "quant_method": "gptq",
        }
        config.update(changes)
        return config


def write_folder(folder, tensors, config, plain=True):
    """A model folder: one safetensors file and quantize_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    every = dict(tensors)
    if plain:
        every["model.embed_tokens.weight"] = np.zeros((32, 64), np.float16)
        every["model.norm.weight"] = np.ones(64, np.float16)
    save_file(every, folder / "model.safetensors")
    if config is not None:
        (folder / "quantize_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def gptq_model():
    return GptqModel


@pytest.fixture
def write_gptq(tmp_path):
    """write_gptq(model, version, **configuration changes) -> folder"""
    made = []

    def write(model, version=1, tensors=None, **changes):
        folder = tmp_path / f"gptq{len(made)}"
        made.append(folder)
        return write_folder(folder, model.tensors(version) if tensors is None else tensors, model.config(**changes))

    return write


@pytest.fixture
def write_safetensors():
    return write_folder


@pytest.fixture
def write_gguf(tmp_path):
    """write_gguf({name: (array of f32, "Q4_0")}) -> (path, {name: what gguf's own dequantize gives})"""
    import gguf

    def write(arrays, name="small.gguf"):
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_string("general.name", "small")
        writer.add_array("tokenizer.ggml.tokens", ["a", "b", "länger"])
        writer.add_array("numbers", [1, 2, 3])
        truth = {}
        for tensor, (values, kind) in arrays.items():
            number = gguf.GGMLQuantizationType[kind]
            data = gguf.quants.quantize(values.astype(np.float32), number)
            writer.add_tensor(tensor, data, raw_dtype=number)
            truth[tensor] = gguf.quants.dequantize(data, number)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path, truth

    return write
