"""The three configs: what is stored, what is computed, and how fast.
Called by everybody who composes, checks or launches a kernel.
Assumes nothing about the device; no config looks at it."""

from .compute import ComputeConfig
from .layer import LayerConfig
from .tuning import Pipeline, ScalePlace, TuningConfig

__all__ = ["ComputeConfig", "LayerConfig", "Pipeline", "ScalePlace", "TuningConfig"]
