"""Which of several toolkits compiles for a target, and why: the first that knows it.

Called by CompileService and the command line.
Assumes NVIDIA's release notes for which release knows which GPU; a release newer than this table is taken to know all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from humming_compile.toolkit import Toolkit

# The first CUDA release whose NVRTC compiles for an architecture, and the first that no longer does. Source: the
# release notes of the CUDA toolkit; a test compares them with the release that is installed.
_RELEASES: dict[int, tuple[tuple[int, int], tuple[int, int] | None]] = {
    **dict.fromkeys((50, 52, 53, 60, 61, 62), ((8, 0), (13, 0))),
    **dict.fromkeys((70, 72), ((10, 0), (13, 0))),
    75: ((10, 0), None),
    80: ((11, 0), None),
    86: ((11, 1), None),
    87: ((11, 4), None),
    88: ((13, 0), None),
    89: ((11, 8), None),
    90: ((11, 8), None),
    100: ((12, 8), None),
    101: ((12, 8), (13, 0)),
    103: ((12, 9), None),
    107: ((13, 5), None),  # at the latest
    110: ((13, 0), None),
    120: ((12, 8), None),
    121: ((12, 9), None),
}
_NEWEST = (13, 5)
_ACCELERATED_SINCE = (12, 0)  # the "a" of sm_90a
_FAMILY_SINCE = (12, 9)  # the "f" of sm_100f
_TARGET = re.compile(r"sm_(\d+)([af]?)\Z")


@attrs.frozen(kw_only=True)
class Choice:
    """The toolkit that is used, and why it is this one."""

    toolkit: Toolkit
    reason: str


def knows_target(version: tuple[int, int], target: str) -> bool:
    """Whether NVRTC of this version compiles for a target like "sm_90a"."""
    match = _TARGET.match(target)
    if match is None:
        return False
    first, dropped = _RELEASES.get(int(match[1]), (_NEWEST, None))
    if int(match[1]) not in _RELEASES:
        return version > _NEWEST
    if match[2] == "a":
        first = max(first, _ACCELERATED_SINCE)
    elif match[2] == "f":
        first = max(first, _FAMILY_SINCE)
    return version >= first and (dropped is None or version < dropped)


def choose_toolkit(found: Sequence[Toolkit], target: str, needs_headers: bool = False) -> Choice:
    """The first of `found` that knows the target; where headers are needed, the first of those that has some.

    `found` is not empty and in order of preference. Where none knows the target, the newest, which then says so itself.
    """
    knowing = [toolkit for toolkit in found if knows_target(toolkit.version, target)]
    if not knowing:
        newest = max(found, key=lambda toolkit: toolkit.version)
        return Choice(toolkit=newest, reason=f"none that was found is known to have {target}; this one is the newest")
    chosen = knowing[0]
    if needs_headers and not chosen.header_version:
        chosen = next((toolkit for toolkit in knowing if toolkit.header_version), chosen)
    passed_over = found[: found.index(chosen)]
    if not passed_over:
        return Choice(toolkit=chosen, reason="the only one" if len(found) == 1 else "the first that was found")
    reasons = []
    for other in passed_over:
        lack = "has no headers" if other in knowing else f"does not know {target}"
        reasons.append(f"{other.version_text} from {other.origin} {lack}")
    return Choice(toolkit=chosen, reason="; ".join(reasons))
