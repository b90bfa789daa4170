"""Compiles one unit with NVRTC; the only file that calls it, through its C interface.

Called by the worker process only, so that a crash of the compiler never ends the user's process.
Assumes Linux and a path to the NVRTC library that toolkit.py chose; needs no GPU and no driver.

Bindings in Python, attrs and the rest of this package are not imported: a worker is to be at work 50 ms after its
start.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from humming_compile.errors import HummingCompileError

# The name of every program: the user's name for a unit must not change the bytes that come out.
PROGRAM_NAME = "unit.cu"

# The functions that are used, with their parameters as nvrtc.h declares them; all return an nvrtcResult.
_INTEGER, _POINTER, _TEXT = ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p
_FUNCTIONS: dict[str, tuple[type[ctypes._SimpleCData[Any]], ...]] = {
    "nvrtcVersion": (_POINTER, _POINTER),
    "nvrtcGetNumSupportedArchs": (_POINTER,),
    "nvrtcGetSupportedArchs": (_POINTER,),
    "nvrtcCreateProgram": (_POINTER, _TEXT, _TEXT, _INTEGER, _POINTER, _POINTER),
    "nvrtcCompileProgram": (_POINTER, _INTEGER, _POINTER),
    "nvrtcDestroyProgram": (_POINTER,),
    **{f"nvrtcGet{kind}{size}": (_POINTER,) * 2 for kind in ("ProgramLog", "CUBIN", "PTX") for size in ("", "Size")},
}


class NvrtcError(HummingCompileError):
    """NVRTC refused a unit, or could not be loaded. `log` is its text."""

    log: str = ""


class Compiled(NamedTuple):
    """Output of one compile: the bytes, NVRTC's log, wall and CPU seconds."""

    data: bytes
    log: str
    seconds: float
    cpu_seconds: float


class Nvrtc:
    """One loaded NVRTC library."""

    def __init__(self, library: str | os.PathLike[str]) -> None:
        path = Path(library)
        try:
            self._library = ctypes.CDLL(os.fspath(path), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
            for name, parameters in _FUNCTIONS.items():
                function = self._library[name]
                function.argtypes = parameters
                function.restype = _INTEGER
                setattr(self._library, name, function)
            self._library.nvrtcGetErrorString.argtypes = (_INTEGER,)
            self._library.nvrtcGetErrorString.restype = _TEXT
        except (OSError, AttributeError) as error:
            raise NvrtcError(f"cannot load NVRTC from {path}: {error}") from error
        major, minor, count = _INTEGER(), _INTEGER(), _INTEGER()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version: tuple[int, int] = (major.value, minor.value)
        _load_builtins(path, self.version)
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (_INTEGER * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        self.architectures: tuple[int, ...] = tuple(numbers)

    def compile(
        self, unit_text: str, headers: Mapping[str, str], options: Sequence[str], output: str, name: str
    ) -> Compiled:
        """Compiles `unit_text`; `output` is "cubin" or "ptx", `name` is for messages. NvrtcError has the log."""
        started, started_cpu = time.perf_counter(), time.process_time()
        program = _POINTER()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            unit_text.encode(),
            PROGRAM_NAME.encode(),
            len(headers),
            _texts(headers.values()),
            _texts(headers),
        )
        try:
            code = self._library.nvrtcCompileProgram(program, len(options), _texts(options))
            log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if code:
                raise NvrtcError(f"NVRTC does not compile {name!r} ({self._name(code)})", log=log)
            data = self._bytes(program, "CUBIN") if output == "cubin" else self._bytes(program, "PTX").rstrip(b"\0")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return Compiled(
            data=data,
            log=log,
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - started_cpu,
        )

    def _bytes(self, program: ctypes.c_void_p, kind: str) -> bytes:
        """The bytes of nvrtcGet<kind>, of the length that nvrtcGet<kind>Size tells."""
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{kind}", program, data)
        return data.raw

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise NvrtcError(f"{function} failed: {self._name(code)}")

    def _name(self, code: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(code)
        return text.decode(errors="replace")


def _texts(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    """An array of C strings."""
    encoded = [text.encode() for text in texts]
    return (_TEXT * len(encoded))(*encoded)


def _load_builtins(library: Path, version: tuple[int, int]) -> None:
    """Loads the builtins library from beside NVRTC, which by itself would look only where the loader looks."""
    builtins = library.with_name(f"libnvrtc-builtins.so.{version[0]}.{version[1]}")
    if builtins.exists():  # else NVRTC says what it misses when it compiles
        ctypes.CDLL(os.fspath(builtins), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
