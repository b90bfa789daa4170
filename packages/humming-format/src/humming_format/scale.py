"""Scales: which number they are stored in and how many weights share one.
Called by WeightFormat and ActivationFormat, and by whoever must know the shape of a scale tensor.
Assumes a weight matrix [N, K] whose scales form a matrix [groups_n, groups_k]; the last group may be partial."""

from __future__ import annotations

import attrs

from .errors import DescriptorError, shown
from .number import Number, NumberKind

LARGEST_GROUP = 2**31 - 1
"""Group sizes above this are refused: no matrix side is longer."""


@attrs.frozen(kw_only=True)
class ScaleFormat:
    """One scale per block of `group_n` rows and `group_k` columns.

    `group_k=None`: all of K in one group. `group_n=None`: all of N in one group. So (128, 1) is a group scale along K,
    (None, 1) a channel scale, (None, None) a tensor scale, (128, 128) a block scale.
    """

    number: Number
    group_k: int | None
    group_n: int | None = 1

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.number, Number) or self.number.kind not in (NumberKind.FLOAT, NumberKind.EXPONENT):
            raise DescriptorError(
                "a scale must be a float or an exponent",
                got=self.number.name if isinstance(self.number, Number) else shown(self.number),
                wanted="for example f16, bf16, f32, e4m3 or e8m0",
            )
        for what, size in (("group_k", self.group_k), ("group_n", self.group_n)):
            if size is not None and (
                isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= LARGEST_GROUP
            ):
                raise DescriptorError(
                    f"{what} of a scale must be a positive number of weights",
                    got=shown(size),
                    wanted=f"an int from 1 to {LARGEST_GROUP}, or None for one group of everything",
                    remedy="an exporter's group_size of -1 means None here",
                )
        if (self.group_n is None) != (self.group_k is None) and self.group_n != 1:
            raise DescriptorError(
                "a scale shared by everything along one side and by a block along the other is not described",
                got=f"group_n={self.group_n}, group_k={self.group_k}",
                wanted="group_k=None with group_n=1 (channel) or group_n=None (tensor), or numbers for both",
            )

    def groups_k(self, k: int) -> int:
        """Number of scales along K: ceil(k / group_k), the last group holding what is left."""
        return _groups(k, self.group_k)

    def groups_n(self, n: int) -> int:
        """Number of scales along N."""
        return _groups(n, self.group_n)

    def stored_bits(self, n: int, k: int) -> int:
        """Bits that the scales of an [n, k] matrix take."""
        return self.groups_n(n) * self.groups_k(k) * self.number.bits


def _groups(size: int, group: int | None) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise DescriptorError("a matrix side must be a whole number", got=shown(size), wanted="0 or more")
    if group is None:
        return 1 if size else 0
    return -(-size // group)
