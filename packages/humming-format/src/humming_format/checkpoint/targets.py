"""Which rule of a configuration a module falls under: exact names, patterns, class names.
Called by the readers whose exporters quantize module by module.
Assumes patterns from strangers: a pattern that could take time without bound is refused before it is tried."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ..errors import CheckpointError, shown

PATTERN_PREFIX = "re:"
_LONGEST_PATTERN = 1000
_MOST_REPEATS = 6


def compiled(pattern: str, what: str) -> re.Pattern[str]:
    """The pattern after "re:", compiled. Refuses what is no pattern, and repeated groups, which may never end."""
    text = pattern[len(PATTERN_PREFIX) :]
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", text)
    if len(text) > _LONGEST_PATTERN or re.search(r"\)[*+{]", bare) or len(re.findall(r"[*+{]", bare)) > _MOST_REPEATS:
        raise CheckpointError(
            f"{what}: a pattern is too long, repeats a group, or repeats too often to be tried safely",
            got=shown(pattern),
            wanted=f"at most {_LONGEST_PATTERN} characters and {_MOST_REPEATS} repeats, none of a group",
        )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{what}: not a regular expression: {error}", got=shown(pattern)) from error


class Targets:
    """Targets of rules, in the order of compressed-tensors: exact names, then patterns, then class names.

    A checkpoint does not say of which class a module is. A target that is not a pattern, has no dot and is
    none of the `modules` is taken as a class, and as one that every module may be of.
    """

    def __init__(self, rules: Sequence[Sequence[str]], what: str, modules: Collection[str]) -> None:
        self._exact: dict[str, int] = {}
        self._patterns: list[tuple[str, re.Pattern[str], int]] = []
        self._classes: dict[str, int] = {}
        for index, targets in enumerate(rules):
            for target in targets:
                if target.startswith(PATTERN_PREFIX):
                    self._patterns.append((target, compiled(target, what), index))
                else:
                    self._exact[target] = index
                    if "." not in target and target not in modules:
                        self._classes[target] = index
        self._patterns.sort(key=lambda entry: entry[0])

    def named(self, module: str) -> int | None:
        """Index of the rule that names the module, exactly or by a pattern."""
        if module in self._exact:
            return self._exact[module]
        for _, pattern, index in self._patterns:
            if pattern.match(module):
                return index
        return None

    def classes(self) -> dict[str, int]:
        """Class name -> index of its rule."""
        return dict(self._classes)
