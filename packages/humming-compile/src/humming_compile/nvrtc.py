"""Compiles one unit with NVRTC; the only file that imports cuda.bindings.nvrtc.

Called by the worker process only, so that a crash of the compiler never ends the user's process.
Assumes Linux and a path to the NVRTC library that toolkit.py chose; needs no GPU and no driver.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from humming_compile.errors import HummingCompileError

# The name of every program: the user's name for a unit must not change the bytes that come out.
PROGRAM_NAME = "unit.cu"


class NvrtcError(HummingCompileError):
    """NVRTC refused a unit, or could not be loaded. `log` is its text."""

    log: str = ""


@attrs.frozen(kw_only=True)
class Compiled:
    """Output of one compile: the bytes, NVRTC's log, wall and CPU seconds."""

    data: bytes
    log: str
    seconds: float
    cpu_seconds: float


def _check(result: Any, call: str) -> None:
    if int(result) != 0:
        raise NvrtcError(f"{call} failed: {result.name}")


def _load_builtins(library: Path, version: tuple[int, int]) -> None:
    """Loads the builtins library from beside NVRTC, which by itself would look only where the loader looks."""
    builtins = library.with_name(f"libnvrtc-builtins.so.{version[0]}.{version[1]}")
    if builtins.exists():  # else NVRTC says what it misses when it compiles
        ctypes.CDLL(os.fspath(builtins), mode=os.RTLD_NOW | os.RTLD_GLOBAL)


class Nvrtc:
    """One loaded NVRTC library."""

    def __init__(self, library: str | os.PathLike[str]) -> None:
        try:
            # cuda-bindings looks first for a library that is loaded already, so this fixes which one is used.
            ctypes.CDLL(os.fspath(library), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
            from cuda.bindings import nvrtc  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except OSError as error:
            raise NvrtcError(f"cannot load NVRTC from {os.fspath(library)}: {error}") from error
        except ImportError as error:
            raise NvrtcError(f"cannot import cuda-bindings ({error}): pip install cuda-bindings") from error
        self._nvrtc: Any = nvrtc
        try:
            result, major, minor = nvrtc.nvrtcVersion()
        except RuntimeError as error:  # the bindings look for the library in their first call
            raise NvrtcError(f"cuda-bindings does not take NVRTC from {os.fspath(library)}: {error}") from error
        _check(result, "nvrtcVersion")
        self.version: tuple[int, int] = (int(major), int(minor))
        _load_builtins(Path(library), self.version)
        result, architectures = nvrtc.nvrtcGetSupportedArchs()
        _check(result, "nvrtcGetSupportedArchs")
        self.architectures: tuple[int, ...] = tuple(int(number) for number in architectures)

    def compile(
        self, unit_text: str, headers: Mapping[str, str], options: Sequence[str], output: str, name: str
    ) -> Compiled:
        """Compiles `unit_text`; `output` is "cubin" or "ptx", `name` is for messages. NvrtcError has the log."""
        nvrtc = self._nvrtc
        started, started_cpu = time.perf_counter(), time.process_time()
        result, program = nvrtc.nvrtcCreateProgram(
            unit_text.encode(),
            PROGRAM_NAME.encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [header.encode() for header in headers],
        )
        _check(result, "nvrtcCreateProgram")
        try:
            (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
            log = self._text(program, "ProgramLog").decode(errors="replace").strip()
            if int(result) != 0:
                raise NvrtcError(f"NVRTC does not compile {name!r} ({result.name})", log=log)
            data = self._text(program, "CUBIN") if output == "cubin" else self._text(program, "PTX").rstrip(b"\0")
        finally:
            nvrtc.nvrtcDestroyProgram(program)
        return Compiled(
            data=data,
            log=log,
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - started_cpu,
        )

    def _text(self, program: Any, kind: str) -> bytes:
        """The bytes of nvrtcGet<kind>, of the length that nvrtcGet<kind>Size tells."""
        result, size = getattr(self._nvrtc, f"nvrtcGet{kind}Size")(program)
        _check(result, f"nvrtcGet{kind}Size")
        data = bytearray(int(size))
        (result,) = getattr(self._nvrtc, f"nvrtcGet{kind}")(program, data)
        _check(result, f"nvrtcGet{kind}")
        return bytes(data) if kind != "ProgramLog" else bytes(data).rstrip(b"\0")
