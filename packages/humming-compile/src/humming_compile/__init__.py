"""CUDA source text in, compiled code out, kept on disk: see CompileService.

Imported by users; imports no CUDA library, starts no process and touches no disk.
Assumes Linux and Python 3.10 or later.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from humming_compile.bundle import Bundle
    from humming_compile.errors import (
        BundleError,
        CompileError,
        DriverError,
        HummingCompileError,
        MissingFromBundleError,
        MissingHeaderError,
        RequestError,
        ServiceClosedError,
        SettingsError,
        StoreError,
        ToolkitError,
        UnknownTargetError,
        WorkerCrashError,
        WorkerTimeoutError,
    )
    from humming_compile.request import Artifact, CompileRequest
    from humming_compile.service import CompileService, default_service
    from humming_compile.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Artifact",
    "Bundle",
    "BundleError",
    "CompileError",
    "CompileRequest",
    "CompileService",
    "DriverError",
    "HummingCompileError",
    "MissingFromBundleError",
    "MissingHeaderError",
    "RequestError",
    "ServiceClosedError",
    "Settings",
    "SettingsError",
    "StoreError",
    "ToolkitError",
    "UnknownTargetError",
    "WorkerCrashError",
    "WorkerTimeoutError",
    "default_service",
]

_HOMES = {
    "Artifact": "request",
    "Bundle": "bundle",
    "BundleError": "errors",
    "CompileError": "errors",
    "CompileRequest": "request",
    "CompileService": "service",
    "DriverError": "errors",
    "HummingCompileError": "errors",
    "MissingFromBundleError": "errors",
    "MissingHeaderError": "errors",
    "RequestError": "errors",
    "ServiceClosedError": "errors",
    "Settings": "settings",
    "SettingsError": "errors",
    "StoreError": "errors",
    "ToolkitError": "errors",
    "UnknownTargetError": "errors",
    "WorkerCrashError": "errors",
    "WorkerTimeoutError": "errors",
    "default_service": "service",
}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: a compiler process starts many times, and needs few of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
