"""Progress bars of the commands, and words for where kernels came from.

Called by quickstart.py and by cli.py.
Assumes a rich console; where it is not a terminal there are no bars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from humming_compile.request import Artifact
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_Item = TypeVar("_Item")


@contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """A place for progress bars, gone when the block ends."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


def shown(console: Console, title: str, items: Sequence[_Item]) -> Iterator[_Item]:
    """The items, behind a progress bar."""
    with bars(console) as progress:
        task = progress.add_task(title, total=len(items))
        for item in items:
            yield item
            progress.advance(task)


class CompileBar:
    """Counts compiled kernels on a bar of `progress`; call it as the compile service's progress callback."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.origins: Counter[str] = Counter()
        self._progress = progress
        self._task = progress.add_task("compiling", total=total)

    def __call__(self, done: int, total: int, artifact: Artifact) -> None:
        self.origins[artifact.origin] += 1
        self._progress.update(self._task, completed=done)


def origins_text(origins: Mapping[str, int]) -> str:
    """ "3 compiled now, 2 from disk": how many kernels came from where."""
    words = {
        "compiled": "compiled now",
        "bundle": "from a bundle",
        "disk": "from disk",
        "memory": "from memory",
    }
    return ", ".join(f"{origins[name]} {text}" for name, text in words.items() if origins.get(name))
