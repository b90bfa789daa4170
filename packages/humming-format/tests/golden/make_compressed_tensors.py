"""Golden vectors of compressed-tensors: a module per way of storing, compressed and decompressed by the package.
Called by hand in an environment with compressed-tensors and torch; see keep.py.
Assumes scales are given, not calibrated: only what the bits mean is of interest."""

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from keep import keep

torch.manual_seed(0)
TOKEN = dict(num_bits=8, type="int", strategy="token", dynamic=True)


def scales_for(weight, args):
    """A scale, and a zero point where there is one, for each group; not a good one, but a different one."""
    n, k = weight.shape
    strategy = args.strategy
    if strategy == "tensor":
        shape = (1,)
    elif strategy == "channel":
        shape = (n, 1)
    elif strategy == "block":
        rows, columns = args.block_structure
        shape = (-(-n // rows), -(-k // columns))
    else:
        shape = (n, k // args.group_size)
    largest = {"int": 2 ** (args.num_bits - 1), "float": {4: 6, 6: 7.5, 8: 448}.get(args.num_bits)}[args.type]
    scale = (0.5 + torch.rand(shape)) * 3 / largest
    zero = torch.randint(-(2 ** (args.num_bits - 1)), 2 ** (args.num_bits - 1), shape, dtype=torch.int8)
    return scale, zero


MODULES = {
    # name -> format, n, k, weights, activations, dtype of the scales
    "pack4_group": ("pack-quantized", 12, 64, dict(num_bits=4, group_size=32), None, torch.float32),
    "pack4_group_asymmetric": (
        "pack-quantized",
        20,
        96,
        dict(num_bits=4, group_size=32, symmetric=False),
        None,
        torch.bfloat16,
    ),
    "pack4_channel_asymmetric": (
        "pack-quantized",
        9,
        40,
        dict(num_bits=4, strategy="channel", symmetric=False),
        None,
        torch.float16,
    ),
    "pack8_channel": ("pack-quantized", 5, 36, dict(num_bits=8, strategy="channel"), None, torch.bfloat16),
    "pack3_group": ("pack-quantized", 8, 64, dict(num_bits=3, group_size=16, symmetric=False), None, torch.float32),
    "pack5_tensor": ("pack-quantized", 4, 64, dict(num_bits=5, strategy="tensor"), None, torch.float32),
    "int8_channel": ("int-quantized", 8, 32, dict(num_bits=8, strategy="channel"), TOKEN, torch.float32),
    "int8_tensor_asymmetric": (
        "int-quantized",
        8,
        24,
        dict(num_bits=8, strategy="tensor", symmetric=False),
        dict(num_bits=8, strategy="tensor", symmetric=False),
        torch.float32,
    ),
    "int4_in_bytes": ("int-quantized", 16, 64, dict(num_bits=4, strategy="channel"), TOKEN, torch.float32),
    "int4_group_in_bytes": (
        "naive-quantized",
        8,
        64,
        dict(num_bits=4, group_size=32, symmetric=False),
        None,
        torch.float32,
    ),
    "float_tensor": (
        "float-quantized",
        8,
        32,
        dict(num_bits=8, type="float", strategy="tensor"),
        dict(num_bits=8, type="float", strategy="tensor"),
        torch.float32,
    ),
    "float_channel": (
        "float-quantized",
        8,
        32,
        dict(num_bits=8, type="float", strategy="channel"),
        dict(num_bits=8, type="float", strategy="token", dynamic=True),
        torch.bfloat16,
    ),
    "float_block": (
        "float-quantized",
        40,
        48,
        dict(num_bits=8, type="float", strategy="block", block_structure=[16, 16]),
        dict(num_bits=8, type="float", strategy="group", group_size=16, dynamic=True),
        torch.float32,
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        8,
        64,
        dict(num_bits=4, type="float", strategy="tensor_group", group_size=16),
        dict(num_bits=4, type="float", strategy="tensor_group", group_size=16, dynamic="local"),
        torch.float32,
    ),
    "nvfp4_power_of_two": (
        "nvfp4-pack-quantized",
        8,
        64,
        dict(num_bits=4, type="float", strategy="tensor_group", group_size=16),
        None,
        torch.float32,
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        8,
        64,
        dict(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8),
        None,
        torch.float32,
    ),
    "mxfp6": (
        "mxfp6-pack-quantized",
        8,
        64,
        dict(num_bits=6, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8),
        None,
        torch.float32,
    ),
    "mxfp8": (
        "mxfp8-quantized",
        8,
        64,
        dict(num_bits=8, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8),
        dict(num_bits=8, type="float", strategy="group", group_size=32, dynamic=True, scale_dtype=torch.uint8),
        torch.float32,
    ),
}

groups, tensors, expected = {}, {}, {}
for name, (form, n, k, weights, inputs, dtype) in MODULES.items():
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(
        targets=[f"model.{name}"],
        weights=args,
        input_activations=None if inputs is None else QuantizationArgs(**inputs),
        format=form,
    )
    weight = torch.randn(n, k) * 1.5
    scale, zero = scales_for(weight, args)
    state = {"weight": weight, "weight_scale": scale.to(dtype)}
    if not args.symmetric:
        state["weight_zero_point"] = zero
    if name.startswith("nvfp4"):
        divisor = 512.0 if "power" in name else 1 / 0.00028
        state["weight_scale"] = (scale * divisor).clamp(max=448).to(torch.float8_e4m3fn).float()
        state["weight_global_scale"] = torch.tensor([divisor])
    elif name.startswith("mx"):
        state["weight_scale"] = 2.0 ** torch.randint(-6, 4, scale.shape).float()
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(dict(state), scheme)
    again = dict(stored)
    if not name.startswith(("nvfp4", "mx")):
        again["weight_scale"] = stored["weight_scale"].float()  # so that the package decodes in f32
    if name.startswith(("nvfp4", "mx")):
        from compressed_tensors.quantization.lifecycle.forward import dequantize

        wide = {key: value for key, value in compressor.decompress(dict(stored), scheme).items()}
        if name.startswith("nvfp4"):  # the package decodes in bf16; its own arithmetic, in f32:
            from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

            codes = unpack_fp4_from_uint8(stored["weight_packed"], n, k, dtype=torch.float32)
            expected[f"model.{name}"] = dequantize(
                codes,
                stored["weight_scale"].float(),
                args=args,
                global_scale=stored["weight_global_scale"],
                dtype=torch.float32,
            )
        else:  # powers of two times a few bits: bf16 holds them exactly
            expected[f"model.{name}"] = wide["weight"].float()
    else:
        expected[f"model.{name}"] = compressor.decompress(again, scheme)["weight"].float()
    if inputs is not None and scheme.input_activations.dynamic is False:
        stored["input_scale"] = torch.tensor([0.02])
        if not scheme.input_activations.symmetric:
            stored["input_zero_point"] = torch.tensor([3], dtype=torch.int8)
    if inputs is not None and scheme.input_activations.dynamic == "local":
        stored["input_global_scale"] = torch.tensor([320.0])
    groups[f"group_{len(groups)}"] = scheme
    tensors |= {f"model.{name}.{key}": value for key, value in stored.items()}

config = QuantizationConfig(
    config_groups=groups, format="mixed-precision", quantization_status="compressed", ignore=["lm_head"]
)
tensors["lm_head.weight"] = torch.randn(8, 8).bfloat16()
config = config.model_dump(mode="json") | {"version": "0.20.1"}
keep("compressed_tensors", ("compressed-tensors",), {"quantization_config": config}, tensors, expected)
