"""Golden vectors of HQQ: each width as the package packs it, decoded by the package.
Called by hand in an environment with hqq and torch; see keep.py.
Assumes scales and zeros stored as f16, and decoded in f32."""

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer
from keep import keep

torch.manual_seed(0)
tensors, expected = {}, {}
for bits, group, n, k in ((8, 64, 8, 64), (4, 32, 12, 64), (3, 32, 10, 64), (2, 16, 8, 64), (1, 32, 8, 64)):
    linear = torch.nn.Linear(k, n, bias=bits == 4)
    settings = BaseQuantizeConfig(nbits=bits, group_size=group, axis=1)
    layer = HQQLinear(linear, settings, compute_dtype=torch.float16, device="cpu")
    stem = f"model.bits{bits}"
    tensors |= {f"{stem}.{key}": value for key, value in layer.state_dict().items()}
    meta = {**layer.meta, "scale": layer.meta["scale"].float(), "zero": layer.meta["zero"].float()}
    expected[stem] = Quantizer.dequantize(layer.W_q, {**meta, "compute_dtype": torch.float32})
config = {"quant_config": {**settings}, "quant_method": "hqq", "skip_modules": ["lm_head"]}
keep("hqq", ("hqq",), {"quantization_config": config}, tensors, expected)
