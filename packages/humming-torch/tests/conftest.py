"""Makers shared by the tests of humming-torch, and one thread for all of them.

Called by pytest.
Assumes numpy, gguf and safetensors: the packages that exporters write with, so that ours never tests itself.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from humming_torch import Linear
from safetensors.numpy import save_file

from tests.support.call_stand_ins import fake_cuda

LAYER = "model.layers.0.mlp.down_proj"

# Formats of every kind that the kernels know: number, group and channel, zero point, scale number.
TEXTS = (
    "u4g128",
    "u4g32:bf16",
    "u4g64z",
    "u4g32m",
    "u4g32m:bf16",
    "u4c:f32",
    "u4cz:f32",
    "u4cm",
    "u8g128",
    "u8g64z:bf16",
    "u8c:f32",
    "u8cm:bf16",
    "e0m3g128:bf16",
    "e2m1g32",
    "e2m1c:f32",
)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small operations on several threads wait for each other more than they compute."""
    torch.set_num_threads(1)


def pack_stream(codes, bits):
    """Codes [count, width] -> int32 words [count * bits / 32, width], a little-endian bit stream per column."""
    count, width = codes.shape
    stream = ((codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1).astype(np.uint8)
    data = np.packbits(stream.reshape(count * bits, width), axis=0, bitorder="little")
    data = np.pad(data, ((0, -data.shape[0] % 4), (0, 0)))
    return np.ascontiguousarray(data.reshape(-1, 4, width).transpose(0, 2, 1)).view("<i4").reshape(-1, width)


class GptqLayer:
    """Random GPTQ weights and their real values, written as exporters write them."""

    def __init__(self, n=64, k=256, bits=4, group_size=128, symmetric=False, act_order=False, bias=False, seed=0):
        random = np.random.default_rng(seed)
        size = k if group_size == -1 else group_size
        groups = -(-k // size)
        self.n, self.k, self.bits, self.group_size, self.act_order = n, k, bits, group_size, act_order
        self.symmetric = symmetric
        self.codes = random.integers(0, 1 << bits, (k, n))
        self.zeros = random.integers(0, 1 << bits, (groups, n))
        # Both ends side by side: adding one to the stored -1 of the first must not carry into its neighbour.
        self.zeros[0, :4] = 0, (1 << bits) - 1, 0, 0
        if symmetric:
            self.zeros[:] = 1 << (bits - 1)
        self.scales = (random.random((groups, n)) * 0.1 + 0.001).astype(np.float16)
        self.group_index = np.arange(k) // size
        if act_order:
            self.group_index = random.permutation(self.group_index)
        self.bias = random.standard_normal(n).astype(np.float16) if bias else None

    @property
    def weight(self):
        """Real weights [n, k] in f32: a code difference of 9 bits times 11 bits of scale is exact there."""
        difference = (self.codes - self.zeros[self.group_index]).astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray((difference * self.scales[self.group_index].astype(np.float32)).T))

    def tensors(self, zero_offset):
        stored = (self.zeros - zero_offset) % (1 << self.bits)
        found = {
            f"{LAYER}.qweight": pack_stream(self.codes, self.bits),
            f"{LAYER}.qzeros": np.ascontiguousarray(pack_stream(stored.T, self.bits).T),
            f"{LAYER}.scales": self.scales,
            f"{LAYER}.g_idx": self.group_index.astype(np.int32),
        }
        if self.bias is not None:
            found[f"{LAYER}.bias"] = self.bias
        return found

    def write(self, folder: Path, version="gptq", **config):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors(0 if version == "gptq_v2" else 1), folder / "model.safetensors")
        document = {
            "bits": self.bits,
            "group_size": self.group_size,
            "desc_act": self.act_order,
            "sym": self.symmetric,
            "quant_method": "gptq",
            "checkpoint_format": version,
            **config,
        }
        (folder / "quantize_config.json").write_text(
            json.dumps({key: value for key, value in document.items() if value is not None})
        )
        return folder


@pytest.fixture
def gptq_layer():
    """The maker of GPTQ layers."""
    return GptqLayer


@pytest.fixture
def layer_name():
    """Name of the layer in the checkpoints that `gptq_layer` writes."""
    return LAYER


@pytest.fixture(params=TEXTS)
def text(request):
    """Each format in turn."""
    return request.param


@pytest.fixture
def rand():
    """Normal numbers from a seed: rand(seed, *shape)."""

    def make(seed, *shape):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    return make


def same_bits(one, other):
    """Whether two f32 tensors are equal in every bit."""
    return one.dtype == other.dtype == torch.float32 and torch.equal(one.view(torch.int32), other.view(torch.int32))


@pytest.fixture(name="same_bits")
def same_bits_fixture():
    """Comparison of two f32 tensors bit by bit."""
    return same_bits


@pytest.fixture
def cuda():
    """torch.cuda without a GPU: tensors on the CPU take a GPU's call path; `capturing` and `device` may be set."""
    with fake_cuda() as state:
        yield state


@pytest.fixture
def counted(cuda, monkeypatch):
    """How often the general way was taken."""
    taken = []
    general = Linear._general
    monkeypatch.setattr(Linear, "_general", lambda self, *given: taken.append(1) or general(self, *given))
    return taken
