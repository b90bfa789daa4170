"""Which tuning for which number of tokens.
Called by humming_torch.plan and command lines; `choose` for one M, `ranges` for all M up to a bound.
Assumes a layer that rules.check_layer accepts; every choice passes rules.check."""

from .dense import choose, ranges

__all__ = ["choose", "ranges"]
