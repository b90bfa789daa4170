"""Documents: formats as plain dicts of strings and ints, for JSON files and state dicts, and back without loss.
Called by whoever stores a format next to its tensors.
Assumes schema number 1; a reader refuses every other schema, every unknown key and every missing key by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .activation import ActivationFormat
from .errors import DocumentError, FormatError, shown
from .number import Number, number
from .scale import ScaleFormat
from .weight import WeightFormat
from .zero_point import ZeroPointFormat, ZeroPointKind

SCHEMA = 1
"""Raised whenever a document changes its meaning."""

SCHEMA_FILE = Path(__file__).with_name("document.schema.json")
"""A JSON Schema that every document fits, for readers in other languages."""

_OUTER = {"outer_scale"}
_ARTICLES = {"weight": "a weight", "activation": "an activation"}


def to_document(described: WeightFormat | ActivationFormat) -> dict[str, Any]:
    """A plain dict that JSON can hold. Keys that later versions added stand only where they say something."""
    if isinstance(described, ActivationFormat):
        document: dict[str, Any] = {"schema": SCHEMA, "kind": "activation", "number": described.number.name}
        if described.scale is None:
            return document
        document |= {"scale": _scale_part(described.scale), "zero_point": _zero_part(described.zero_point)}
        document["static"] = described.static
    elif isinstance(described, WeightFormat):
        document = {
            "schema": SCHEMA,
            "kind": "weight",
            "number": described.number.name,
            "scale": _scale_part(described.scale),
            "zero_point": _zero_part(described.zero_point),
        }
    else:
        raise DocumentError(
            "not a format that has a document", got=shown(described), wanted="a WeightFormat or an ActivationFormat"
        )
    if described.outer_scale is not None:
        document["outer_scale"] = _scale_part(described.outer_scale)
    return document


def _scale_part(scale: ScaleFormat | None) -> dict[str, Any] | None:
    if scale is None:
        return None
    return {"number": scale.number.name, "group_k": scale.group_k, "group_n": scale.group_n}


def _zero_part(zero_point: ZeroPointFormat) -> dict[str, Any]:
    part: dict[str, Any] = {"kind": zero_point.kind.value}
    if zero_point.value is not None:
        part["value"] = zero_point.value
    if zero_point.number is not None:
        part["number"] = zero_point.number.name
    return part


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
            return _activation(document)
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
    keys = {"schema", "kind", "number", "scale", "zero_point"}
    _check_keys("weight document", document, keys | (_OUTER & set(document)))
    return WeightFormat(
        number=_number(document, "number"),
        scale=_read_scale("weight", document["scale"]),
        zero_point=_read_zero("weight", document["zero_point"]),
        outer_scale=_read_scale("weight", document.get("outer_scale")),
    )


def _activation(document: Mapping[str, Any]) -> ActivationFormat:
    keys = {"schema", "kind", "number"}
    if "scale" not in document:
        _check_keys("activation document", document, keys)
        return ActivationFormat(number=_number(document, "number"))
    _check_keys("activation document", document, keys | {"scale", "zero_point", "static"} | (_OUTER & set(document)))
    return ActivationFormat(
        number=_number(document, "number"),
        scale=_read_scale("activation", document["scale"]),
        zero_point=_read_zero("activation", document["zero_point"]),
        outer_scale=_read_scale("activation", document.get("outer_scale")),
        static=document["static"],
    )


def _read_scale(kind: str, part: Any) -> ScaleFormat | None:
    if part is None:
        return None
    _check_keys(f"scale of {_ARTICLES[kind]} document", part, {"number", "group_k", "group_n"})
    return ScaleFormat(number=_number(part, "number"), group_k=part["group_k"], group_n=part["group_n"])


def _read_zero(of: str, part: Any) -> ZeroPointFormat:
    extra = {"constant": {"value"}, "minimum": {"number"}, "float": {"number"}}
    kind = part.get("kind") if isinstance(part, Mapping) else None
    keys = {"kind"} | (extra.get(kind, set()) if isinstance(kind, str) else set())
    _check_keys(f"zero point of {_ARTICLES[of]} document", part, keys)
    kinds = {member.value: member for member in ZeroPointKind}
    if not isinstance(kind, str) or kind not in kinds:
        raise DocumentError("unknown kind of zero point", got=shown(kind), wanted=", ".join(sorted(kinds)))
    return ZeroPointFormat(
        kind=kinds[kind], value=part.get("value"), number=_number(part, "number") if "number" in keys else None
    )


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
