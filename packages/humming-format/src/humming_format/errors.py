"""Errors of humming-format: one base class, and one subclass per place where things go wrong.
Called by every file of this package; catch FormatError to catch them all.
Assumes each message says what is wrong, what was got, what was wanted and what to do, as far as each is known."""

from __future__ import annotations

from typing import Any


class FormatError(Exception):
    """Base class. The parts of the message stay readable as attributes and survive pickling."""

    def __init__(
        self, what: str, *, got: str | None = None, wanted: str | None = None, remedy: str | None = None
    ) -> None:
        self.what = what
        self.got = got
        self.wanted = wanted
        self.remedy = remedy
        parts = [what]
        if got is not None:
            parts.append(f"got {got}")
        if wanted is not None:
            parts.append(f"wanted {wanted}")
        if remedy is not None:
            parts.append(remedy)
        super().__init__("; ".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.got, self.wanted, self.remedy)


class DescriptorError(FormatError):
    """A descriptor that cannot exist, for example an unsigned number without a zero point."""


class TextError(FormatError):
    """A text form that cannot be read."""


class DocumentError(FormatError):
    """A document (plain dict) that cannot be read."""


class CheckpointError(FormatError):
    """A checkpoint that is damaged, incomplete, contradicts itself, or is of a kind that is not described."""


def _rebuild(
    kind: type[FormatError], what: str, got: str | None, wanted: str | None, remedy: str | None
) -> FormatError:
    return kind(what, got=got, wanted=wanted, remedy=remedy)


def shown(value: object, limit: int = 120) -> str:
    """The repr of a value, cut to at most `limit` characters: a hostile file must not flood a terminal."""
    if isinstance(value, (str, bytes)) and len(value) > limit:
        value = value[:limit]  # repr of the whole could be far longer than needed
        return repr(value)[:limit] + "..."
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
