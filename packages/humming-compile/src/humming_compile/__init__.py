"""CUDA source text in, compiled code out, kept on disk: see CompileService.

Imported by users; imports no CUDA library, starts no process and touches no disk.
Assumes Linux and Python 3.10 or later.
"""

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
