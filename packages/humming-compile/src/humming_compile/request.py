"""What to compile and what comes back: plain frozen data.

Made by callers of CompileService, read by key, pool and service.
Assumes that all project headers are given as text; nothing here touches the disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import attrs

from humming_compile.errors import RequestError

Output = Literal["cubin", "ptx"]
Origin = Literal["memory", "bundle", "disk", "compiled"]

OUTPUTS: tuple[str, ...] = ("cubin", "ptx")
_TARGET = re.compile(r"sm_[1-9][0-9]{1,2}[af]?\Z")
# Options that this package sets itself, or that would bring text into a unit that the compile key does not cover.
_REFUSED_OPTION = re.compile(
    r"(-I|--include-path|-include|--pre-include|-arch|--gpu-architecture|-dlto|--dlto|-rdc|--relocatable-device-code"
    r"|-pch|--pch|--create-pch|--use-pch|--pch-dir|-time|--time|-fdevice-time-trace|--fdevice-time-trace)"
)


def _check_target(_: object, __: object, target: str) -> None:
    if not isinstance(target, str) or not _TARGET.match(target):
        raise RequestError(f"target is {target!r}, wanted a name like 'sm_80', 'sm_90a' or 'sm_100f'")


def _check_output(_: object, __: object, output: str) -> None:
    if output not in OUTPUTS:
        raise RequestError(f"output is {output!r}, wanted one of {', '.join(map(repr, OUTPUTS))}")


def _check_options(_: object, __: object, options: tuple[str, ...]) -> None:
    for option in options:
        if not isinstance(option, str) or not option.startswith("-") or any(c.isspace() for c in option.strip()):
            raise RequestError(
                f"option {option!r} is not one word that begins with '-': options are sorted, so write '-DNAME=1', "
                "never '-D NAME=1'"
            )
        if _REFUSED_OPTION.match(option):
            raise RequestError(
                f"option {option!r} cannot be given: the target and the output are fields of the request, and headers "
                "are given as text in `headers`"
            )


def _words(options: Iterable[str]) -> tuple[str, ...]:
    return tuple(options)


@attrs.frozen(kw_only=True)
class CompileRequest:
    """One unit of CUDA source for one target.

    unit_text  the text of the unit
    headers    name as it is included ("humming/base/config.cuh") -> text; may hold more than the unit reaches
    target     "sm_90a", "sm_80", ...
    options    NVRTC options beside the defaults, one word each, for example "-lineinfo" or "-DNAME=1"
    output     "cubin" (machine code) or "ptx" (text)
    name       used in messages only; not part of the compile key
    """

    unit_text: str
    headers: Mapping[str, str] = attrs.field(factory=dict)
    target: str = attrs.field(validator=_check_target)
    options: tuple[str, ...] = attrs.field(default=(), converter=_words, validator=_check_options)
    output: Output = attrs.field(default="cubin", validator=_check_output)
    name: str = "kernel"


@attrs.frozen(kw_only=True)
class Artifact:
    """Compiled code.

    data         the cubin, or the PTX text in UTF-8 (NVRTC ends it with a zero byte, which is kept off)
    key          compile key, 64 hex digits
    origin       "memory", "bundle", "disk" or "compiled": where this call got it from
    seconds      wall time of this call
    cpu_seconds  CPU time the compiler took when it made the data, whenever that was
    log          NVRTC's log (warnings) of that compile
    """

    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")
    key: str
    origin: Origin
    seconds: float
    cpu_seconds: float
    log: str
