"""The compile key: sha256 over everything that can change the compiled bytes, and nothing else.

Called by CompileService for every request.
Assumes that texts are given; a path, a time stamp, a package version or a host name never enters.
"""

from __future__ import annotations

import hashlib

from humming_compile.headers import Reached, reached_headers
from humming_compile.request import CompileRequest
from humming_compile.toolkit import Toolkit

# Raise this number when DEFAULT_OPTIONS, the order below or the meaning of the compiled bytes changes.
KEY_SCHEMA = 1

# `--no-cache`: the store of this package is the cache; NVRTC is not to keep a second one in the home folder.
DEFAULT_OPTIONS = ("-std=c++20", "-default-device", "--no-cache")


def compiler_options(request: CompileRequest) -> tuple[str, ...]:
    """All NVRTC options of a request, sorted, but for include folders. A request's own -std replaces the default."""
    kind = "compute" if request.output == "ptx" else "sm"
    architecture = f"--gpu-architecture={kind}_{request.target.removeprefix('sm_')}"
    own_standard = any(option.startswith(("-std=", "--std=")) for option in request.options)
    defaults = (option for option in DEFAULT_OPTIONS if not (own_standard and option.startswith("-std=")))
    return tuple(sorted({*defaults, *request.options, architecture}))


def compile_key(request: CompileRequest, toolkit: Toolkit, reached: Reached | None = None) -> str:
    """64 hex digits. `reached` may be given when the caller has it already.

    The version of the toolkit's headers enters only when the unit includes something that is not among its own
    headers, so cubins of units that need no toolkit header are shared between machines with and without them.
    """
    if reached is None:
        reached = reached_headers(request.unit_text, request.headers)
    digest = hashlib.sha256()

    def add(field: str, value: str) -> None:
        # Lengths stand before the bytes, so that no two different lists of fields give the same stream.
        for part in (field.encode(), value.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)

    add("schema", str(KEY_SCHEMA))
    add("target", request.target)
    add("output", request.output)
    add("nvrtc", toolkit.version_text)
    add("nvrtc build", toolkit.build)
    if reached.foreign:
        add("toolkit headers", toolkit.header_version)
    for option in compiler_options(request):
        add("option", option)
    add("unit", request.unit_text)
    for name, text in reached.project.items():
        add("header name", name)
        add("header text", text)
    return digest.hexdigest()
