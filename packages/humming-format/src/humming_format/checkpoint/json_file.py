"""Strict reading of JSON that comes from strangers: every way to be wrong becomes a CheckpointError.
Called by the safetensors header reader and the configuration reader.
Assumes the caller bounds the size of what it passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, shown

LARGEST_JSON_BYTES = 100_000_000
"""Safetensors' own limit for a header; no configuration or index comes near it."""


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in UTF-8 `data`. `what` names it in errors."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = sorted({key for key in keys if keys.count(key) > 1}) if len(keys) < 1000 else []
            raise CheckpointError(f"{what} names the same key twice", got=shown(twice) if twice else None)
        return found

    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, absurd numbers, absurd nesting
        raise CheckpointError(f"{what} is not valid JSON: {str(error)[:120]}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{what} is not a JSON object", got=type(found).__name__)
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_JSON_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if len(data) > LARGEST_JSON_BYTES:
        raise CheckpointError(
            f"{path} is too large for JSON of this kind", wanted=f"at most {LARGEST_JSON_BYTES} bytes"
        )
    return parse_object(data, str(path))
