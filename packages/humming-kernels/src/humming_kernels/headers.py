"""The CUDA headers of this package, as texts by the name that they are included by.
Called by the composer.
Assumes includes of our own are written `#include <humming/room/file.cuh>`."""

from __future__ import annotations

import functools
import re
from importlib import resources

from .errors import KernelError
from .wgmma_header import wgmma_header_text

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<(humming/[^>]+)>", re.MULTILINE)


@functools.cache
def header_text(name: str) -> str:
    """The text of one header, for example "humming/base/config.cuh"."""
    generated = wgmma_header_text(name)
    if generated is not None:
        return generated
    path = resources.files("humming_kernels").joinpath("include", *name.split("/"))
    if not path.is_file():
        raise KernelError(f"no CUDA header of that name in humming_kernels; got {name!r}")
    return path.read_text(encoding="utf-8")


def reached_headers(text: str) -> dict[str, str]:
    """Every header that a unit includes, directly or through others, by name in sorted order."""
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(text)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = header_text(name)
            waiting.extend(_INCLUDE.findall(found[name]))
    return dict(sorted(found.items()))
