"""What the readers of all exporters share: their result, and checks that name what is wrong.
Called by every file of this folder that describes an exporter.
Assumes nothing about a checkpoint; every check raises CheckpointError."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import attrs

from ..errors import CheckpointError, shown
from .entry import LayerEntry, TensorPlace

FLOAT_NUMBERS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
"""Dtypes of scales, minimums and biases -> the number they hold."""
BIAS_DTYPES = tuple(FLOAT_NUMBERS)


@attrs.frozen(kw_only=True)
class FoundLayers:
    """The layers, the names of the tensors that belong to them, the way of storing, and what had to be assumed."""

    layers: tuple[LayerEntry, ...]
    used: frozenset[str]
    method: str
    notes: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class QuantConfig:
    """A quantization configuration as it was found, and the file it was found in."""

    raw: Mapping[str, Any]
    source: str


@attrs.frozen(kw_only=True)
class Options:
    """What a caller of read_checkpoint states where a checkpoint does not."""

    checkpoint_format: str | None = None


class Exporter(Protocol):
    """A reader: places of all tensors and the configurations (one or more) to layers."""

    def __call__(
        self, places: Mapping[str, TensorPlace], configs: Sequence[QuantConfig], options: Options
    ) -> FoundLayers: ...


Parsed = TypeVar("Parsed")


def agreed(parsed: Sequence[Parsed], configs: Sequence[QuantConfig]) -> Parsed:
    """What all configurations say alike; refused when two differ."""
    for other, config in zip(parsed[1:], configs[1:], strict=True):
        if other != parsed[0]:
            raise CheckpointError(
                "two quantization configurations contradict each other",
                got=f"{shown(parsed[0])} in {configs[0].source}, {shown(other)} in {config.source}",
                remedy="remove the wrong one",
            )
    return parsed[0]


def check_keys(
    raw: Mapping[str, Any],
    what: str,
    *,
    known: Collection[str],
    guarded: Mapping[str, tuple[Any, ...]] | None = None,
) -> None:
    """Refuse keys that are neither known nor guarded, and guarded keys with a value that is not among the harmless."""
    guarded = guarded or {}
    unknown = sorted(key for key in raw if key not in known and key not in guarded)
    if unknown:
        raise CheckpointError(
            f"{what}: unknown keys",
            got=", ".join(shown(key, 60) for key in unknown[:20]) + (", ..." if len(unknown) > 20 else ""),
            wanted="only keys whose meaning is known",
            remedy="an unknown key may change what the bits mean; report the exporter that writes it",
        )
    for key, harmless in guarded.items():
        if key in raw and not any(raw[key] is value or _same(raw[key], value) for value in harmless):
            raise CheckpointError(
                f"{what}: {key} has a value that is not described",
                got=shown(raw[key]),
                wanted=" or ".join(shown(value) for value in harmless),
            )


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def integer(raw: Mapping[str, Any], key: str, what: str, *, minus_one: bool = False) -> int:
    """A positive int, or also -1."""
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not (value > 0 or (minus_one and value == -1)):
        wanted = "a positive int" + (", or -1 for one group of all columns" if minus_one else "")
        raise CheckpointError(f"{what}: {key} is not described", got=shown(value), wanted=wanted)
    return value


def flag(raw: Mapping[str, Any], key: str, what: str, default: bool) -> bool:
    """A true or false value, or the default where it is absent or null."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"{what}: {key} must be true or false", got=shown(value))
    return value


def names(raw: Mapping[str, Any], key: str, what: str) -> tuple[str, ...]:
    """A list of strings; absent or null is empty."""
    value = raw.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise CheckpointError(f"{what}: {key} must be a list of strings", got=shown(value))
    return tuple(value)


def prefixes(places: Mapping[str, TensorPlace], ending: str) -> list[str]:
    """The modules that have a tensor of that ending."""
    return [name[: -len(ending) - 1] for name in places if name.endswith("." + ending)]


def children(places: Mapping[str, TensorPlace]) -> dict[str, dict[str, TensorPlace]]:
    """Module -> the tensors directly in it, by the last part of their names."""
    found: dict[str, dict[str, TensorPlace]] = {}
    for name, place in places.items():
        module, _, ending = name.rpartition(".")
        found.setdefault(module, {})[ending] = place
    return found


