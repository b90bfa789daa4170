"""Golden vectors of bitsandbytes: NF4 and FP4, with f32 scales and with scales of 8 bits, decoded by the package.
Called by hand in an environment with bitsandbytes and torch; see keep.py.
Assumes its CPU kernels; the decode is asked for in f32."""

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from keep import keep

torch.manual_seed(0)
tensors, expected = {}, {}
CASES = {"nf4": ("nf4", False, 64), "nf4_nested": ("nf4", True, 64), "fp4": ("fp4", False, 128)}
CASES["fp4_nested"] = ("fp4", True, 64)
for name, (kind, nested, block) in CASES.items():
    n, k = (160, 128) if name == "nf4_nested" else (8, 128)  # 320 blocks: more than one block of scales
    weight = torch.randn(n, k) * (0.1 + torch.rand(n, 1))
    codes, state = quantize_4bit(weight, blocksize=block, compress_statistics=nested, quant_type=kind)
    stem = f"model.{name}"
    tensors[f"{stem}.weight"] = codes
    tensors |= {f"{stem}.weight.{key}": value for key, value in state.as_dict(packed=True).items()}
    expected[stem] = dequantize_4bit(codes, state)
tensors["model.nf4.bias"] = torch.randn(8)
tensors["lm_head.weight"] = torch.randn(4, 8).bfloat16()
config = {
    "_load_in_4bit": True,
    "_load_in_8bit": False,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "llm_int8_enable_fp32_cpu_offload": False,
    "llm_int8_has_fp16_weight": False,
    "llm_int8_skip_modules": None,
    "llm_int8_threshold": 6.0,
    "load_in_4bit": True,
    "load_in_8bit": False,
    "quant_method": "bitsandbytes",
}
keep("bitsandbytes", ("bitsandbytes",), {"quantization_config": config}, tensors, expected)
