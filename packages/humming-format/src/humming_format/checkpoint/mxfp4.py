"""MXFP4 checkpoints as gpt-oss stores them: stacks of experts in blocks of 32 e2m1 with one e8m0 scale each.
Called through the table of exporters when the configuration says "mxfp4".
Assumes tensors PREFIX_blocks uint8 [E, N, K/32, 16], PREFIX_scales uint8 [E, N, K/32] and perhaps PREFIX_bias [E, N].

The 16 bytes of a block hold its 32 elements in order, the first of each two in the low half. Rows of gate_up_proj take
turns: row 0 gate 0, row 1 up 0, row 2 gate 1 ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import CheckpointError, shown
from ..text import parse_weight
from .entry import LayerEntry, TensorPlace
from .exporter import (
    FoundLayers,
    Options,
    QuantConfig,
    check_bias,
    check_dtype,
    check_experts,
    check_keys,
    check_shape,
    children,
    refuse_extra,
    take,
)
from .matrix_layout import FieldLayout, MatrixLayout

BLOCK = 32
LAYOUT = MatrixLayout(codes=FieldLayout(bits=4, word_bits=8))
WEIGHT = parse_weight("e2m1g32:e8m0")
STACKS = {"gate_up_proj": ("gate", "up"), "down_proj": ()}
"""Names of the stacks -> what their rows are, in turns."""

_KEYS = {"quant_method", "modules_to_not_convert", "dequantize"}


def read_mxfp4(places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options) -> FoundLayers:
    """Describe every stack of blocks."""
    for config in configs:
        check_keys(config.raw, f"{config.source}: the MXFP4 configuration", known=_KEYS)
    layers: list[LayerEntry] = []
    used: set[str] = set()
    for module, stored in children(places).items():
        names = {name.rpartition("_")[0] for name in stored if name.endswith(("_blocks", "_scales"))}
        if names - set(STACKS):
            unknown = sorted(names - set(STACKS))
            raise CheckpointError(
                f"tensor {shown(f'{module}.{unknown[0]}_blocks')} is of no known stack", wanted=", ".join(STACKS)
            )
        if names:
            refuse_extra(module, stored, tuple(STACKS))
        for name in names:
            layer = _stack(module, name, stored)
            layers.append(layer)
            used.update(place.tensor for place in layer.tensors.values())
    if not layers:
        raise CheckpointError(
            f"{configs[0].source} says MXFP4, but there is no tensor named *_blocks", got=f"{len(places)} tensors"
        )
    return FoundLayers(layers=tuple(layers), used=frozenset(used), method="mxfp4")


def _stack(module: str, name: str, stored: Mapping[str, TensorPlace]) -> LayerEntry:
    roles = {f"{name}_blocks": "codes", f"{name}_scales": "scale", f"{name}_bias": "bias"}
    mine = {ending: place for ending, place in stored.items() if ending.startswith(name)}
    tensors = take(module, mine, roles, (f"{name}_blocks", f"{name}_scales"))
    codes, scale = tensors["codes"], tensors["scale"]
    check_dtype(codes, ("uint8",))
    check_dtype(scale, ("uint8", "float8_e8m0fnu"))
    experts = check_experts(tensors, "[experts, N, K / 32, 16]", rank=4)
    n, groups, half = codes.shape[1:]
    check_shape(codes, (experts, n, groups, BLOCK // 2), "a block is 16 bytes")
    check_shape(scale, (experts, n, groups), "there is one scale per block")
    parts = STACKS[name]
    if parts and n % len(parts):
        raise CheckpointError(
            f"tensor {shown(codes.tensor)} has the wrong shape",
            got=str(list(codes.shape)),
            wanted=f"as many rows of {' as of '.join(parts)}",
        )
    layer = LayerEntry(
        name=f"{module}.{name}",
        n=n,
        k=groups * half * 2,
        method="mxfp4",
        weight=WEIGHT,
        layout=LAYOUT,
        tensors=tensors,
        experts=experts,
        parts=parts,
        interleaved=bool(parts),
    )
    check_bias({role: place.part(0) for role, place in tensors.items() if role == "bias"}, n)
    return layer
