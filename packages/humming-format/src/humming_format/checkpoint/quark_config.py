"""Configuration of Quark: how weights and inputs are quantized, for the model and for patterns of names.
Called by the Quark reader.
Assumes the keys listed here; any other key may change what the bits mean, so it is an error, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..activation import ActivationFormat
from ..errors import CheckpointError, shown
from ..text import parse_activation
from .exporter import QuantConfig, check_keys, names

# dtype -> number, dtype of the tensor, bits, what is added to a field
DTYPES: dict[str, tuple[str, str, int, int]] = {
    "int4": ("u4", "int32", 4, 8),
    "uint4": ("u4", "int32", 4, 0),
    "int8": ("u8", "int8", 8, 128),
    "uint8": ("u8", "uint8", 8, 0),
    "fp8_e4m3": ("e4m3", "float8_e4m3fn", 8, 0),
    "fp8_e5m2": ("e5m2", "float8_e5m2", 8, 0),
    "fp4": ("e2m1", "uint8", 4, 0),
    "fp6_e2m3": ("e2m3", "uint8", 6, 0),
    "fp6_e3m2": ("e3m2", "uint8", 6, 0),
}
_ACTIVATIONS = {"int8": "s8", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2", "fp4": "e2m1", "fp6_e2m3": "e2m3"}
_ACTIVATIONS["fp6_e3m2"] = "e3m2"
_ALGORITHMS = ("awq", "gptq", "gptaq", "smooth", "smoothquant", "autosmoothquant")  # folded into weights and norms

_KEYS = {
    "quant_method",
    "global_quant_config",
    "layer_quant_config",
    "exclude",
    "export",
    "version",
    "algo_config",
    # how the cache is stored while the model runs
    "kv_cache_quant_config",
    "kv_cache_post_rope",
    "kv_cache_group",
    "min_kv_scale",
}
_GUARDED: dict[str, tuple[Any, ...]] = {
    "layer_type_quant_config": (None, {}),
    "softmax_quant_spec": (None,),
    "quant_mode": (None, "eager_mode"),
}
_EXPORT_KEYS = {"kv_cache_group", "min_kv_scale", "pack_method"}
_EXPORT_GUARDED: dict[str, tuple[Any, ...]] = {
    "weight_format": (None, "real_quantized"),
    "weight_merge_groups": (None, []),
}
_LAYER_KEYS = {"weight", "input_tensors", "target_device"}
_LAYER_GUARDED: dict[str, tuple[Any, ...]] = {"bias": (None,), "output_tensors": (None,)}
_SPEC_KEYS = {
    "dtype",
    "qscheme",
    "ch_axis",
    "group_size",
    "is_dynamic",
    "symmetric",
    "scale_format",
    # how the numbers were found
    "observer_cls",
    "round_method",
    "scale_type",
    "scale_calculation_mode",
    "enable_buffer_reuse",
    "max_input_numel",
    "qat_spec",
}
_SPEC_GUARDED: dict[str, tuple[Any, ...]] = {
    "block_size": (None,),
    "mx_element_dtype": (None,),
    "zero_point_type": (None, "int32"),
    "is_scale_quant": (None, False),
}


@attrs.frozen(kw_only=True)
class Spec:
    """How one tensor is quantized. `sharing` is "t", "c" or "g". `outer`: the scales have one scale of their own."""

    dtype: str
    sharing: str
    group: int | None
    axis: int | None
    dynamic: bool
    symmetric: bool
    exponents: bool
    outer: bool


@attrs.frozen(kw_only=True)
class LayerSpec:
    """Weights, and activations or None."""

    weight: Spec
    activation: ActivationFormat | None


@attrs.frozen(kw_only=True)
class QuarkConfig:
    """`layers`: patterns of names -> what differs from the usual; `reorder`: 4-bit integers lie in AWQ's order."""

    usual: LayerSpec
    layers: tuple[tuple[str, LayerSpec], ...]
    reorder: bool


def read_config(config: QuantConfig) -> QuarkConfig:
    what = f"{config.source}: the Quark configuration"
    raw = config.raw
    check_keys(raw, what, known=_KEYS, guarded=_GUARDED)
    names(raw, "exclude", what)
    export = raw.get("export")
    if not isinstance(export, Mapping):
        raise CheckpointError(f"{what}: export is not an object", got=shown(export))
    check_keys(export, f"{what}: export", known=_EXPORT_KEYS, guarded=_EXPORT_GUARDED)
    if export.get("pack_method") not in ("reorder", "order"):
        raise CheckpointError(
            f"{what}: pack_method is not described", got=shown(export.get("pack_method")), wanted="reorder or order"
        )
    _check_algorithms(raw.get("algo_config"), what)
    layers = raw.get("layer_quant_config")
    if layers is not None and not isinstance(layers, Mapping):
        raise CheckpointError(f"{what}: layer_quant_config is not an object", got=shown(layers))
    for pattern in layers or {}:
        if len(pattern) > 500 or pattern.count("*") > 6:
            raise CheckpointError(f"{what}: pattern is too long to be tried", got=shown(pattern, 60))
    return QuarkConfig(
        usual=_layer_spec(raw.get("global_quant_config"), f"{what}: global_quant_config"),
        layers=tuple(
            (pattern, _layer_spec(entry, f"{what}: {shown(pattern, 60)}")) for pattern, entry in (layers or {}).items()
        ),
        reorder=export["pack_method"] == "reorder",
    )


