"""Turns what NVRTC says of a unit it refused into one of this package's errors, with what to do about it.

Called by CompileService.
Assumes NVRTC's own words for a missing header, an unknown target and a missing builtins library.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from humming_compile.errors import (
    CompileError,
    HummingCompileError,
    MissingHeaderError,
    ToolkitError,
    UnknownTargetError,
)
from humming_compile.headers import Reached
from humming_compile.request import CompileRequest
from humming_compile.settings import KEEP_DIR
from humming_compile.toolkit import INSTALL_HINT, Toolkit, package_of_header

_NO_HEADER = re.compile(r'(?:cannot|could not) open source file "([^"]+)"')


def explain_failure(
    request: CompileRequest,
    toolkit: Toolkit,
    message: str,
    log: str,
    *,
    known_targets: Callable[[], tuple[str, ...]],
    keep: Callable[[], str],
) -> HummingCompileError:
    """The error for a unit that `toolkit` did not compile: its `message` in few words and its `log`.

    `keep` saves the unit and returns the folder, or "" where that is not wanted.
    """
    if "libnvrtc-builtins" in log:
        return ToolkitError(
            f"NVRTC at {toolkit.library} misses its builtins library: reinstall it ({INSTALL_HINT})",
            package="nvidia-cuda-nvrtc",
        )
    fields = {"name": request.name, "target": request.target, "log": log}
    if "--gpu-architecture" in log or "--nv_arch" in log:
        known = known_targets()
        return UnknownTargetError(
            f"NVRTC {toolkit.version_text} does not know the target {request.target!r} of {request.name!r}; it "
            f"knows {', '.join(known)} (some also with 'a' or 'f'): install a newer nvidia-cuda-nvrtc",
            known=known,
            **fields,
        )
    missing = _NO_HEADER.search(log)
    if missing is not None:
        return _missing_header(request, toolkit, missing[1], fields)
    kept_at = keep()
    kept = f"\nThe unit was saved in {kept_at}" if kept_at else f"\n(set {KEEP_DIR} to a folder to save the unit)"
    return CompileError(
        f"{message or 'not compiled'} for {request.target}, NVRTC {toolkit.version_text}:\n{log}{kept}",
        kept_at=kept_at,
        **fields,
    )


def _missing_header(request: CompileRequest, toolkit: Toolkit, header: str, fields: dict[str, str]) -> CompileError:
    package = package_of_header(header, toolkit.version[0])
    if not package:
        text = (
            f"{request.name!r} includes {header!r}, which is not among the headers of the request and is no CUDA "
            "header: add its text to `headers` (NVRTC has no headers of the C and C++ standard library)"
        )
    else:
        places = ", ".join(map(str, toolkit.include_folders)) or "no folder"
        text = (
            f"{request.name!r} needs the header {header!r}, which was not found (CUDA {toolkit.version[0]} headers "
            f"were found in {places}): pip install '{package}>={toolkit.version[0]},<{toolkit.version[0] + 1}'"
        )
    return MissingHeaderError(text, header=header, package=package, **fields)


def keep_unit(request: CompileRequest, reached: Reached, keep_folder: Path | None) -> str:
    """Saves a unit and the headers it reaches under `keep_folder`; returns the unit's folder, "" where not saved."""
    if keep_folder is None:
        return ""
    word = re.sub(r"[^A-Za-z0-9_.-]", "_", request.name)[:80]
    folder = keep_folder.absolute() / f"{word}-{request.target}"
    with contextlib.suppress(OSError):
        for name, text in {f"{word}.cu": request.unit_text, **reached.project}.items():
            path = folder / os.path.normpath("/" + name).lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return str(folder)
    return ""
