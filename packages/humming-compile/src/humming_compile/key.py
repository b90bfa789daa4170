"""The compile key: sha256 over everything that can change the compiled bytes, and nothing else.

Called by CompileService for every request.
Assumes that texts are given; a path, a time stamp, a package version or a host name never enters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from humming_compile.headers import Reached, reached_headers
from humming_compile.request import CompileRequest
from humming_compile.toolkit import Toolkit

# Raise this number when DEFAULT_OPTIONS, the order below or the meaning of the compiled bytes changes.
KEY_SCHEMA = 2

# `--no-cache`: the store of this package is the cache; NVRTC is not to keep a second one in the home folder.
DEFAULT_OPTIONS = ("-std=c++20", "-default-device", "--no-cache")


def compiler_options(request: CompileRequest) -> tuple[str, ...]:
    """All NVRTC options of a request, sorted, but for include folders. A request's own -std replaces the default."""
    kind = "compute" if request.output == "ptx" else "sm"
    architecture = f"--gpu-architecture={kind}_{request.target.removeprefix('sm_')}"
    own_standard = any(option.startswith(("-std=", "--std=")) for option in request.options)
    defaults = (option for option in DEFAULT_OPTIONS if not (own_standard and option.startswith("-std=")))
    return tuple(sorted({*defaults, *request.options, architecture}))


def request_digest(request: CompileRequest, reached: Reached) -> str:
    """64 hex digits over all of a request that can change the compiled bytes; the compiler is not part of it."""
    fields = [("schema", str(KEY_SCHEMA)), ("target", request.target), ("output", request.output)]
    fields += [("option", option) for option in compiler_options(request)]
    fields.append(("unit", request.unit_text))
    for name, text in reached.project.items():
        fields += [("header name", name), ("header text", text)]
    return _digest(fields)


def compile_key(
    request: CompileRequest, toolkit: Toolkit, reached: Reached | None = None, digest: str | None = None
) -> str:
    """64 hex digits. `reached`, and the `digest` of the request, may be given when the caller has them already.

    The version of the toolkit's headers enters only when the unit includes something that is not among its own
    headers, so cubins of units that need no toolkit header are shared between machines with and without them.
    """
    if reached is None:
        reached = reached_headers(request.unit_text, request.headers)
    fields = [
        ("request", digest or request_digest(request, reached)),
        ("nvrtc", toolkit.version_text),
        ("nvrtc build", toolkit.build),
    ]
    if reached.foreign:
        fields.append(("toolkit headers", toolkit.header_version))
    return _digest(fields)


def _digest(fields: Iterable[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for field, value in fields:
        # Lengths stand before the bytes, so that no two different lists of fields give the same stream.
        for part in (field.encode(), value.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()
