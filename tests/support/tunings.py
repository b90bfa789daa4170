"""TuningConfigs as plain JSON values and back, and which rounding a config states.

Called by tests/gpu and benchmarks.
Assumes humming_kernels' config classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from humming_kernels.config import ScalePlace, TuningConfig


def place_of(tuning: TuningConfig) -> str:
    """The stated operand rounding, in the words of tests.support.error_bounds."""
    return tuning.scale_place.name.lower()


def tuning_document(tuning: TuningConfig) -> dict[str, Any]:
    """Every field as a JSON value; what `tuning_from_document` reads back."""
    return {**attrs.asdict(tuning, recurse=False), "scale_place": place_of(tuning)}


def tuning_from_document(document: Mapping[str, Any]) -> TuningConfig:
    return TuningConfig(**{**document, "scale_place": ScalePlace[str(document["scale_place"]).upper()]})
