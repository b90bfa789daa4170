"""ModelOpt checkpoints (NVFP4, MX, FP8 and INT8 algorithms), one algorithm for the model or one per layer.
Called through the table of exporters when the configuration says "modelopt".
Assumes tensors PREFIX.weight, .weight_scale and what the algorithm's row below needs besides.

`weight_scale_2`, the second level of NVFP4, multiplies: weight = code * weight_scale * weight_scale_2. So does
`input_scale`. `pre_quant_scale` [K], role "activation_multiplier", multiplies the input before it is quantized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import CheckpointError, shown
from ..number import number
from ..scale import ScaleFormat
from ..text import parse_activation
from ..weight import WeightFormat, symmetric
from .entry import LayerEntry, TensorPlace
from .exporter import (
    FLOAT_NUMBERS,
    FoundLayers,
    Options,
    QuantConfig,
    agreed,
    check_bias,
    check_dtype,
    check_keys,
    check_matrix,
    check_one_value,
    check_shape,
    children,
    integer,
    names,
    take,
)
from .matrix_layout import FieldLayout, MatrixLayout


@attrs.frozen(kw_only=True)
class Algorithm:
    """One way of storing. `scale` is "t", "c" or "g" as in text forms; `outer`: a second level for the whole tensor.

    `activation`: text of the activations, or None. `input_role`: what `input_scale` is, or None where there is none.
    """

    number: str
    code_dtype: str
    layout: FieldLayout
    scale: str
    scale_numbers: Mapping[str, str]
    outer: bool = False
    group: int | None = None
    activation: str | None = None
    input_role: str | None = None
    multiplier: bool = False


_E2M1: dict[str, Any] = dict(number="e2m1", code_dtype="uint8", layout=FieldLayout(bits=4, word_bits=8), scale="g")
_E4M3: dict[str, Any] = dict(number="e4m3", code_dtype="float8_e4m3fn", layout=FieldLayout(bits=8, word_bits=8))
_INT8: dict[str, Any] = dict(
    number="u8", code_dtype="int8", layout=FieldLayout(bits=8, word_bits=8, offset=128), scale="c"
)
_NVFP4: dict[str, Any] = {**_E2M1, "scale_numbers": {"float8_e4m3fn": "e4m3"}, "outer": True, "group": 16}
_EXPONENTS: dict[str, Any] = {"scale_numbers": {"uint8": "e8m0", "float8_e8m0fnu": "e8m0"}, "group": 32}
_FLOATS: dict[str, Any] = {"scale_numbers": FLOAT_NUMBERS}
_TWO_LEVELS: dict[str, Any] = {"activation": "e2m1g16:e4m3*t", "input_role": "activation_outer_scale"}
_STATIC: dict[str, Any] = {"activation": "e4m3t:f32@static", "input_role": "activation_scale"}

ALGORITHMS: dict[str, Algorithm] = {
    "NVFP4": Algorithm(**_NVFP4, **_TWO_LEVELS),
    "NVFP4_AWQ": Algorithm(**_NVFP4, **_TWO_LEVELS, multiplier=True),
    "W4A16_NVFP4": Algorithm(**_NVFP4),
    "W4A8_NVFP4_FP8": Algorithm(**_NVFP4, **_STATIC),
    "MXFP4": Algorithm(**_E2M1, **_EXPONENTS, activation="e2m1g32:e8m0"),
    "W4A8_MXFP4_FP8": Algorithm(**_E2M1, **_EXPONENTS, activation="e4m3t:f32"),
    "MXFP8": Algorithm(**_E4M3, scale="g", **_EXPONENTS, activation="e4m3g32:e8m0"),
    "FP8": Algorithm(**_E4M3, scale="t", **_FLOATS, **_STATIC),
    "FP8_PER_CHANNEL_PER_TOKEN": Algorithm(**_E4M3, scale="c", **_FLOATS, activation="e4m3c:f32"),
    "W8A16": Algorithm(**_INT8, **_FLOATS),
    "W8A8_SQ_PER_CHANNEL": Algorithm(
        **_INT8, **_FLOATS, activation="s8t:f32@static", input_role="activation_scale", multiplier=True
    ),
}
"""Name of the algorithm, in capitals -> how it stores a layer."""
MIXED = "MIXED_PRECISION"

_TOP_KEYS = {"producer", "quantization"}
_KEYS = {
    "quant_algo",
    "group_size",
    "exclude_modules",
    "ignore",
    "quantized_layers",
    "kv_cache_quant_algo",  # how the cache is stored while the model runs
    "kv_cache_scheme",
    "producer",
    "quant_method",
    "config_groups",
}
_GUARDED: dict[str, tuple[Any, ...]] = {"has_zero_point": (None, False), "pre_quant_scale": (None, False, True)}
_LAYER_KEYS = {"quant_algo", "group_size"}
_GROUP_KEYS = {"weights", "input_activations", "targets"}


@attrs.frozen(kw_only=True)
class Choice:
    """An algorithm and the group size that goes with it."""

    algorithm: str
    group: int | None


@attrs.frozen(kw_only=True)
class ModelOptConfig:
    """`usual` for every layer, or `layers` by name."""

    usual: Choice | None
    layers: Mapping[str, Choice]


def read_modelopt(places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options) -> FoundLayers:
    """Describe every module with a .weight_scale."""
    config = agreed([_read_config(config) for config in configs], configs)
    source = configs[0].source
    layers: list[LayerEntry] = []
    used: set[str] = set()
    for module, stored in children(places).items():
        weight = stored.get("weight")
        if "weight_scale" not in stored and (weight is None or weight.dtype not in ("uint8", "int8", "float8_e4m3fn")):
            continue
        choice = config.usual or config.layers.get(module)
        if choice is None:
            raise CheckpointError(
                f"{source} does not say how {shown(module)} is quantized", wanted="an entry in quantized_layers"
            )
        layer = _layer(module, stored, choice)
        layers.append(layer)
        used.update(place.tensor for place in layer.tensors.values())
    for name in config.layers:
        if not any(layer.name == name for layer in layers):
            raise CheckpointError(
                f"{source} says that {shown(name)} is quantized, but tensor {shown(name + '.weight_scale')} is missing"
            )
    if not layers:
        raise CheckpointError(
            f"{source} says ModelOpt, but there is no tensor named *.weight_scale", got=f"{len(places)} tensors"
        )
    multiplied = [layer.name for layer in layers if "activation_multiplier" in layer.tensors]
    notes: tuple[str, ...] = ()
    if multiplied:
        notes = (
            f"{len(multiplied)} layers, such as {shown(multiplied[0])}, multiply the columns of their input by "
            "pre_quant_scale before the product",
        )
    return FoundLayers(layers=tuple(layers), used=frozenset(used), method="modelopt", notes=notes)


def _read_config(config: QuantConfig) -> ModelOptConfig:
    what = f"{config.source}: the ModelOpt configuration"
    raw: Any = config.raw
    if "quantization" in raw:  # hf_quant_config.json
        check_keys(raw, what, known=_TOP_KEYS)
        raw = raw["quantization"]
        if not isinstance(raw, Mapping):
            raise CheckpointError(f"{what}: quantization is not an object", got=shown(raw))
    check_keys(raw, what, known=_KEYS, guarded=_GUARDED)
    for key in ("ignore", "exclude_modules"):
        names(raw, key, what)
    group = _group_size(raw, what)
    algorithm = raw.get("quant_algo")
    if algorithm == MIXED:
        layers = raw.get("quantized_layers")
        if not isinstance(layers, Mapping) or not layers:
            raise CheckpointError(f"{what}: {MIXED} without quantized_layers", got=shown(layers))
        found = {}
        for name, entry in layers.items():
            inner = f"{what}: layer {shown(name, 60)}"
            if not isinstance(entry, Mapping):
                raise CheckpointError(f"{inner} is not an object", got=shown(entry))
            check_keys(entry, inner, known=_LAYER_KEYS, guarded=_GUARDED)
            size = _group_size(entry, inner)
            found[name] = _choice(entry.get("quant_algo"), size, inner)
        return ModelOptConfig(usual=None, layers=found)
    if raw.get("quantized_layers"):
        raise CheckpointError(f"{what}: quantized_layers goes with {MIXED}", got=shown(algorithm))
    return ModelOptConfig(usual=_choice(algorithm, group, what), layers={})


def _choice(name: Any, group: int | None, what: str) -> Choice:
    spelled = name.upper() if isinstance(name, str) and len(name) < 80 else ""
    if spelled not in ALGORITHMS:
        raise CheckpointError(f"{what}: quant_algo is not described", got=shown(name), wanted=", ".join(ALGORITHMS))
    algorithm = ALGORITHMS[spelled]
    return Choice(algorithm=spelled, group=(group or algorithm.group) if algorithm.scale == "g" else None)


def _group_size(raw: Mapping[str, Any], what: str) -> int | None:
    """The group size, wherever it stands; 0 and null are none."""
    sizes = set()
    if raw.get("group_size") not in (None, 0):
        sizes.add(integer(raw, "group_size", what))
    groups = raw.get("config_groups")
    if groups is not None and not isinstance(groups, Mapping):
        raise CheckpointError(f"{what}: config_groups is not an object", got=shown(groups))
    for name, group in (groups or {}).items():
        inner = f"{what}: group {shown(name, 60)}"
        if not isinstance(group, Mapping):
            raise CheckpointError(f"{inner} is not an object", got=shown(group))
        check_keys(group, inner, known=_GROUP_KEYS, guarded=_GUARDED)
        weights = group.get("weights")
        if isinstance(weights, Mapping) and weights.get("group_size") is not None:
            sizes.add(integer(weights, "group_size", inner))
    if len(sizes) > 1 and raw.get("quant_algo") != MIXED:
        raise CheckpointError(f"{what}: several group sizes", got=shown(sorted(sizes)), wanted="one")
    return next(iter(sizes)) if len(sizes) == 1 else None


def _layer(module: str, stored: Mapping[str, TensorPlace], choice: Choice) -> LayerEntry:
    algorithm = ALGORITHMS[choice.algorithm]
    roles = {"weight": "codes", "weight_scale": "scale", "bias": "bias"}
    needed = ["weight", "weight_scale"]
    if algorithm.outer:
        roles["weight_scale_2"] = "outer_scale"
        needed.append("weight_scale_2")
    if algorithm.input_role is not None:
        roles["input_scale"] = algorithm.input_role
        needed.append("input_scale")
    if algorithm.multiplier:
        roles["pre_quant_scale"] = "activation_multiplier"
    for cache in ("k_scale", "v_scale"):
        roles[cache] = cache
    tensors = take(module, stored, roles, needed)
    codes, scale_place = tensors["codes"], tensors["scale"]
    check_dtype(codes, (algorithm.code_dtype,))
    n, words = check_matrix(codes, "[N, K], or [N, K / 2] where a byte holds two")
    k = words * 8 // algorithm.layout.bits
    check_dtype(scale_place, tuple(algorithm.scale_numbers))
    scale_number = number(algorithm.scale_numbers[scale_place.dtype])
    if algorithm.scale == "t":
        check_one_value(scale_place)
        scale = ScaleFormat(number=scale_number, group_k=None, group_n=None)
    elif algorithm.scale == "c":
        check_shape(scale_place, (n,), f"N is {n}")
        scale = ScaleFormat(number=scale_number, group_k=None)
    else:
        scale = ScaleFormat(number=scale_number, group_k=choice.group)
        check_shape(scale_place, (n, scale.groups_k(k)), f"N {n} and K {k} are in groups of {choice.group}")
        if k % (choice.group or 1):
            raise CheckpointError(
                f"layer {shown(module)}: K is not a multiple of the group size", got=f"{k} and {choice.group}"
            )
    for role in ("outer_scale", "activation_scale", "activation_outer_scale"):
        if role in tensors:
            check_dtype(tensors[role], ("float32",))
            check_one_value(tensors[role])
    if "activation_multiplier" in tensors:
        check_dtype(tensors["activation_multiplier"], tuple(FLOAT_NUMBERS))
        check_shape(tensors["activation_multiplier"], (k,), f"K is {k}")
    check_bias(tensors, n)
    code_number = number(algorithm.number)
    return LayerEntry(
        name=module,
        n=n,
        k=k,
        method=f"modelopt:{choice.algorithm}",
        weight=WeightFormat(
            number=code_number,
            scale=scale,
            zero_point=symmetric(code_number),
            outer_scale=ScaleFormat(number=number("f32"), group_k=None, group_n=None) if algorithm.outer else None,
        ),
        layout=MatrixLayout(codes=algorithm.layout),
        tensors=tensors,
        activation=parse_activation(algorithm.activation) if algorithm.activation else None,
    )
