"""TuningConfigs as plain JSON values and back, and which rounding a config states.

Called by tests/gpu and benchmarks.
Assumes humming_kernels' config classes; enumerations are written by name in lower case.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping
from typing import Any

import attrs
from humming_kernels.config import TuningConfig


def place_of(tuning: TuningConfig) -> str:
    """The stated operand rounding, in the words of tests.support.error_bounds."""
    return tuning.scale_place.name.lower()


def enumerations() -> dict[str, type[enum.Enum]]:
    """The fields of a TuningConfig that take an enumerator."""
    hints = typing.get_type_hints(TuningConfig)
    return {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, enum.Enum)}


def tuning_document(tuning: TuningConfig) -> dict[str, Any]:
    """Every field as a JSON value; what `tuning_from_document` reads back."""
    values = attrs.asdict(tuning, recurse=False)
    return {name: value.name.lower() if isinstance(value, enum.Enum) else value for name, value in values.items()}


def tuning_from_document(document: Mapping[str, Any]) -> TuningConfig:
    kinds = enumerations()
    values = {name: kinds[name][str(value).upper()] if name in kinds else value for name, value in document.items()}
    return TuningConfig(**values)
