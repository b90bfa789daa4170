"""Golden vectors of MXFP4 as gpt-oss stores it, decoded by transformers.
Called by hand in an environment with transformers and torch; see keep.py.
Assumes random bytes as blocks: every byte is two codes. transformers gives [E, K, N], of which [N, K] is kept."""

import torch
from keep import keep
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

torch.manual_seed(0)
tensors, expected = {}, {}
for name, experts, n, k in (("gate_up_proj", 2, 12, 96), ("down_proj", 2, 10, 64)):
    blocks = torch.randint(0, 256, (experts, n, k // 32, 16), dtype=torch.uint8)
    scales = torch.randint(100, 140, (experts, n, k // 32), dtype=torch.uint8)
    stem = "model.layers.0.mlp.experts"
    tensors |= {f"{stem}.{name}_blocks": blocks, f"{stem}.{name}_scales": scales}
    tensors[f"{stem}.{name}_bias"] = torch.randn(experts, n).bfloat16()
    weights = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)
    for expert in range(experts):
        expected[f"{stem}.{name}.{expert}"] = weights[expert].t()
tensors["model.layers.0.self_attn.q_proj.weight"] = torch.randn(8, 16).bfloat16()
config = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
keep("mxfp4", ("transformers",), {"quantization_config": config}, tensors, expected)