def take(
    module: str,
    stored: Mapping[str, TensorPlace],
    roles: Mapping[str, str],
    needed: Iterable[str],
    *,
    ignored: Collection[str] = (),
) -> dict[str, TensorPlace]:
    """The tensors of a module by role. Refuses a missing one, and one that has no role."""
    for ending in needed:
        if ending not in stored:
            raise CheckpointError(
                f"tensor {shown(f'{module}.{ending}')} is missing",
                got=f"module {shown(module)} with {', '.join(shown(name, 40) for name in sorted(stored)[:12])}",
                remedy="the checkpoint is incomplete: a shard may be missing",
            )
    extra = sorted(ending for ending in stored if ending not in roles and ending not in ignored)
    if extra:
        raise CheckpointError(
            f"tensor {shown(f'{module}.{extra[0]}')} is not expected here",
            got=f"a quantized layer with {', '.join(shown(name, 40) for name in extra[:12])}",
            wanted=f"only {', '.join(roles)}",
        )
    return {role: stored[ending] for ending, role in roles.items() if ending in stored}


def check_dtype(place: TensorPlace, wanted: Sequence[str], remedy: str | None = None) -> None:
    """Refuse a tensor of another dtype."""
    if place.dtype not in wanted:
        raise CheckpointError(
            f"tensor {shown(place.tensor)} has the wrong dtype",
            got=f"{place.dtype} {list(place.shape)}",
            wanted=" or ".join(wanted),
            remedy=remedy,
        )


def check_shape(place: TensorPlace, wanted: tuple[int, ...], why: str) -> None:
    """Refuse a tensor of another shape."""
    if place.shape != wanted:
        raise CheckpointError(
            f"tensor {shown(place.tensor)} has the wrong shape",
            got=str(list(place.shape)),
            wanted=f"{list(wanted)}, since {why}",
        )


def check_matrix(place: TensorPlace, wanted: str) -> tuple[int, int]:
    """The two sides of a matrix; refuses other ranks and empty matrices."""
    if len(place.shape) != 2 or 0 in place.shape:
        raise CheckpointError(
            f"tensor {shown(place.tensor)} has the wrong shape", got=str(list(place.shape)), wanted=wanted
        )
    return place.shape[0], place.shape[1]


def check_one_value(place: TensorPlace) -> None:
    """Refuse a tensor that is not a single value, of shape [] or [1] or [1, 1]."""
    if any(side != 1 for side in place.shape):
        raise CheckpointError(
            f"tensor {shown(place.tensor)} has the wrong shape", got=str(list(place.shape)), wanted="a single value"
        )


def check_experts(tensors: Mapping[str, TensorPlace], wanted: str, *, rank: int) -> int:
    """The number of experts of a stack: the first side of the codes, which every other tensor must share."""
    codes = tensors["codes"]
    if len(codes.shape) != rank or 0 in codes.shape:
        raise CheckpointError(
            f"tensor {shown(codes.tensor)} has the wrong shape", got=str(list(codes.shape)), wanted=wanted
        )
    experts = codes.shape[0]
    for place in tensors.values():
        if not place.shape or place.shape[0] != experts:
            raise CheckpointError(
                f"tensor {shown(place.tensor)} has the wrong shape",
                got=str(list(place.shape)),
                wanted=f"a first side of {experts} experts",
            )
    return experts


def refuse_extra(module: str, stored: Mapping[str, TensorPlace], beginnings: tuple[str, ...]) -> None:
    """Refuse a tensor of a module of expert stacks that belongs to none of them."""
    extra = sorted(name for name in stored if not name.startswith(beginnings))
    if extra:
        raise CheckpointError(
            f"tensor {shown(f'{module}.{extra[0]}')} is not expected here",
            got=", ".join(shown(name, 40) for name in extra[:12]),
            wanted=f"only tensors of {', '.join(beginnings)}",
        )


def check_bias(tensors: Mapping[str, TensorPlace], n: int) -> None:
    """Refuse a bias that is not a float per row."""
    if "bias" in tensors:
        check_dtype(tensors["bias"], BIAS_DTYPES)
        check_shape(tensors["bias"], (n,), f"N is {n}")


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts layer 9 before layer 10; safetensors files keep no order of their own."""
    parts = re.split("([0-9]{1,18})", name)
    return [(0, int(part), "") if index % 2 else (1, 0, part) for index, part in enumerate(parts)]
