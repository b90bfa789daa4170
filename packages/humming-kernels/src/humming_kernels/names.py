"""The symbol of a kernel: short, readable in a profiler, and different for different units.
Called by the composer.
Assumes that whatever changes the unit's text is part of the name."""

from __future__ import annotations

from humming_format.text import format_weight

from .config import ComputeConfig, LayerConfig, Pipeline, ScalePlace, TuningConfig

_PIPELINES = {Pipeline.MULTISTAGE: "", Pipeline.WARP_SPECIALIZED: "_wgmma"}
_PLACES = {ScalePlace.EPILOGUE: "e", ScalePlace.ACCUMULATOR: "a", ScalePlace.OPERAND: "o"}


def dense_symbol(layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig) -> str:
    """For example humming_dense_u4g128_bf16__bf16_n64m8k128_w1x1x16_s2_a_r1e."""
    weight = format_weight(layer.weight).replace(":", "_").replace(",", "_")
    output = "" if compute.output_number == compute.activation else f"_{compute.output_number}"
    flags = "".join(
        letter
        for letter, present in (
            ("p", tuning.is_split),
            ("c", tuning.cluster_k > 1),
            ("e", tuning.evict_first),
        )
        if present
    )
    blocks = f"_b{tuning.blocks_per_multiprocessor}" if tuning.blocks_per_multiprocessor > 1 else ""
    return (
        f"humming_dense{_PIPELINES[tuning.pipeline]}_{weight}__{compute.activation}{output}"
        f"_n{tuning.block_n}m{tuning.block_m}k{tuning.stage_k}"
        f"_w{tuning.warps_n}x{tuning.warps_m}x{tuning.warps_k}_s{tuning.stages}"
        f"_{_PLACES[tuning.scale_place]}_r{tuning.raster_m}{flags}{blocks}{'_bias' if layer.bias else ''}"
    )
