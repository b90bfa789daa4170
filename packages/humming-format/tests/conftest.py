"""Makers of small checkpoints, packed with numpy's packbits so that nothing is shared with humming_format.packing.
Called by the tests of humming-format, as fixtures.
Assumes numpy and the packages that exporters write with: safetensors and gguf."""

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from humming_format.checkpoint import decode_rows
from humming_format.reference import round_to_f32
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


DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "int8": "I8", "uint8": "U8", "int16": "I16"}
DTYPES |= {"int32": "I32", "int64": "I64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
DTYPES |= {"float8_e8m0fnu": "F8_E8M0", "bool": "BOOL"}


def write_raw(path, tensors):
    """A safetensors file of {name: (torch's name of the dtype, shape, bytes)}, for dtypes that numpy does not have."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(data for _, _, data in tensors.values()))


class Golden:
    """A file of tests/golden: a checkpoint as an exporter's own package made it, and what it decodes it to."""

    def __init__(self, name):
        document = json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
        self.config, self.config_file = document["config"], document["config_file"]
        self.tensors = {key: self.unpacked(entry) for key, entry in document["tensors"].items()}
        self.expected = {
            key: np.frombuffer(self.unpacked(entry)[2], np.float32).reshape(entry["shape"])
            for key, entry in document["expected"].items()
        }

    @staticmethod
    def unpacked(entry):
        return entry["dtype"], tuple(entry["shape"]), zlib.decompress(base64.b64decode(entry["data"]))

    def array(self, name):
        """A stored tensor as numpy; 8-bit floats as their bytes, bfloat16 as uint16."""
        dtype, shape, data = self.tensors[name]
        kind = {"bfloat16": np.uint16}.get(dtype) or (np.uint8 if dtype.startswith("float8") else np.dtype(dtype))
        return np.frombuffer(data, kind).reshape(shape)

    def put(self, name, array, dtype=None):
        """Replace or add a stored tensor."""
        self.tensors[name] = (dtype or str(array.dtype), array.shape, np.ascontiguousarray(array).tobytes())

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_raw(folder / "model.safetensors", self.tensors)
        (folder / self.config_file).write_text(json.dumps(self.config))
        return folder


@pytest.fixture
def golden():
    return Golden


def decoded(layer, rows=None):
    """The exact decode of a layer, each value rounded to f32 once."""
    exact = decode_rows(layer, range(layer.n) if rows is None else rows)
    return np.array([[float(round_to_f32(value)) for value in row] for row in exact], np.float32)


@pytest.fixture(name="decoded")
def decoded_fixture():
    return decoded


def same_bits(ours, theirs):
    """Equal in every bit, NaN by NaN and zeros by sign."""
    return (
        ours.shape == theirs.shape
        and np.array_equal(
            np.where(np.isnan(ours), 0, ours.view(np.uint32)), np.where(np.isnan(theirs), 0, theirs.view(np.uint32))
        )
        and np.array_equal(np.isnan(ours), np.isnan(theirs))
    )


@pytest.fixture(name="same_bits")
def same_bits_fixture():
    return same_bits
