"""Errors of humming-kernels.
Called by every module of the package; KernelError is the one base class.
Assumes messages that say what, what was got, what was wanted and what to do."""

from __future__ import annotations


class KernelError(Exception):
    """Base class of the errors of humming-kernels."""


class UnknownArchError(KernelError):
    """A GPU target that the table of humming_kernels.arch does not list."""


class UnsupportedConfigError(KernelError):
    """A combination of configs that no kernel serves. `reasons` holds every reason, one sentence each."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons))

    def __reduce__(self) -> tuple[type[UnsupportedConfigError], tuple[tuple[str, ...]]]:
        return type(self), (self.reasons,)
