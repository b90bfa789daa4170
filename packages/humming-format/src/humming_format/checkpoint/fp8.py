"""FP8 checkpoints (DeepSeek, Qwen ...): e4m3 weights with scales per block, row or tensor, and stacks of experts.
Called through the table of exporters when the configuration says "fp8".
Assumes tensors PREFIX.weight and a scale under one of the names below, which multiplies whatever its name says.

    PREFIX.weight  e4m3 [N, K]      PREFIX.weight_scale_inv  f32 or e8m0 [ceil(N/128), ceil(K/128)], [] for the tensor
    PREFIX.weight  int8 [N, K/2]    two e2m1 in each byte, the first one in the low half, e8m0 scales [N, K/32]
    PREFIX.gate_up_proj  e4m3 [E, N, K]  PREFIX.gate_up_proj_scale_inv: experts, the gate's rows before the up's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..activation import ActivationFormat
from ..errors import CheckpointError, shown
from ..number import number
from ..scale import ScaleFormat
from ..text import parse_activation
from ..weight import WeightFormat
from .entry import LayerEntry, TensorPlace
from .exporter import (
    FLOAT_NUMBERS,
    FoundLayers,
    Options,
    QuantConfig,
    agreed,
    check_bias,
    check_dtype,
    check_experts,
    check_keys,
    check_one_value,
    children,
    refuse_extra,
    take,
)
from .matrix_layout import FieldLayout, MatrixLayout

SCALE_NAMES = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight")
"""Names of the multiplier: DeepSeek V3 and transformers, vLLM, DeepSeek V4, Mistral."""
ACTIVATION_NAMES = ("activation_scale", "input_scale", "qscale_act")
CACHE_NAMES = ("k_scale", "v_scale")
PARTS = {"gate_up_proj": ("gate", "up"), "gate_proj": (), "up_proj": (), "down_proj": ()}
"""Names of expert stacks -> what their rows are, one part after the other."""

E4M3 = MatrixLayout(codes=FieldLayout(bits=8, word_bits=8))
E2M1 = MatrixLayout(codes=FieldLayout(bits=4, word_bits=8))
_CODE_DTYPES = ("float8_e4m3fn", "int8")

_KEYS = {
    "quant_method",
    "activation_scheme",
    "weight_block_size",
    "scale_fmt",
    "expert_dtype",
    # which modules are not quantized, which their tensors show
    "modules_to_not_convert",
    "modules_to_convert",
    "ignored_layers",
    "dequantize",  # how transformers would run it
}
_GUARDED: dict[str, tuple[Any, ...]] = {
    "fmt": (None, "e4m3", "float8_e4m3fn"),
    "kv_cache_scheme": (None,),
}


@attrs.frozen(kw_only=True)
class Fp8Config:
    """`block` None: a scale per row or tensor, whichever is stored. `exponent_scales`: bytes are e8m0."""

    block: tuple[int, int] | None
    static: bool
    exponent_scales: bool
    packed_experts: bool


def read_fp8(places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options) -> FoundLayers:
    """Describe every module with an 8-bit float or packed weight."""
    config = agreed([_read_config(config) for config in configs], configs)
    layers: list[LayerEntry] = []
    used: set[str] = set()
    for module, stored in children(places).items():
        if _is_quantized(stored):
            layer = _module(module, stored, config)
            layers.append(layer)
            used.update(place.tensor for place in layer.tensors.values())
        stacks = [name for name in PARTS if f"{name}_scale_inv" in stored]
        if stacks:
            refuse_extra(module, stored, tuple(PARTS))
        for name, parts in PARTS.items():
            if f"{name}_scale_inv" in stored or (name in stored and stored[name].dtype in _CODE_DTYPES):
                layer = _stack(f"{module}.{name}", name, stored, config, parts)
                layers.append(layer)
                used.update(place.tensor for place in layer.tensors.values())
    if not layers:
        raise CheckpointError(
            f"{configs[0].source} says FP8, but no weight is of 8-bit floats", got=f"{len(places)} tensors"
        )
    notes: tuple[str, ...] = ()
    if not config.static and config.block is None:
        notes = (
            f"{configs[0].source} does not say what dynamic activations share a scale: taken as per token, as "
            "transformers does",
        )
    return FoundLayers(layers=tuple(layers), used=frozenset(used), method="fp8", notes=notes)


def _is_quantized(stored: Mapping[str, TensorPlace]) -> bool:
    if "weight" not in stored:
        scale = stored.get("scale")  # of anything, unless its dtype tells
        return (scale is not None and scale.dtype in ("float8_e8m0fnu", "uint8")) or any(
            name in stored for name in ("weight_scale_inv", "weight_scale", "qscale_weight")
        )
    return stored["weight"].dtype in (*_CODE_DTYPES, "uint8", "float8_e5m2") or "weight_scale_inv" in stored


def _read_config(config: QuantConfig) -> Fp8Config:
    what = f"{config.source}: the FP8 configuration"
    raw = config.raw
    check_keys(raw, what, known=_KEYS, guarded=_GUARDED)
    scheme = raw.get("activation_scheme", "dynamic")
    if not isinstance(scheme, str) or scheme.lower() not in ("dynamic", "static"):
        raise CheckpointError(
            f"{what}: activation_scheme is not described", got=shown(scheme), wanted="dynamic or static"
        )
    for key, values in (("scale_fmt", ("float", "ue8m0")), ("expert_dtype", ("fp8", "fp4"))):
        if raw.get(key) is not None and (not isinstance(raw[key], str) or raw[key] not in values):
            raise CheckpointError(f"{what}: {key} is not described", got=shown(raw[key]), wanted=" or ".join(values))
    block = raw.get("weight_block_size")
    if block is not None and (
        not isinstance(block, list)
        or len(block) != 2
        or not all(isinstance(side, int) and not isinstance(side, bool) and 0 < side < 2**31 for side in block)
    ):
        raise CheckpointError(f"{what}: weight_block_size must be two sizes", got=shown(block), wanted="[128, 128]")
    return Fp8Config(
        block=None if block is None else (block[0], block[1]),
        static=scheme.lower() == "static",
        exponent_scales=raw.get("scale_fmt") == "ue8m0",
        packed_experts=raw.get("expert_dtype") == "fp4",
    )


def _module(module: str, stored: Mapping[str, TensorPlace], config: Fp8Config) -> LayerEntry:
    roles = {"weight": "codes", "bias": "bias"}
    present = [name for name in SCALE_NAMES if name in stored]
    if len(present) > 1:
        raise CheckpointError(
            f"layer {shown(module)} has several scales",
            got=", ".join(present),
            wanted=f"one of {', '.join(SCALE_NAMES)}",
        )
    scale_name = present[0] if present else SCALE_NAMES[0]
    roles[scale_name] = "scale"
    activation = [name for name in ACTIVATION_NAMES if name in stored]
    roles |= dict.fromkeys(activation, "activation_scale")
    roles |= {name: name for name in CACHE_NAMES}
    needed = ["weight", scale_name] + ([] if activation or not config.static else [ACTIVATION_NAMES[0]])
    if len(activation) > 1:
        raise CheckpointError(f"layer {shown(module)} has several activation scales", got=", ".join(activation))
    tensors = take(module, stored, roles, needed)
    layer = _layer(module, tensors, config, ())
    check_bias(tensors, layer.n)
    if "activation_scale" in tensors:
        check_dtype(tensors["activation_scale"], tuple(FLOAT_NUMBERS))
        check_one_value(tensors["activation_scale"])
    return layer


def _stack(
    full_name: str, name: str, stored: Mapping[str, TensorPlace], config: Fp8Config, parts: tuple[str, ...]
) -> LayerEntry:
    roles = {
        name: "codes",
        f"{name}_scale_inv": "scale",
        f"{name}_bias": "bias",
        f"{name}_activation_scale": "activation_scale",
    }
    mine = {ending: place for ending, place in stored.items() if ending.startswith(name)}
    needed = [name, f"{name}_scale_inv"] + ([f"{name}_activation_scale"] if config.static else [])
    tensors = take(full_name.rpartition(".")[0], mine, roles, needed)
    experts = check_experts(tensors, "[experts, N, K]", rank=3)
    one = _layer(full_name, {role: place.part(0) for role, place in tensors.items()}, config, parts)
    check_bias({role: place.part(0) for role, place in tensors.items() if role == "bias"}, one.n)
    if "activation_scale" in tensors:
        check_dtype(tensors["activation_scale"], tuple(FLOAT_NUMBERS))
        check_one_value(tensors["activation_scale"].part(0))
    return attrs.evolve(one, tensors=tensors, experts=experts)


def _layer(module: str, tensors: Mapping[str, TensorPlace], config: Fp8Config, parts: tuple[str, ...]) -> LayerEntry:
    codes, place = tensors["codes"], tensors["scale"]
    check_dtype(codes, _CODE_DTYPES)
    if len(codes.shape) != 2 or 0 in codes.shape:
        raise CheckpointError(
            f"tensor {shown(codes.tensor)} has the wrong shape", got=str(list(codes.shape)), wanted="[N, K]"
        )
    packed = codes.dtype == "int8"
    n, k = codes.shape[0], codes.shape[1] * (2 if packed else 1)
    if packed and not config.packed_experts:
        raise CheckpointError(
            f"tensor {shown(codes.tensor)} has the wrong dtype",
            got="int8",
            wanted="float8_e4m3fn",
            remedy="bytes of two e2m1 are described where the configuration says expert_dtype fp4",
        )
    scale_number = _scale_number(place, config)
    if packed:
        scale = ScaleFormat(number=number(scale_number), group_k=32)
    elif config.block is not None:
        scale = ScaleFormat(number=number(scale_number), group_n=config.block[0], group_k=config.block[1])
    elif place.shape in ((n, 1), (n,)) and place.shape not in ((1,), (1, 1)):
        scale = ScaleFormat(number=number(scale_number), group_k=None)
    else:
        check_one_value(place)
        scale = ScaleFormat(number=number(scale_number), group_k=None, group_n=None)
    if scale.group_k is not None and place.shape != (scale.groups_n(n), scale.groups_k(k)):
        raise CheckpointError(
            f"tensor {shown(place.tensor)} has the wrong shape",
            got=str(list(place.shape)),
            wanted=f"{[scale.groups_n(n), scale.groups_k(k)]}, since N {n} and K {k} are in blocks of "
            f"{scale.group_n} x {scale.group_k}",
            remedy="projections that were fused after they were quantized, so that blocks begin anew in each, must be "
            "split first",
        )
    return LayerEntry(
        name=module,
        n=n,
        k=k,
        method="fp8:fp4" if packed else "fp8",
        weight=WeightFormat(number=number("e2m1" if packed else "e4m3"), scale=scale),
        layout=E2M1 if packed else E4M3,
        tensors=tensors,
        activation=_activation(config),
        parts=parts,
    )


def _scale_number(place: TensorPlace, config: Fp8Config) -> str:
    if place.dtype == "float8_e8m0fnu":
        return "e8m0"
    if place.dtype == "uint8":
        if config.exponent_scales:
            return "e8m0"
        raise CheckpointError(
            f"tensor {shown(place.tensor)} has the wrong dtype",
            got="uint8",
            wanted="float32",
            remedy="bytes are exponents only where the configuration says scale_fmt ue8m0",
        )
    check_dtype(place, (*FLOAT_NUMBERS, "float8_e8m0fnu"))
    return FLOAT_NUMBERS[place.dtype]


def _activation(config: Fp8Config) -> ActivationFormat:
    """Static: per tensor. Dynamic: per token, and per block of columns where the weights have blocks."""
    if config.static:
        return parse_activation("e4m3t:f32@static")
    if config.block is None:
        return parse_activation("e4m3c:f32")
    return parse_activation(f"e4m3g{config.block[1]}:{'e8m0' if config.exponent_scales else 'f32'}")
