"""Golden vectors of ModelOpt: a tiny model quantized, exported and decoded by the package, one file per algorithm.
Called by hand in an environment with nvidia-modelopt, transformers and torch; see keep.py.
Assumes that of each export two projections, the configuration in one of the two usual files, and no more are of use."""

import json
import sys
import tempfile
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from keep import keep
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.quant_utils import from_quantized_weight
from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

ALGORITHMS = {
    "nvfp4": ("NVFP4_DEFAULT_CFG", "hf_quant_config.json"),
    "w4a16_nvfp4": ("W4A16_NVFP4_CFG", "config.json"),
    "w4a8_nvfp4_fp8": ("W4A8_NVFP4_FP8_CFG", "hf_quant_config.json"),
    "w4a8_mxfp4_fp8": ("W4A8_MXFP4_FP8_CFG", "hf_quant_config.json"),
    "mxfp8": ("MXFP8_DEFAULT_CFG", "hf_quant_config.json"),
    "fp8": ("FP8_DEFAULT_CFG", "config.json"),
    "fp8_channel": ("FP8_PER_CHANNEL_PER_TOKEN_CFG", "config.json"),
    "int8": ("INT8_WEIGHT_ONLY_CFG", "config.json"),
    "int8_smooth": ("INT8_SMOOTHQUANT_CFG", "config.json"),
}


def decode(name, tensors, stem):
    """The package's own decode, in f32."""
    weight, scale = tensors[f"{stem}.weight"], tensors[f"{stem}.weight_scale"]
    shape = torch.Size((weight.shape[0], weight.shape[1] * (2 if weight.dtype == torch.uint8 else 1)))
    if "nvfp4" in name:
        held = NVFP4QTensor(shape, torch.float32, weight)
        blocks = {-1: shape[1] // scale.shape[1]}
        return held.dequantize(
            torch.float32, scale=scale, double_scale=tensors[f"{stem}.weight_scale_2"], block_sizes=blocks
        )
    if "mxfp4" in name:
        return MXFP4QTensor(shape, torch.float32, weight).dequantize(torch.float32, scale=scale, block_sizes={-1: 32})
    if "mxfp8" in name:
        return MXFP8QTensor(shape, torch.float32, weight).dequantize(torch.float32, scale=scale)
    if name.startswith("int8"):
        return from_quantized_weight(weight, scale, "int8_wo", torch.float32)
    return from_quantized_weight(weight, scale if scale.dim() == 0 else scale[:, None], "fp8", torch.float32)


for name, (settings, file) in ALGORITHMS.items():
    if len(sys.argv) > 1 and name not in sys.argv[1:]:
        continue
    torch.manual_seed(0)
    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, vocab_size=32)
    heads = dict(num_attention_heads=2, num_key_value_heads=1, architectures=["LlamaForCausalLM"])
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads)).bfloat16()
    for parameter in model.parameters():
        parameter.data = parameter.data.float() * (
            1 + 3 * torch.rand(parameter.shape[:1] + (1,) * (parameter.dim() - 1))
        )
        parameter.data = parameter.data.bfloat16()
    model = mtq.quantize(model, getattr(mtq, settings), lambda model: model(torch.arange(32)[None]))
    with tempfile.TemporaryDirectory() as folder:
        export_hf_checkpoint(model, export_dir=folder)
        stored = load_file(Path(folder) / "model.safetensors")
        config = json.loads((Path(folder) / file).read_text())
    if file == "config.json":
        config = {"quantization_config": config["quantization_config"]}
    stems = ["model.layers.0.mlp.up_proj", "model.layers.0.self_attn.k_proj"]
    tensors = {key: value for key, value in stored.items() if key.rpartition(".")[0] in stems}
    expected = {stem: decode(name, tensors, stem) for stem in stems}
    keep(f"modelopt_{name}", ("nvidia-modelopt", "transformers"), config, tensors, expected, config_file=file)
