"""Writes a small GPTQ checkpoint (v1, 4 bits, groups of 128) with the standard library alone.

Called by tests/integration, and by the wheels session as `python tests/support/tiny_gptq.py FOLDER`.
Assumes the layout that GPTQ exporters write: eight 4-bit codes per int32, codes along k, zero points along n.
"""

import json
import random
import struct
import sys
from pathlib import Path

K, N, GROUP = 256, 64, 128
LAYER = "model.layers.0.mlp.up_proj"
SYMMETRIC_ZERO = 8


def make_codes() -> list[list[int]]:
    """The codes that the checkpoint holds, as [n][k], the same at every call."""
    numbers = random.Random(20260101)
    return [[numbers.randrange(16) for _ in range(K)] for _ in range(N)]


def make_scales() -> list[list[float]]:
    """The scales, as [n][group]: exact in f16."""
    return [[(1 + (row * 7 + group) % 32) / 1024 for group in range(K // GROUP)] for row in range(N)]


def write_tiny_gptq(folder: Path) -> Path:
    """Write config.json and model.safetensors into `folder`, which is made if need be; returns it."""
    codes, scales = make_codes(), make_scales()
    qweight = [
        sum(codes[column][8 * row + part] << (4 * part) for part in range(8))
        for row in range(K // 8)
        for column in range(N)
    ]
    # Version 1 stores each zero point less one.
    qzeros = [sum((SYMMETRIC_ZERO - 1) << (4 * part) for part in range(8))] * (K // GROUP * (N // 8))
    columns = [scales[row][group] for group in range(K // GROUP) for row in range(N)]
    tensors = {
        f"{LAYER}.qweight": ("I32", [K // 8, N], struct.pack(f"<{len(qweight)}I", *qweight)),
        f"{LAYER}.qzeros": ("I32", [K // GROUP, N // 8], struct.pack(f"<{len(qzeros)}I", *qzeros)),
        f"{LAYER}.scales": ("F16", [K // GROUP, N], struct.pack(f"<{len(columns)}e", *columns)),
        f"{LAYER}.g_idx": ("I32", [K], struct.pack(f"<{K}i", *(index // GROUP for index in range(K)))),
        "model.norm.weight": ("F16", [N], struct.pack(f"<{N}e", *([1.0] * N))),
    }
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


if __name__ == "__main__":
    write_tiny_gptq(Path(sys.argv[1]))
