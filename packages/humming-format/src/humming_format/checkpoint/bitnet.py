"""BitNet checkpoints: ternary weights, four to a byte along N, and one scale for the matrix.
Called through the table of exporters when the configuration says "bitnet".
Assumes tensors PREFIX.weight uint8 [N/4, K] and PREFIX.weight_scale [1]; byte r holds rows r, r + N/4, r + N/2 and
r + 3N/4, lowest bits first, as -1, 0, 1 plus one.

The class "bitlinear" stores one over the scale, "autobitlinear" the scale itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import CheckpointError, shown
from ..number import number
from ..scale import ScaleFormat
from ..text import parse_activation
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
    check_one_value,
    children,
    flag,
    names,
    take,
)
from .matrix_layout import FieldLayout, MatrixLayout, StoredScale

FIELDS = FieldLayout(bits=2, word_bits=8, axis=0, strided=True)
SCALES = {"bitlinear": StoredScale.DIVISOR, "autobitlinear": StoredScale.MULTIPLIER}
"""linear_class -> what weight_scale is."""
ROLES = {"weight": "codes", "weight_scale": "scale", "bias": "bias"}

_KEYS = {"quant_method", "modules_to_not_convert", "linear_class", "use_rms_norm", "rms_norm_eps"}
_GUARDED: dict[str, tuple[Any, ...]] = {"quantization_mode": (None, "offline")}


@attrs.frozen(kw_only=True)
class BitNetConfig:
    """What weight_scale is, and whether a norm stands before each product."""

    scale: StoredScale
    norm: bool


def read_bitnet(places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options) -> FoundLayers:
    """Describe every module with a .weight_scale."""
    config = agreed([_read_config(config) for config in configs], configs)
    layers: list[LayerEntry] = []
    used: set[str] = set()
    for module, stored in children(places).items():
        if "weight_scale" not in stored and ("weight" not in stored or stored["weight"].dtype != "uint8"):
            continue
        tensors = take(module, stored, ROLES, ("weight", "weight_scale"))
        check_dtype(tensors["codes"], ("uint8",))
        rows, k = check_matrix(tensors["codes"], "[N / 4, K]")
        check_dtype(tensors["scale"], tuple(FLOAT_NUMBERS))
        check_one_value(tensors["scale"])
        check_bias(tensors, 4 * rows)
        scale = ScaleFormat(number=number(FLOAT_NUMBERS[tensors["scale"].dtype]), group_k=None, group_n=None)
        layers.append(
            LayerEntry(
                name=module,
                n=4 * rows,
                k=k,
                method="bitnet",
                weight=WeightFormat(number=number("u2"), scale=scale, zero_point=ZeroPointFormat.constant(1)),
                layout=MatrixLayout(codes=FIELDS, scale=config.scale),
                tensors=tensors,
                activation=parse_activation("s8c:f32"),
            )
        )
        used.update(place.tensor for place in tensors.values())
    if not layers:
        raise CheckpointError(
            f"{configs[0].source} says BitNet, but there is no tensor named *.weight_scale",
            got=f"{len(places)} tensors",
        )
    notes = ("a norm stands before each quantized product (use_rms_norm), which is not described",)
    return FoundLayers(layers=tuple(layers), used=frozenset(used), method="bitnet", notes=notes if config.norm else ())


def _read_config(config: QuantConfig) -> BitNetConfig:
    what = f"{config.source}: the BitNet configuration"
    check_keys(config.raw, what, known=_KEYS, guarded=_GUARDED)
    names(config.raw, "modules_to_not_convert", what)
    name = config.raw.get("linear_class", "bitlinear")
    if not isinstance(name, str) or name not in SCALES:
        raise CheckpointError(f"{what}: linear_class is not described", got=shown(name), wanted=" or ".join(SCALES))
    return BitNetConfig(scale=SCALES[name], norm=flag(config.raw, "use_rms_norm", what, default=False))
