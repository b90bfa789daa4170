"""One unit through NVRTC with ptxas' own report: registers, spills, shared memory, warnings.

Called by the tests of humming-kernels and by benchmarks.sass, which must not need humming_compile.
Assumes cuda-bindings and an NVRTC library that it finds; no GPU and no driver.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

# What humming_compile passes as well, so that both see the same kernels.
OPTIONS = ("-std=c++20", "-default-device", "--ptxas-options=-v")

_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STATIC_SHARED = re.compile(r"(\d+) bytes smem")
# ptxas serialises wgmma whose registers it cannot keep in flight, and says so with these numbers.
_SERIALISED = re.compile(r"^.*\(C75(?:1[0-7])\).*$|^.*wgmma.*serializ.*$", re.MULTILINE | re.IGNORECASE)


class NvrtcRefusedError(Exception):
    """NVRTC does not compile a unit; the text is its log."""


@attrs.frozen(kw_only=True)
class Built:
    """A cubin and what ptxas said about its one kernel. Bytes of spills count stores and loads."""

    cubin: bytes
    log: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    static_shared_bytes: int
    serialised: tuple[str, ...]


class DirectNvrtc:
    """The NVRTC that cuda-bindings finds. Raises ImportError or RuntimeError where there is none."""

    def __init__(self) -> None:
        from cuda.bindings import nvrtc

        self._nvrtc: Any = nvrtc
        _, major, minor = nvrtc.nvrtcVersion()
        self.version = (int(major), int(minor))
        _, architectures = nvrtc.nvrtcGetSupportedArchs()
        self.architectures = frozenset(int(number) for number in architectures)

    def knows(self, target: str) -> bool:
        """Whether this NVRTC compiles for a target such as "sm_90a"."""
        return int(target.removeprefix("sm_").rstrip("af")) in self.architectures

    def build(self, unit_text: str, headers: Mapping[str, str], target: str, options: Iterable[str] = ()) -> Built:
        """The cubin of a unit. Raises NvrtcRefusedError with the log."""
        log, cubin = self._compile(unit_text, headers, (f"--gpu-architecture={target}", *options), "CUBIN")
        spills = [tuple(map(int, found)) for found in _SPILLS.findall(log)]
        return Built(
            cubin=cubin,
            log=log,
            registers=max(map(int, _REGISTERS.findall(log)), default=0),
            stack_bytes=max((stack for stack, _, _ in spills), default=0),
            spill_bytes=sum(stores + loads for _, stores, loads in spills),
            static_shared_bytes=max(map(int, _STATIC_SHARED.findall(log)), default=0),
            serialised=tuple(_SERIALISED.findall(log)),
        )

    def ptx(self, unit_text: str, headers: Mapping[str, str], target: str) -> str:
        """The PTX of a unit. Raises NvrtcRefusedError with the log."""
        option = f"--gpu-architecture={target.replace('sm_', 'compute_')}"
        return self._compile(unit_text, headers, (option,), "PTX")[1].rstrip(b"\0").decode()

    def _compile(
        self, unit_text: str, headers: Mapping[str, str], options: Iterable[str], output: str
    ) -> tuple[str, bytes]:
        nvrtc = self._nvrtc
        _, program = nvrtc.nvrtcCreateProgram(
            unit_text.encode(),
            b"unit.cu",
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
        try:
            arguments = [option.encode() for option in (*OPTIONS, *options)]
            (result,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
            log = self._text(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if int(result) != 0:
                raise NvrtcRefusedError(log)
            return log, self._text(program, output)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _text(self, program: Any, kind: str) -> bytes:
        _, size = getattr(self._nvrtc, f"nvrtcGet{kind}Size")(program)
        data = bytearray(int(size))
        getattr(self._nvrtc, f"nvrtcGet{kind}")(program, data)
        return bytes(data)


@functools.cache
def direct_nvrtc() -> DirectNvrtc | None:
    """The NVRTC of this environment, None where there is none."""
    try:
        return DirectNvrtc()
    except (ImportError, RuntimeError):
        return None
