"""Golden vectors of AutoRound's packers, decoded by its own layers: minus-one and plain zero points, AWQ, odd widths.
Called by hand in an environment with auto-round and torch; see keep.py.
Assumes the packing layers alone: rounding is of no interest. Scales are made f32, so that the layers decode in f32."""

import torch
from auto_round.export.export_to_autoround.export import dynamic_import_quant_linear_for_packing
from keep import keep

torch.manual_seed(0)
CASES = {
    "gptq": ("auto_round:auto_gptq", 4, 32, False),
    "plain": ("auto_round", 2, 32, False),
    "plain_5_bits": ("auto_round", 5, 32, False),
    "gptqmodel": ("auto_round:gptqmodel", 8, -1, True),
    "gptq_3_bits": ("auto_round:auto_gptq", 3, 64, False),
}
for name, (packing, bits, group, symmetric) in CASES.items():
    n, k = 32, 64
    size = k if group == -1 else group
    linear = torch.nn.Linear(k, n)
    scale = (0.5 + torch.rand(n, k // size)).half().float() / 2**bits
    # zero points from 1 on: minus one of 0 borrows from the next field in some packers
    zero = 2 ** (bits - 1) if symmetric else torch.randint(1, 2**bits, (n, k // size)).float()
    codes = torch.randint(0, 2**bits, (n, k)).float()
    wide = zero if symmetric else zero.repeat_interleave(size, 1)
    linear.weight.data = (codes - wide) * scale.repeat_interleave(size, 1)
    layer = dynamic_import_quant_linear_for_packing(packing, bits, group, symmetric)
    layer = layer(bits, group, k, n, bias=True, weight_dtype=torch.float32)
    layer.device = "cpu"
    layer.pack(linear, scale, zero, None, device="cpu")
    names = ["qweight", "qzeros", "scales", "bias"] + (["g_idx"] if hasattr(layer, "g_idx") else [])
    stem = "model.layers.0.mlp.up_proj"
    tensors = {f"{stem}.{key}": getattr(layer, key).clone() for key in names}
    layer.scales = layer.scales.float()
    layer.bias = None
    expected = layer(torch.eye(k)).t()
    assert torch.equal(expected, linear.weight.data)
    config = dict(bits=bits, data_type="int", group_size=group, sym=symmetric, iters=0, autoround_version="0.16.1")
    config |= dict(block_name_to_quantize="model.layers", quant_method="auto-round", packing_format=packing)
    keep(f"autoround_{name}", ("auto-round",), {"quantization_config": config}, tensors, {stem: expected})
