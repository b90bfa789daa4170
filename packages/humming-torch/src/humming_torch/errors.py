"""Every error this package raises on purpose: what is wrong, what was got, what is wanted, what to do.

Called by all files of the package; callers catch `HummingTorchError` or one of its kinds.
Assumes nothing; the fields survive pickling, so an error may cross a process boundary.
"""

from __future__ import annotations


class HummingTorchError(Exception):
    """Base of the package's errors.

    `what` names the thing that is wrong, `got` and `wanted` are values in words, `hint` says what to do.
    """

    def __init__(self, what: str, *, got: str = "", wanted: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.got = got
        self.wanted = wanted
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.what]
        if self.got:
            parts.append(f"got {self.got}")
        if self.wanted:
            parts.append(f"wanted {self.wanted}")
        text = "; ".join(parts)
        return f"{text}. {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.got, self.wanted, self.hint)


def _rebuild(kind: type[HummingTorchError], what: str, got: str, wanted: str, hint: str) -> HummingTorchError:
    return kind(what, got=got, wanted=wanted, hint=hint)


class ConversionError(HummingTorchError):
    """A stored layer cannot be turned into the canonical form without changing its meaning."""


class WeightError(HummingTorchError):
    """Weight tensors do not fit their format: shape, dtype, group count, range or layout version."""


class ActivationError(HummingTorchError):
    """An activation, an output or a bias does not fit the layer: shape, dtype, device, stride."""


class NotPreparedError(HummingTorchError):
    """A kernel would have to be compiled or memory allocated where that is not allowed: call `prepare` first."""


class UnsupportedError(HummingTorchError):
    """A correct request that this version has no kernel, reader or operation for."""
