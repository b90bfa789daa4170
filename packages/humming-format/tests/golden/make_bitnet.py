"""Golden vectors of BitNet, packed by transformers and decoded as its two classes of layers do.
Called by hand in an environment with transformers and torch; see keep.py.
Assumes unpack_weights without torch.compile; the scale of "bitlinear" divides, that of "autobitlinear" multiplies."""

import torch
from keep import keep
from transformers.integrations.bitnet import pack_weights, unpack_weights

torch.manual_seed(0)
unpack = unpack_weights.__wrapped__ if hasattr(unpack_weights, "__wrapped__") else unpack_weights
for name, scale in (("bitlinear", 4.0), ("autobitlinear", 0.37)):
    ternary = torch.randint(-1, 2, (24, 40)).float()
    packed = pack_weights(ternary.clone())
    stored = torch.tensor([scale]).bfloat16()
    tensors = {"model.q_proj.weight": packed, "model.q_proj.weight_scale": stored}
    wide = unpack(packed, torch.float32)
    assert torch.equal(wide, ternary)
    weight = wide / stored.float() if name == "bitlinear" else wide * stored.float()
    config = {"quant_method": "bitnet", "linear_class": name, "quantization_mode": "offline"}
    config["modules_to_not_convert"] = None
    keep(f"bitnet_{name}", ("transformers",), {"quantization_config": config}, tensors, {"model.q_proj": weight})
