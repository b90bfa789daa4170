"""Writes golden vectors: tensors as an exporter's own package made them, and what that package decodes them to.
Called by the make_*.py scripts beside it, by hand, in an environment that has the exporter's package and torch.
Assumes torch; the tests read the files without it."""

import base64
import json
import zlib
from importlib.metadata import version
from pathlib import Path

import torch


def packed(data):
    return base64.b64encode(zlib.compress(data, 9)).decode()


def describe(tensor):
    tensor = tensor.detach().cpu().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "data": packed(data)}


def keep(name, packages, config, tensors, expected, config_file="config.json", note=""):
    """One file NAME.json: which packages made it, the configuration, the tensors, and the weights [N, K] in f32."""
    made_by = ", ".join(f"{package} {version(package)}" for package in (*packages, "torch"))
    document = {
        "made_by": made_by,
        "note": note,
        "config_file": config_file,
        "config": config,
        "tensors": {key: describe(tensor) for key, tensor in tensors.items()},
        "expected": {key: describe(tensor.to(torch.float32)) for key, tensor in expected.items()},
    }
    path = Path(__file__).parent / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(path.name, path.stat().st_size, made_by)