def _check_algorithms(algorithms: Any, what: str) -> None:
    """Algorithms must leave nothing to do while the model runs, as rotations would."""
    entries = algorithms if isinstance(algorithms, list) else [] if algorithms is None else [algorithms]
    for entry in entries:
        name = entry.get("name") if isinstance(entry, Mapping) else entry
        if not isinstance(name, str) or name.lower() not in _ALGORITHMS:
            raise CheckpointError(f"{what}: algorithm is not described", got=shown(name), wanted=", ".join(_ALGORITHMS))


def _layer_spec(raw: Any, what: str) -> LayerSpec:
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"{what} is not an object", got=shown(raw))
    check_keys(raw, what, known=_LAYER_KEYS, guarded=_LAYER_GUARDED)
    if raw.get("weight") is None:
        raise CheckpointError(f"{what} does not quantize weights", wanted="weight")
    weight = _spec(raw["weight"], f"{what}: weight")
    if weight.dynamic:
        raise CheckpointError(f"{what}: weight: is_dynamic is not described", got="true", wanted="false")
    inputs = raw.get("input_tensors")
    where = f"{what}: input_tensors"
    return LayerSpec(weight=weight, activation=None if inputs is None else _activation(_spec(inputs, where), where))


def _spec(raw: Any, what: str) -> Spec:
    """One set of arguments, or two: codes with their scales, and the scale of those scales."""
    outer = isinstance(raw, list)
    if outer:
        if len(raw) != 2 or not all(isinstance(entry, Mapping) for entry in raw):
            raise CheckpointError(f"{what}: levels are not described", got=shown(raw), wanted="one or two")
        raw, second = raw
        known = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True}
        check_keys(second, f"{what}: second level", known=_SPEC_KEYS | set(_SPEC_GUARDED))
        if any(second.get(key) != value for key, value in known.items()):
            raise CheckpointError(f"{what}: second level is not described", got=shown(second), wanted=shown(known))
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"{what} is not an object", got=shown(raw))
    check_keys(raw, what, known=_SPEC_KEYS, guarded=_SPEC_GUARDED)
    dtype, scheme = raw.get("dtype"), raw.get("qscheme")
    sharing = {"per_tensor": "t", "per_channel": "c", "per_group": "g"}.get(scheme) if isinstance(scheme, str) else None
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{what}: dtype is not described", got=shown(dtype), wanted=", ".join(DTYPES))
    if sharing is None:
        raise CheckpointError(
            f"{what}: qscheme is not described", got=shown(scheme), wanted="per_tensor, per_channel or per_group"
        )
    for key in ("group_size", "ch_axis"):
        if raw.get(key) is not None and (isinstance(raw[key], bool) or not isinstance(raw[key], int)):
            raise CheckpointError(f"{what}: {key} is not described", got=shown(raw[key]), wanted="an int")
    group = raw.get("group_size")
    if sharing == "g" and (group is None or not 0 < group < 2**31 or raw.get("ch_axis") not in (1, -1)):
        raise CheckpointError(
            f"{what}: groups are not described",
            got=f"{shown(group)} along {shown(raw.get('ch_axis'))}",
            wanted="a positive group_size along -1",
        )
    form = raw.get("scale_format")
    if form not in (None, "float32", "e8m0"):
        raise CheckpointError(f"{what}: scale_format is not described", got=shown(form), wanted="float32 or e8m0")
    for key in ("is_dynamic", "symmetric"):
        if raw.get(key) is not None and not isinstance(raw[key], bool):
            raise CheckpointError(f"{what}: {key} must be true or false", got=shown(raw[key]))
    return Spec(
        dtype=dtype,
        sharing=sharing,
        group=group if sharing == "g" else None,
        axis=raw.get("ch_axis"),
        dynamic=bool(raw.get("is_dynamic")),
        symmetric=raw.get("symmetric") is not False,
        exponents=form == "e8m0",
        outer=outer,
    )


def _activation(spec: Spec, what: str) -> ActivationFormat:
    if spec.dtype not in _ACTIVATIONS or not spec.symmetric:
        raise CheckpointError(f"{what}: not described", got=f"{spec.dtype}, symmetric {spec.symmetric}")
    if spec.sharing == "c" and spec.axis not in (1, -1):
        raise CheckpointError(f"{what}: ch_axis is not described", got=shown(spec.axis), wanted="1, per token")
    if not spec.dynamic and (spec.sharing != "t" or spec.outer):
        raise CheckpointError(f"{what}: static activations are described per tensor only", got=spec.sharing)
    text = _ACTIVATIONS[spec.dtype] + (f"g{spec.group}" if spec.sharing == "g" else spec.sharing)
    if spec.outer:
        return parse_activation(f"{text}:e4m3*t")
    return parse_activation(f"{text}:{'e8m0' if spec.exponents else 'f32'}{'' if spec.dynamic else '@static'}")
