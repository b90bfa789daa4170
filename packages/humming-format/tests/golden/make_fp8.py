"""Golden vectors of FP8 as transformers stores and decodes them: blocks, partial blocks, tensors, experts, packed fp4.
Called by hand in an environment with transformers and torch; see keep.py.
Assumes transformers.integrations.finegrained_fp8, whose quantizer and two decoders need no GPU."""

from types import SimpleNamespace

import torch
from keep import keep
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize, _dequantize_fp8_weight

torch.manual_seed(0)
decoder = Fp8Dequantize(None)


def quantize(weight, block, scale_fmt="float"):
    settings = SimpleNamespace(weight_block_size=block, scale_fmt=scale_fmt)
    made = Fp8Quantize(SimpleNamespace(quantization_config=settings)).convert({"it.weight": weight})
    return made["it.weight"], made["it.weight_scale_inv"]


config = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [16, 32],
    "modules_to_not_convert": ["lm_head"],
}
tensors, expected = {}, {}
weight, scale = quantize(torch.randn(48, 64), (16, 32))
tensors |= {"model.whole.weight": weight, "model.whole.weight_scale_inv": scale}
expected["model.whole"] = decoder._dequantize_one(weight, scale, torch.float32)
# N and K that are no multiples: transformers does not quantize these, but decodes them
weight, scale = torch.randn(41, 72).to(torch.float8_e4m3fn), torch.rand(3, 3) + 0.1
tensors |= {"model.partial.weight": weight, "model.partial.weight_scale_inv": scale}
tensors["model.partial.bias"] = torch.randn(41).bfloat16()
expected["model.partial"] = _dequantize_fp8_weight(weight, scale, [16, 32], torch.float32)
stack, scales = quantize(torch.randn(3, 32, 64), (16, 32))
tensors |= {"model.experts.gate_up_proj": stack, "model.experts.gate_up_proj_scale_inv": scales}
for expert in range(3):
    name = f"model.experts.gate_up_proj.{expert}"
    expected[name] = decoder._dequantize_one(stack[expert], scales[expert], torch.float32)
tensors["lm_head.weight"] = torch.randn(8, 16).bfloat16()
keep("fp8_block", ("transformers",), {"quantization_config": config}, tensors, expected)

exponents = {**config, "scale_fmt": "ue8m0", "expert_dtype": "fp4"}
tensors, expected = {}, {}
weight, scale = quantize(torch.randn(32, 64), (16, 32), "ue8m0")
tensors |= {"layers.0.attn.wq_a.weight": weight, "layers.0.attn.wq_a.scale": scale}
expected["layers.0.attn.wq_a"] = decoder._dequantize_one(weight, scale, torch.float32)
packed = torch.randint(-128, 128, (8, 32), dtype=torch.int8)
scale = torch.randint(110, 135, (8, 2), dtype=torch.uint8)
tensors |= {"layers.0.ffn.experts.0.w1.weight": packed}
tensors |= {"layers.0.ffn.experts.0.w1.scale": scale.view(torch.float8_e8m0fnu)}
expected["layers.0.ffn.experts.0.w1"] = decoder._dequantize_one(packed, scale, torch.float32)
keep("fp8_exponents", ("transformers",), {"quantization_config": exponents}, tensors, expected)

plain = {key: value for key, value in config.items() if key != "weight_block_size"} | {"activation_scheme": "static"}
tensors, expected = {}, {}
for name, scale in (("tensor", torch.tensor(0.03)), ("channel", torch.rand(24, 1) * 0.1 + 0.001)):
    weight = torch.randn(24, 48).to(torch.float8_e4m3fn)
    tensors |= {f"model.{name}.weight": weight, f"model.{name}.weight_scale": scale}
    tensors |= {f"model.{name}.input_scale": torch.tensor(0.5)}
    expected[f"model.{name}"] = _dequantize_fp8_weight(weight, scale, None, torch.float32)
keep("fp8_plain", ("transformers",), {"quantization_config": plain}, tensors, expected)
