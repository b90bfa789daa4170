"""AWQ checkpoints (version "gemm"): 4-bit codes and zero points packed along N, in an order of their own.
Called through the table of exporters when the configuration says "awq".
Assumes tensors PREFIX.qweight int32 [K, N/8], .qzeros int32 [G, N/8], .scales float [G, N] and perhaps .bias [N]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import CheckpointError, shown
from ..number import number
from ..scale import ScaleFormat
from ..weight import WeightFormat
from ..zero_point import ZeroPointFormat
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
    check_shape,
    children,
    flag,
    integer,
    take,
)
from .matrix_layout import FieldLayout, MatrixLayout

BITS = 4
# Field i of a word holds column 0 2 4 6 1 3 5 7 of its eight, so column 0..7 lies in field 0 4 1 5 2 6 3 7.
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
FIELDS = FieldLayout(bits=BITS, word_bits=32, axis=1, transposed=True, order=ORDER)
LAYOUT = MatrixLayout(codes=FIELDS, zero_point=FIELDS, scale_transposed=True)

ROLES = {"qweight": "codes", "qzeros": "zero_point", "scales": "scale", "bias": "bias"}

# AutoAWQ's own spelling -> that of config.json
SPELLINGS = {"w_bit": "bits", "q_group_size": "group_size"}
MEANING_KEYS = frozenset({"bits", "group_size", "zero_point", "version", "format", "quant_method", *SPELLINGS})
# What some library would run the layers with, or which modules are not quantized, which their tensors show.
HARMLESS_KEYS = frozenset(
    {
        "modules_to_not_convert",
        "backend",
        "do_fuse",
        "fuse_max_seq_len",
        "modules_to_fuse",
        "exllama_config",
        # written by transformers, whose configuration of AWQ is one of GPTQ underneath
        "tokenizer",
        "dataset",
        "damp_percent",
        "true_sequential",
        "model_seqlen",
        "block_name_to_quantize",
        "module_name_preceding_first_block",
        "batch_size",
        "pad_token_id",
        "max_input_length",
        "cache_block_outputs",
        "modules_in_block_to_quantize",
        "act_group_aware",
        "meta",
        # auto-round
        "autoround_version",
        "provider",
        "packing_format",
        "iters",
        "lr",
        "nsamples",
        "seqlen",
        "low_gpu_mem_usage",
        "enable_quanted_input",
        "enable_minmax_tuning",
        "amp",
    }
)
GUARDED_KEYS: dict[str, tuple[Any, ...]] = {
    "desc_act": (None, False),
    "sym": (None, True, False),  # zero_point says it here
    "data_type": (None, "int"),
    "dynamic": (None, {}),
    "pack_dtype": (None, "int32"),
}


@attrs.frozen(kw_only=True)
class AwqConfig:
    """`group_size` None: one group of all of K. `symmetric`: every zero point is 8, though stored."""

    group_size: int | None
    symmetric: bool


def read_awq(places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options) -> FoundLayers:
    """Describe every layer with a .qweight."""
    config = agreed([_read_config(config) for config in configs], configs)
    return awq_layers(places, config, "awq", configs[0].source)


def awq_layers(places: Mapping[str, TensorPlace], config: AwqConfig, method: str, source: str) -> FoundLayers:
    """As `read_awq`, for a configuration that is read already."""
    layers: list[LayerEntry] = []
    used: set[str] = set()
    for module, stored in children(places).items():
        if "qweight" not in stored and "qzeros" not in stored:
            continue
        tensors = take(module, stored, ROLES, ("qweight", "qzeros", "scales"))
        layers.append(_layer(module, tensors, config, method))
        used.update(place.tensor for place in tensors.values())
    if not layers:
        raise CheckpointError(
            f"{source} says AWQ, but there is no tensor named *.qweight", got=f"{len(places)} tensors"
        )
    return FoundLayers(layers=tuple(layers), used=frozenset(used), method=method)


def _read_config(config: QuantConfig) -> AwqConfig:
    what = f"{config.source}: the AWQ configuration"
    check_keys(config.raw, what, known=MEANING_KEYS | HARMLESS_KEYS, guarded=GUARDED_KEYS)
    raw = dict(config.raw)
    for own, usual in SPELLINGS.items():
        if own in raw and raw.get(usual, raw[own]) != raw[own]:
            raise CheckpointError(f"{what}: {own} and {usual} contradict each other", got=shown([raw[own], raw[usual]]))
        raw.setdefault(usual, raw.get(own))
    if raw["bits"] is True or raw["bits"] != BITS or not isinstance(raw["bits"], int):
        raise CheckpointError(f"{what}: bits are not described", got=shown(raw["bits"]), wanted=str(BITS))
    stated = {key: raw[key] for key in ("version", "format") if raw.get(key) is not None}
    if not stated:
        raise CheckpointError(f"{what} does not state its version", wanted="gemm")
    for key, value in stated.items():
        if not isinstance(value, str) or value.lower() != "gemm":
            raise CheckpointError(
                f"{what}: {key} is not described",
                got=shown(value),
                wanted="gemm",
                remedy="gemv, marlin and others lay the same codes out differently",
            )
    size = integer(raw, "group_size", what, minus_one=True)
    return AwqConfig(group_size=None if size == -1 else size, symmetric=not flag(raw, "zero_point", what, default=True))


def _layer(module: str, tensors: Mapping[str, TensorPlace], config: AwqConfig, method: str) -> LayerEntry:
    codes, scale, zeros = tensors["codes"], tensors["scale"], tensors["zero_point"]
    remedy = "AWQ packs codes into int32 words; one value per byte, or other words, is another format"
    check_dtype(codes, ("int32",), remedy)
    check_dtype(zeros, ("int32",), remedy)
    check_dtype(scale, tuple(FLOAT_NUMBERS))
    k, words = check_matrix(codes, "[K, N / 8]")
    n = words * 8
    scale_format = ScaleFormat(number=number(FLOAT_NUMBERS[scale.dtype]), group_k=config.group_size)
    groups = scale_format.groups_k(k)
    if config.group_size is not None and k % config.group_size:
        raise CheckpointError(
            f"layer {shown(module)}: K is not a multiple of the group size", got=f"{k} and {config.group_size}"
        )
    said = f"K {k} in groups of {config.group_size or k} is {groups} groups, and N is {n}"
    check_shape(scale, (groups, n), said)
    check_shape(zeros, (groups, words), said)
    check_bias(tensors, n)
    if config.symmetric and any(set(piece) - {0x88} for piece in zeros.read_pieces(1 << 20)):
        raise CheckpointError(
            f"the configuration says that there are no zero points, but tensor {shown(zeros.tensor)} holds others",
            wanted="every stored zero point 8",
            remedy="set zero_point to true in the configuration to use the stored zero points",
        )
    return LayerEntry(
        name=module,
        n=n,
        k=k,
        method=method,
        weight=WeightFormat(
            number=number("u4"),
            scale=scale_format,
            zero_point=ZeroPointFormat.constant(8) if config.symmetric else ZeroPointFormat.integer(),
        ),
        layout=LAYOUT,
        tensors=tensors,
    )
