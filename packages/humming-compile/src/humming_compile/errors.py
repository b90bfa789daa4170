"""All errors of humming_compile, under one base class.

Raised by every file of the package and caught by its users.
Assumes that an error may cross a process: each one keeps its fields when pickled.
"""

from __future__ import annotations

from typing import Any


class HummingCompileError(Exception):
    """Base of every error of this package. Fields beside the message are plain attributes."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        for name, value in fields.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message, dict(vars(self)))


def _restore(cls: type[HummingCompileError], message: str, fields: dict[str, Any]) -> HummingCompileError:
    error = cls(message)
    vars(error).update(fields)
    return error


class SettingsError(HummingCompileError):
    """An environment variable holds a value that cannot be used."""

    variable: str = ""


class RequestError(HummingCompileError):
    """A compile request is not well formed: target, output kind, option or header name."""


class ToolkitError(HummingCompileError):
    """No NVRTC was found, or the one that was found cannot be used. `package` is what to install."""

    package: str = ""


class StoreError(HummingCompileError):
    """The folder of compiled kernels cannot be written."""

    folder: str = ""


class BundleError(HummingCompileError):
    """A bundle cannot be read or written. `path` is its file."""

    path: str = ""


class ProtocolError(HummingCompileError):
    """Bytes between this process and a worker are not a message."""


class ServiceClosedError(HummingCompileError):
    """The compile service was closed and cannot compile any more."""


class CompileError(HummingCompileError):
    """A unit was not compiled. `log` is NVRTC's or the worker's text, `kept_at` where the unit was saved, if asked."""

    name: str = ""
    target: str = ""
    log: str = ""
    kept_at: str = ""


class MissingHeaderError(CompileError):
    """A unit includes a header that was not found. `package` is the package that holds it, where that is known."""

    header: str = ""
    package: str = ""


class UnknownTargetError(CompileError):
    """The NVRTC at hand does not know the target. `known` lists those that it knows."""

    known: tuple[str, ...] = ()


class MissingFromBundleError(CompileError):
    """No bundle has the kernel and there is no compiler to make it. `bundles` are the files that were looked into."""

    bundles: tuple[str, ...] = ()


class WorkerCrashError(CompileError):
    """The worker process ended while it compiled. `exit_code` is negative for a signal, None when not known."""

    exit_code: int | None = None


class WorkerTimeoutError(CompileError):
    """The worker process did not answer in time and was ended."""

    seconds: float = 0.0


class DriverError(HummingCompileError):
    """The CUDA driver is missing or refused a call. `code` is the CUresult number, `call` the function."""

    code: int = -1
    call: str = ""
