"""Group indices of act-order checkpoints: which scale group each column belongs to.
Called by the readers of exporters that store one.
Assumes an int32 tensor [K]; groups of unequal size are not described."""

from __future__ import annotations

import sys
from array import array

from ..errors import CheckpointError, shown
from .entry import TensorPlace


def needs_column_order(place: TensorPlace, group_size: int, groups: int) -> bool:
    """Whether g_idx differs from column // group_size. It must then be a permutation of it: whole groups, reordered."""
    k = place.shape[0]
    plain = array("i", (column // group_size for column in range(k)))
    stored = array("i")
    stored.frombytes(place.read())
    if sys.byteorder == "big":
        stored.byteswap()
    if stored == plain:
        return False
    if min(stored) < 0 or max(stored) >= groups:
        raise CheckpointError(
            f"tensor {shown(place.tensor)} points outside the groups",
            got=f"{min(stored)} to {max(stored)}",
            wanted=f"0 to {groups - 1}",
        )
    if array("i", sorted(stored)) != plain:
        raise CheckpointError(
            f"tensor {shown(place.tensor)} does not give each group {group_size} columns",
            got=f"groups of {sorted(set(_counts(stored)))} columns",
            wanted=f"{group_size} columns in each of the {groups} groups, the last one what is left",
            remedy="groups of unequal size are not described",
        )
    return True


def _counts(stored: array[int]) -> list[int]:
    counts: dict[int, int] = {}
    for group in stored:
        counts[group] = counts.get(group, 0) + 1
    return list(counts.values())
