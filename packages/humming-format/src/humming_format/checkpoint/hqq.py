"""HQQ checkpoints: unsigned codes with a float zero point and a scale for each group along K.
Called through the table of exporters when the configuration says "hqq".
Assumes HQQLinear's own state: PREFIX.W_q, .scale, .zero and tensors that say nbits, group_size, shape, packing ...

The weight [N, K] is laid out anew with one group to a row. With packing 4bit_u8, byte (r, c) of W_q holds in its high
half row r and in its low half row r + R/2 of those R rows; the other packings likewise, first rows in the highest bits.
value = (code - zero) * scale, both floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    check_bias,
    check_dtype,
    check_keys,
    check_shape,
    children,
    names,
    take,
)
from .matrix_layout import FieldLayout, MatrixLayout

PACKINGS: dict[str, tuple[str, int, int]] = {
    "8bit_u8": ("uint8", 8, 8),
    "4bit_u8": ("uint8", 8, 4),
    "3bit_32": ("int32", 32, 3),
    "2bit_u8": ("uint8", 8, 2),
    "1bit_u8": ("uint8", 8, 1),
}
"""packing -> dtype of the words, their bits, bits of a code."""

# What says how the codes are stored; what says how they were found or would be run.
_MEANING = ("nbits", "group_size", "shape", "axis", "packing", "view_as_float", "quant_scale", "quant_zero")
HARMLESS = (
    "unpack_view_dtype",
    "compute_dtype",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
)
ROLES = {"W_q": "codes", "scale": "scale", "zero": "zero_point", "bias": "bias"} | {
    name: name for name in (*_MEANING, *HARMLESS)
}
_LARGEST_STATE = 64

_KEYS = {"quant_method", "quant_config", "skip_modules"}
_QUANT_KEYS = {"weight_quant_params", "offload_meta"}
_GUARDED: dict[str, tuple[Any, ...]] = {"scale_quant_params": (None,), "zero_quant_params": (None,)}


def read_hqq(places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options) -> FoundLayers:
    """Describe every module with a .W_q."""
    for config in configs:
        _check_config(config)
    layers: list[LayerEntry] = []
    used: set[str] = set()
    for module, stored in children(places).items():
        if not {"W_q", "nbits", "packing", "zero"} & set(stored):
            continue
        tensors = take(module, stored, ROLES, ("W_q", "scale", "zero", *_MEANING))
        layers.append(_layer(module, tensors))
        used.update(place.tensor for place in tensors.values())
    if not layers:
        raise CheckpointError(
            f"{configs[0].source} says HQQ, but there is no tensor named *.W_q", got=f"{len(places)} tensors"
        )
    return FoundLayers(layers=tuple(layers), used=frozenset(used), method="hqq")


def _check_config(config: QuantConfig) -> None:
    what = f"{config.source}: the HQQ configuration"
    check_keys(config.raw, what, known=_KEYS)
    names(config.raw, "skip_modules", what)
    quant = config.raw.get("quant_config")
    if not isinstance(quant, Mapping):
        raise CheckpointError(f"{what}: quant_config is not an object", got=shown(quant))
    # One for all layers, or one per kind of layer; each layer's own tensors say the same once more.
    each = {"": quant} if "weight_quant_params" in quant else quant
    for name, entry in each.items():
        if not isinstance(entry, Mapping):
            raise CheckpointError(f"{what}: quant_config {shown(name, 60)} is not an object", got=shown(entry))
        check_keys(entry, f"{what}: quant_config {shown(name, 60)}", known=_QUANT_KEYS, guarded=_GUARDED)


def _layer(module: str, tensors: Mapping[str, TensorPlace]) -> LayerEntry:
    state = {name: _integers(tensors[name]) for name in _MEANING if name != "packing"}
    for name, wanted in (("view_as_float", 0), ("quant_scale", 0), ("quant_zero", 0), ("axis", 1)):
        if state[name] != [wanted]:
            raise CheckpointError(
                f"layer {shown(module)}: {name} has a value that is not described",
                got=shown(state[name]),
                wanted=str(wanted),
                remedy="groups across rows are not described" if name == "axis" else None,
            )
    packing = _text(tensors["packing"])
    if packing not in PACKINGS:
        raise CheckpointError(
            f"layer {shown(module)}: packing is not described", got=shown(packing), wanted=", ".join(PACKINGS)
        )
    dtype, word_bits, bits = PACKINGS[packing]
    if state["nbits"] != [bits]:
        raise CheckpointError(f"layer {shown(module)}: nbits and packing differ", got=f"{state['nbits']} and {packing}")
    if len(state["shape"]) != 2 or not all(0 < side < 2**31 for side in state["shape"]):
        raise CheckpointError(f"layer {shown(module)}: shape is not that of a matrix", got=shown(state["shape"]))
    n, k = state["shape"]
    if len(state["group_size"]) != 1 or state["group_size"][0] < 1 or k % state["group_size"][0]:
        raise CheckpointError(
            f"layer {shown(module)}: K is not a multiple of the group size", got=f"{k} and {state['group_size']}"
        )
    group = state["group_size"][0]
    rows = n * k // group
    per_word = word_bits // bits
    layout = FieldLayout(
        bits=bits,
        word_bits=word_bits,
        axis=0,
        strided=True,
        order=tuple(reversed(range(per_word))),
        columns=group,
    )
    check_dtype(tensors["codes"], (dtype,))
    check_shape(tensors["codes"], layout.stored_shape(n, k), f"{rows} groups of {group} are packed as {packing}")
    for role in ("scale", "zero_point"):
        check_dtype(tensors[role], tuple(FLOAT_NUMBERS))
        check_shape(tensors[role], (rows, 1), f"there are {rows} groups")
    check_bias(tensors, n)
    return LayerEntry(
        name=module,
        n=n,
        k=k,
        method=f"hqq:{packing}",
        weight=WeightFormat(
            number=number(f"u{bits}"),
            scale=ScaleFormat(number=number(FLOAT_NUMBERS[tensors["scale"].dtype]), group_k=group),
            zero_point=ZeroPointFormat.floating(number(FLOAT_NUMBERS[tensors["zero_point"].dtype])),
        ),
        layout=MatrixLayout(codes=layout),
        tensors=tensors,
    )


def _integers(place: TensorPlace) -> list[int]:
    """The values of a tiny integer tensor."""
    check_dtype(place, ("uint8", "int32", "int64"))
    if not 0 < place.nbytes <= _LARGEST_STATE:
        raise CheckpointError(f"tensor {shown(place.tensor)} has the wrong shape", got=str(list(place.shape)))
    width = {"uint8": 1, "int32": 4, "int64": 8}[place.dtype]
    data = place.read()
    return [int.from_bytes(data[at : at + width], "little", signed=width > 1) for at in range(0, len(data), width)]


def _text(place: TensorPlace) -> str:
    check_dtype(place, ("uint8",))
    if place.nbytes > _LARGEST_STATE:
        raise CheckpointError(f"tensor {shown(place.tensor)} has the wrong shape", got=str(list(place.shape)))
    return place.read().decode("ascii", "replace")
