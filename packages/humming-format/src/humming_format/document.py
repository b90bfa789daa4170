"""Documents: formats as plain dicts of strings and ints, for JSON files and state dicts, and back without loss.
Called by whoever stores a format next to its tensors.
Assumes schema number 1; a reader refuses every other schema, every unknown key and every missing key by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .activation import ActivationFormat
from .errors import DocumentError, FormatError, shown
from .number import Number, number
from .scale import ScaleFormat
from .weight import WeightFormat
from .zero_point import ZeroPointFormat, ZeroPointKind

SCHEMA = 1
"""Raised whenever a document changes its meaning."""


def to_document(described: WeightFormat | ActivationFormat) -> dict[str, Any]:
    """A plain dict that JSON can hold."""
    if isinstance(described, ActivationFormat):
        return {"schema": SCHEMA, "kind": "activation", "number": described.number.name}
    if not isinstance(described, WeightFormat):
        raise DocumentError(
            "not a format that has a document", got=shown(described), wanted="a WeightFormat or an ActivationFormat"
        )
    scale, zero_point = described.scale, described.zero_point
    zero: dict[str, Any] = {"kind": zero_point.kind.value}
    if zero_point.value is not None:
        zero["value"] = zero_point.value
    if zero_point.number is not None:
        zero["number"] = zero_point.number.name
    return {
        "schema": SCHEMA,
        "kind": "weight",
        "number": described.number.name,
        "scale": None
        if scale is None
        else {"number": scale.number.name, "group_k": scale.group_k, "group_n": scale.group_n},
        "zero_point": zero,
    }


def from_document(document: Mapping[str, Any]) -> WeightFormat | ActivationFormat:
    """The format that `to_document` wrote. Raises DocumentError for anything else."""
    if not isinstance(document, Mapping):
        raise DocumentError("a document must be a dict", got=shown(document))
    schema = document.get("schema")
    if isinstance(schema, bool) or schema != SCHEMA:
        raise DocumentError(
            "unknown schema of a format document",
            got=shown(schema),
            wanted=str(SCHEMA),
            remedy="a newer humming-format wrote it, or it is not a format document",
        )
    try:
        if document.get("kind") == "activation":
            _check_keys("activation document", document, {"schema", "kind", "number"})
            return ActivationFormat(number=_number(document, "number"))
        if document.get("kind") == "weight":
            return _weight(document)
    except DocumentError:
        raise
    except FormatError as error:
        raise DocumentError(f"the document describes a format that cannot exist: {error}") from error
    raise DocumentError("unknown kind of document", got=shown(document.get("kind")), wanted="'weight' or 'activation'")


def weight_from_document(document: Mapping[str, Any]) -> WeightFormat:
    """As `from_document`, and refuses a document of another kind."""
    found = from_document(document)
    if not isinstance(found, WeightFormat):
        raise DocumentError("document of the wrong kind", got=shown(document.get("kind")), wanted="'weight'")
    return found


def _weight(document: Mapping[str, Any]) -> WeightFormat:
    _check_keys("weight document", document, {"schema", "kind", "number", "scale", "zero_point"})
    scale_part, zero_part = document["scale"], document["zero_point"]
    scale = None
    if scale_part is not None:
        _check_keys("scale of a weight document", scale_part, {"number", "group_k", "group_n"})
        scale = ScaleFormat(
            number=_number(scale_part, "number"), group_k=scale_part["group_k"], group_n=scale_part["group_n"]
        )
    extra = {"constant": {"value"}, "minimum": {"number"}}
    kind = zero_part.get("kind") if isinstance(zero_part, Mapping) else None
    keys = {"kind"} | (extra.get(kind, set()) if isinstance(kind, str) else set())
    _check_keys("zero point of a weight document", zero_part, keys)
    kinds = {member.value: member for member in ZeroPointKind}
    if not isinstance(kind, str) or kind not in kinds:
        raise DocumentError("unknown kind of zero point", got=shown(kind), wanted=", ".join(sorted(kinds)))
    zero_point = ZeroPointFormat(
        kind=kinds[kind],
        value=zero_part.get("value"),
        number=_number(zero_part, "number") if "number" in keys else None,
    )
    return WeightFormat(number=_number(document, "number"), scale=scale, zero_point=zero_point)


def _number(part: Mapping[str, Any], key: str) -> Number:
    return number(part[key])


def _check_keys(what: str, part: object, keys: set[str]) -> None:
    if not isinstance(part, Mapping):
        raise DocumentError(f"{what} must be a dict", got=shown(part))
    missing = sorted(keys - set(part))
    unknown = sorted(shown(key) for key in part if key not in keys)
    if missing or unknown:
        raise DocumentError(
            f"wrong keys in the {what}",
            got=", ".join(
                ([f"unknown {', '.join(unknown)}"] if unknown else [])
                + ([f"without {', '.join(missing)}"] if missing else [])
            ),
            wanted=f"exactly {', '.join(sorted(keys))}",
        )
