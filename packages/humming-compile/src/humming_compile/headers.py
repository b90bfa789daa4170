"""Which header texts a unit really reaches, found by following #include through the texts.

Called by key (what the key covers) and service (what the worker is given): the two are the same set.
Assumes over-counting is harmless (a stale key is not): includes in comments or in untaken branches count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import attrs

_DIRECTIVE = re.compile(r'^[ \t]*(?:#|%:)[ \t]*include(?:_next)?\b[ \t]*(?:[<"]([^>"\n]+)[>"])?', re.MULTILINE)
_HAS_INCLUDE = re.compile(r'__has_include\s*\(\s*(?:[<"]([^>"\n]+)[>"])?')
_COMMENTED_DIRECTIVE = re.compile(r"(?:#|%:)\s*/\*|\*/[ \t]*(?:#|%:)")


@attrs.frozen(kw_only=True)
class Reached:
    """`project`: name -> text of the given headers that are reached. `foreign`: other included names, in order."""

    project: dict[str, str]
    foreign: tuple[str, ...]


def reached_headers(unit_text: str, headers: Mapping[str, str]) -> Reached:
    """Follows the unit's includes through `headers`.

    A directive whose name cannot be read off the text (a macro, a comment inside) makes all headers count.
    """
    project: dict[str, str] = {}
    foreign: dict[str, None] = {}
    waiting = [_included_names(unit_text)]
    while waiting:
        names, unclear = waiting.pop()
        for name in headers if unclear else names:
            if name not in headers:
                foreign[name] = None
            elif name not in project:
                project[name] = headers[name]
                waiting.append(_included_names_of_header(headers[name]))
        if unclear:
            foreign.update(dict.fromkeys(name for name in names if name not in headers))
    return Reached(project=dict(sorted(project.items())), foreign=tuple(sorted(foreign)))


@functools.lru_cache(maxsize=1024)
def _included_names_of_header(text: str) -> tuple[list[str], bool]:
    """As below, kept: many units reach the same headers."""
    return _included_names(text)


def _included_names(text: str) -> tuple[list[str], bool]:
    """Names in a text's include directives, and whether some directive's name could not be read."""
    text = text.replace("\\\r\n", "").replace("\\\n", "")
    names = [*_DIRECTIVE.findall(text), *_HAS_INCLUDE.findall(text)]
    unclear = "" in names or _COMMENTED_DIRECTIVE.search(text) is not None
    return [name for name in names if name], unclear
