"""Golden vectors of Quark: a tiny model quantized, exported and decoded by the package, one file per scheme.
Called by hand in an environment with amd-quark, transformers and torch; see keep.py.
Assumes that of each export one projection and the configuration are of use."""

import json
import tempfile
from pathlib import Path

import quark.torch.kernel
import torch
from keep import keep
from quark.torch import LLMTemplate, ModelQuantizer, export_safetensors
from quark.torch.utils.pack import create_pack_method
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

STEM = "model.layers.0.self_attn.k_proj"


def decode(spec, tensors, reorder):
    """The package's own decode, in f32."""
    second = spec[1] if isinstance(spec, list) else None
    spec = spec[0] if isinstance(spec, list) else spec
    method = create_pack_method(spec["qscheme"], spec["dtype"], None)
    weight, scale = tensors[f"{STEM}.weight"], tensors[f"{STEM}.weight_scale"]
    weight = method.unpack(weight, reorder).float()
    zero = tensors.get(f"{STEM}.weight_zero_point")
    if zero is not None:
        zero = method.unpack(zero, reorder).float()
    if spec["scale_format"] == "e8m0":
        scale = 2.0 ** (scale.to(torch.int16) - 127).float()
    elif spec["qscheme"] == "per_group" and "int" in spec["dtype"]:
        scale = scale.t().contiguous()
    scale = scale.float()
    if second is not None:
        scale = scale * tensors[f"{STEM}.weight_scale_2"]
    axis = -1 if spec["ch_axis"] is None else spec["ch_axis"]
    size = -1 if spec["group_size"] is None else spec["group_size"]
    return quark.torch.kernel.dequantize(spec["dtype"], weight, scale, zero, axis, size, spec["qscheme"])


for scheme in ("int4_wo_32", "uint4_wo_32", "int8", "fp8", "ptpc_fp8", "mxfp4", "nvfp4", "mxfp6_e2m3", "mxfp6_e3m2"):
    torch.manual_seed(0)
    shape = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=32)
    heads = dict(num_attention_heads=2, num_key_value_heads=1, architectures=["LlamaForCausalLM"])
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads)).bfloat16()
    for parameter in model.parameters():
        spread = 1 + 3 * torch.rand(parameter.shape[:1] + (1,) * (parameter.dim() - 1))
        parameter.data = (parameter.data.float() * spread).bfloat16()
    quantizer = ModelQuantizer(LLMTemplate.get("llama").get_config(scheme=scheme))
    model = quantizer.freeze(quantizer.quantize_model(model, [torch.arange(32)[None]]))
    with tempfile.TemporaryDirectory() as folder:
        export_safetensors(model, folder)
        stored = load_file(Path(folder) / "model.safetensors")
        config = json.loads((Path(folder) / "config.json").read_text())["quantization_config"]
    tensors = {key: value for key, value in stored.items() if key.rpartition(".")[0] == STEM}
    spec = config["global_quant_config"]["weight"]
    weight = decode(spec, tensors, config["export"]["pack_method"] == "reorder")
    keep(f"quark_{scheme}", ("amd-quark", "transformers"), {"quantization_config": config}, tensors, {STEM: weight})
