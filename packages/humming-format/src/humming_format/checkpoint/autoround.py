"""AutoRound checkpoints: GPTQ or AWQ tensors under a configuration of AutoRound's own, layers with bits of their own.
Called through the table of exporters when the configuration says "auto-round".
Assumes the packing_format says which: "auto_round:auto_gptq" stores zero points minus one, "auto_round" as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import CheckpointError, shown
from .awq import AwqConfig, awq_layers
from .entry import TensorPlace
from .exporter import FoundLayers, Options, QuantConfig, agreed, check_keys, children, integer
from .gptq import read_gptq
from .gptq_config import GUARDED_KEYS, HARMLESS_KEYS, GptqConfig

PACKINGS = {
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptq": "gptq",
    "auto_round": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:auto_awq": "awq",
    "auto_round:awq": "awq",
}
"""packing_format -> how the tensors are stored."""
BITS = (2, 3, 4, 5, 6, 7, 8)
_KEYS = HARMLESS_KEYS | {"bits", "group_size", "sym", "quant_method", "packing_format", "extra_config"}
_LAYER_KEYS = {"bits", "group_size", "sym", "act_bits", "act_data_type", "act_dynamic", "act_group_size", "act_sym"}
_GUARDED: dict[str, tuple[Any, ...]] = {
    **GUARDED_KEYS,
    "act_bits": (None, 16, 32),
    "regex_config": (None, {}),
    "desc_act": (None, False),
}
_UNQUANTIZED_BITS = 16


@attrs.frozen(kw_only=True)
class Scheme:
    """How a layer is quantized; `bits` of 16 and more: not at all."""

    bits: int
    group_size: int | None
    symmetric: bool


@attrs.frozen(kw_only=True)
class AutoRoundConfig:
    """`layers`: schemes of layers that differ from the usual one, by name."""

    stored: str
    usual: Scheme
    layers: Mapping[str, Scheme]


def read_autoround(places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options) -> FoundLayers:
    """Describe every layer with a .qweight, those of one scheme at a time."""
    config = agreed([_read_config(config) for config in configs], configs)
    source = configs[0].source
    by_scheme: dict[Scheme, dict[str, TensorPlace]] = {}
    for module, stored in children(places).items():
        if not {"qweight", "qzeros", "g_idx"} & set(stored):
            continue
        scheme = config.layers.get(module, config.usual)
        if scheme.bits >= _UNQUANTIZED_BITS:
            raise CheckpointError(f"{source} says that {shown(module)} is not quantized, but it is")
        by_scheme.setdefault(scheme, {}).update({place.tensor: place for place in stored.values()})
    if not by_scheme:
        raise CheckpointError(
            f"{source} says AutoRound, but there is no tensor named *.qweight", got=f"{len(places)} tensors"
        )
    found = [_read_scheme(some, scheme, config.stored, source) for scheme, some in by_scheme.items()]
    return FoundLayers(
        layers=tuple(
            attrs.evolve(layer, method=f"auto-round:{config.stored}") for part in found for layer in part.layers
        ),
        used=frozenset[str]().union(*(part.used for part in found)),
        method="auto-round",
        notes=tuple(note for part in found for note in part.notes),
    )


def _read_scheme(places: Mapping[str, TensorPlace], scheme: Scheme, stored: str, source: str) -> FoundLayers:
    if stored == "awq":
        if scheme.bits != 4:
            raise CheckpointError(f"{source}: AWQ packing has 4 bits", got=f"{scheme.bits} bits")
        return awq_layers(places, AwqConfig(group_size=scheme.group_size, symmetric=scheme.symmetric), stored, source)
    config = GptqConfig(
        bits=scheme.bits,
        group_size=scheme.group_size,
        desc_act=False,
        symmetric=scheme.symmetric,
        checkpoint_format=stored,
        source=source,
    )
    return read_gptq(places, config)


def _read_config(config: QuantConfig) -> AutoRoundConfig:
    what = f"{config.source}: the AutoRound configuration"
    raw = config.raw
    check_keys(raw, what, known=_KEYS - set(_GUARDED), guarded=_GUARDED)
    packing = raw.get("packing_format")
    if not isinstance(packing, str) or packing not in PACKINGS:
        raise CheckpointError(
            f"{what}: packing_format is not described", got=shown(packing), wanted=", ".join(PACKINGS)
        )
    usual = _scheme(raw, what)
    layers = {}
    extra = raw.get("extra_config")
    if extra is not None and not isinstance(extra, Mapping):
        raise CheckpointError(f"{what}: extra_config is not an object", got=shown(extra))
    for name, entry in (extra or {}).items():
        inner = f"{what}: layer {shown(name, 60)}"
        if not isinstance(entry, Mapping):
            raise CheckpointError(f"{inner} is not an object", got=shown(entry))
        guarded = {key: value for key, value in _GUARDED.items() if key not in _LAYER_KEYS}
        check_keys(entry, inner, known=_LAYER_KEYS, guarded={**guarded, "act_bits": _GUARDED["act_bits"]})
        given = {key: entry[key] for key in ("bits", "group_size", "sym") if entry.get(key) is not None}
        scheme = _scheme({**raw, **given}, inner)
        if any(character in name for character in "*?[](){}|^$\\+") and scheme.bits < _UNQUANTIZED_BITS:
            raise CheckpointError(f"{inner}: patterns are described for unquantized layers only", wanted="a name")
        layers[name] = scheme
    return AutoRoundConfig(stored=PACKINGS[packing], usual=usual, layers=layers)


def _scheme(raw: Mapping[str, Any], what: str) -> Scheme:
    bits = raw.get("bits")
    if isinstance(bits, bool) or not isinstance(bits, int) or (bits not in BITS and bits not in (16, 32)):
        raise CheckpointError(f"{what}: bits are not described", got=shown(bits), wanted=", ".join(map(str, BITS)))
    size = integer(raw, "group_size", what, minus_one=True)
    symmetric = raw.get("sym")
    if not isinstance(symmetric, bool):
        raise CheckpointError(f"{what}: sym must be true or false", got=shown(symmetric))
    return Scheme(bits=bits, group_size=None if size == -1 else size, symmetric=symmetric)
