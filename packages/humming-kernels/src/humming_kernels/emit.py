"""The three configs and the target as C++ designated initialisers.
Called by the composer.
Assumes the structs of base/config.cuh, field for field."""

from __future__ import annotations

from .arch import Arch
from .components import ENUMERATORS, ZERO_POINT_ENUMERATORS
from .config import ComputeConfig, LayerConfig, TuningConfig


def initialiser(name: str, type_name: str, fields: dict[str, str | int | bool]) -> str:
    """`constexpr Type name = {.field = value, ...};`"""
    parts = ", ".join(f".{field} = {_literal(value)}" for field, value in fields.items())
    return f"constexpr {type_name} {name} = {{{parts}}};"


def layer_initialiser(layer: LayerConfig) -> str:
    """LayerConfig. The shape is no part of it: n and k are arguments of the launch, so layers share kernels."""
    scale = layer.weight.scale
    return initialiser(
        "kLayer",
        "LayerConfig",
        {
            "weight": f"Number::{ENUMERATORS[layer.weight.number.name]}",
            "weight_bits": layer.weight.number.bits,
            "scale": f"Number::{ENUMERATORS[scale.number.name] if layer.scale_is_grouped and scale else 'kF32'}",
            "group_k": layer.group_k or 0,
            "zero_point": f"ZeroPoint::{ZERO_POINT_ENUMERATORS[layer.weight.zero_point.kind]}",
            "bias": layer.bias,
        },
    )


def compute_initialiser(compute: ComputeConfig) -> str:
    """ComputeConfig."""
    return initialiser(
        "kCompute",
        "ComputeConfig",
        {
            "activation": f"Number::{ENUMERATORS[compute.activation]}",
            "output": f"Number::{ENUMERATORS[compute.output_number]}",
        },
    )


def tuning_initialiser(tuning: TuningConfig) -> str:
    """TuningConfig, less what the launch recipe (split_k) and the launch bounds (blocks_per_multiprocessor) take."""
    return initialiser(
        "kTuning",
        "TuningConfig",
        {
            "pipeline": f"Pipeline::{tuning.pipeline.value}",
            "block_n": tuning.block_n,
            "block_m": tuning.block_m,
            "stage_k": tuning.stage_k,
            "warps_n": tuning.warps_n,
            "warps_m": tuning.warps_m,
            "warps_k": tuning.warps_k,
            "stages": tuning.stages,
            "scale_place": f"ScalePlace::{tuning.scale_place.value}",
            "raster_m": tuning.raster_m,
            "cluster_k": tuning.cluster_k,
            "split": tuning.is_split,
            "evict_first": tuning.evict_first,
        },
    )


def target_initialiser(arch: Arch) -> str:
    """TargetConfig."""
    return initialiser("kTarget", "TargetConfig", {"arch": arch.number})


def _literal(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
