"""Which tuning for which number of tokens.
Called by humming_torch.plan and command lines: `ranges` for all M up to a bound, `choose` for one M.
Assumes a layer that rules.check_layer accepts; every choice passes rules.check."""

from __future__ import annotations

import functools

from ..arch import DeviceFacts
from ..config import ComputeConfig, LayerConfig, TuningConfig
from ..errors import UnsupportedConfigError
from ..rules import check_layer
from . import mma_sync, sm90
from ._common import M_BOUNDS

__all__ = ["M_BOUNDS", "choose", "ranges"]


def choose(layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts, m: int) -> TuningConfig:
    """The tuning for m tokens, the one that `ranges` has for them. Raises UnsupportedConfigError with every reason."""
    table = _table(layer, compute, device)
    return next((tuning for bound, tuning in table if m <= bound), table[-1][1])


def ranges(
    layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts, max_m: int
) -> tuple[tuple[int, int, TuningConfig], ...]:
    """(first M, last M, tuning) for M from 1 to max_m; neighbours with the same tuning are one range.

    At most ten different kernels. Raises UnsupportedConfigError with every reason where none serves the layer.
    """
    found: list[tuple[int, int, TuningConfig]] = []
    first = 1
    for bound, tuning in _table(layer, compute, device):
        last = min(bound, max_m)
        if last < first:
            break
        if found and found[-1][2] == tuning:
            found[-1] = (found[-1][0], last, tuning)
        else:
            found.append((first, last, tuning))
        first = last + 1
    if first <= max_m:
        begin, _, tuning = found.pop()
        found.append((begin, max_m, tuning))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _table(layer: LayerConfig, compute: ComputeConfig, device: DeviceFacts) -> tuple[tuple[int, TuningConfig], ...]:
    """(last M, tuning) for every bound of M; the last tuning also serves all larger M."""
    reasons = check_layer(layer, compute, device.arch)
    if reasons:
        raise UnsupportedConfigError(reasons)
    if device.arch.has("wgmma"):
        return sm90.table(layer, compute, device)
    return mma_sync.table(layer, compute, device)
