"""Golden vectors of AWQ, made and decoded by AutoAWQ.
Called by hand in an environment with autoawq, torch and triton absent or present; see keep.py.
Assumes awq.modules.linear.gemm can be imported by itself; the package's own __init__ wants a whole model stack."""

import importlib.util
import sys
import types
from pathlib import Path

import torch
from keep import keep

root = Path(importlib.util.find_spec("awq").submodule_search_locations[0])


def load(name):
    spec = importlib.util.spec_from_file_location(name, root / f"{name[4:].replace('.', '/')}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


for package in ("awq", "awq.utils", "awq.modules", "awq.modules.linear"):
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [str(root / package[4:].replace(".", "/"))]
sys.modules["awq.utils.utils"] = types.ModuleType("awq.utils.utils")
sys.modules["awq.utils.utils"].get_best_device = lambda: "cpu"
packing = load("awq.utils.packing_utils")
gemm = load("awq.modules.linear.gemm")

torch.manual_seed(0)
for name, n, k, group in (("awq_g32", 64, 96, 32), ("awq_channel", 32, 64, -1)):
    size = k if group == -1 else group
    linear = torch.nn.Linear(k, n, bias=True)
    grouped = linear.weight.data.reshape(n, k // size, size)
    scales = ((grouped.amax(-1) - grouped.amin(-1)) / 15).half().float()
    zeros = (-grouped.amin(-1) / scales).round().clamp(0, 15)
    zeros[0, 0], zeros[1, 0] = 0, 15
    packed = gemm.WQLinear_GEMM.from_linear(
        linear, 4, size, scales=scales.t().contiguous(), zeros=zeros.t().contiguous()
    )
    packed.qweight.random_(-(2**31), 2**31 - 1)  # every code everywhere
    tensors = {
        f"model.layers.0.mlp.up_proj.{key}": getattr(packed, key) for key in ("qweight", "qzeros", "scales", "bias")
    }
    weight = packing.dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, size).t()
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    config["modules_to_not_convert"] = None
    keep(name, ("autoawq",), {"quantization_config": config}, tensors, {"model.layers.0.mlp.up_proj": weight})
