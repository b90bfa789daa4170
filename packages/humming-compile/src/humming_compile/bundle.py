"""Bundles: one file with many compiled kernels and what their user wants beside them, for machines without a compiler.

Made by `write_bundle` and read by CompileService, which serves from bundles before anything else.
Assumes nothing of the machine that reads: kernels are found by the digest of their request, which no toolkit enters.

The file: 8 bytes of magic, the manifest's length (8 bytes, little-endian) and sha256 (32 bytes), the manifest (JSON),
then the data, where the manifest says. The same kernels and attachments give the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from humming_compile.errors import BundleError
from humming_compile.eviction import temporary_name
from humming_compile.request import CompileRequest
from humming_compile.store import Entry

BUNDLE_SCHEMA = 1
_PREFIX = struct.Struct("<8sQ32s")
_MAGIC = b"HUMBNDL\0"


@attrs.frozen(kw_only=True)
class Part:
    """Where some bytes lie in the file, counted from the end of the manifest, and their sha256."""

    offset: int
    length: int
    sha256: str


@attrs.frozen(kw_only=True)
class BundledKernel:
    """One kernel of a bundle: the digest of its request, its compile key, the NVRTC that made it, and its code."""

    digest: str
    key: str
    name: str
    target: str
    output: str
    nvrtc: str
    log: str
    code: Part


@attrs.frozen(kw_only=True)
class Bundle:
    """A bundle that was opened. The file is opened again for each read, so nothing is held across forks.

    kernels      by the digest of the request
    attachments  bytes that the maker gave along, by name: tuning tables, for example
    about        plain JSON values that the maker gave along: the model, versions of packages
    """

    path: Path
    kernels: Mapping[str, BundledKernel]
    attachments: Mapping[str, Part]
    about: Mapping[str, Any]
    _start: int

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bundle:
        """Reads the manifest. Raises BundleError for a file that is absent, cut short, changed or of another schema."""
        file_path = Path(path).absolute()
        try:
            with file_path.open("rb") as file:
                prefix = file.read(_PREFIX.size)
                if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
                    raise _broken(file_path, "is not a bundle")
                _, length, digest = _PREFIX.unpack(prefix)
                size = os.fstat(file.fileno()).st_size
                text = file.read(length) if length < size else b""
        except OSError as error:
            raise _broken(file_path, f"cannot be read ({error.strerror})") from error
        if hashlib.sha256(text).digest() != digest:
            raise _broken(file_path, "has a manifest that was cut short or changed")
        manifest = json.loads(text)
        if manifest.get("schema") != BUNDLE_SCHEMA:
            raise _broken(file_path, f"has schema {manifest.get('schema')!r}, wanted {BUNDLE_SCHEMA}")
        start = _PREFIX.size + length
        if size != start + manifest["data_bytes"]:
            raise _broken(file_path, f"has {size} bytes, wanted {start + manifest['data_bytes']}")
        kernels = [
            BundledKernel(code=Part(**fields.pop("code")), **fields) for fields in map(dict, manifest["kernels"])
        ]
        return cls(
            path=file_path,
            kernels={kernel.digest: kernel for kernel in kernels},
            attachments={name: Part(**fields) for name, fields in manifest["attachments"].items()},
            about=manifest["about"],
            start=start,
        )

    def read(self, digest: str) -> Entry | None:
        """The kernel of a request, verified; None where the bundle lacks it. BundleError where its bytes changed."""
        kernel = self.kernels.get(digest)
        if kernel is None:
            return None
        return Entry(
            key=kernel.key,
            target=kernel.target,
            output=kernel.output,
            data=self._bytes(kernel.code, f"kernel {kernel.name!r} for {kernel.target}"),
            log=kernel.log,
            nvrtc=kernel.nvrtc,
            name=kernel.name,
        )

    def attachment(self, name: str) -> bytes:
        """The bytes of an attachment, verified. Raises BundleError that lists the names for one that is not there."""
        if name not in self.attachments:
            held = ", ".join(sorted(self.attachments)) or "none"
            raise BundleError(f"the bundle {self.path} has no attachment {name!r}; it has {held}", path=str(self.path))
        return self._bytes(self.attachments[name], f"attachment {name!r}")

    def targets(self) -> tuple[str, ...]:
        """The targets that the kernels are for."""
        return tuple(sorted({kernel.target for kernel in self.kernels.values()}))

    def lack_of(self, request: CompileRequest) -> str:
        """Why the bundle has no kernel for this request, in words that follow "the bundle PATH"."""
        if not self.kernels:
            return "is empty"
        if request.target not in self.targets():
            return f"has kernels for {', '.join(self.targets())} only"
        same = [kernel for kernel in self.kernels.values() if kernel.target == request.target]
        if any(kernel.name == request.name for kernel in same):
            return "has a kernel of that name, made from other text or options: by other versions of the packages"
        return f"does not have it among its {len(same)} kernels for {request.target}"

    def _bytes(self, part: Part, what: str) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._start + part.offset)
                data = file.read(part.length)
        except OSError as error:
            raise _broken(self.path, f"cannot be read ({error.strerror})") from error
        if hashlib.sha256(data).hexdigest() != part.sha256:
            raise _broken(self.path, f"does not have the bytes of {what} that its manifest states")
        return data


def write_bundle(
    path: str | os.PathLike[str],
    kernels: Mapping[str, Entry],
    *,
    attachments: Mapping[str, bytes] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Bundle:
    """Writes kernels, by the digest of their request, whole or not at all; returns the bundle.

    `CompileService.write_bundle` compiles requests and calls this. `about` holds JSON values. Raises BundleError when
    the file cannot be written.
    """
    data = _Data()
    rows = []
    for digest, entry in sorted(kernels.items(), key=lambda item: (item[1].target, item[1].name, item[0])):
        row = {"digest": digest, "code": attrs.asdict(data.add(entry.data))}
        row |= {field: getattr(entry, field) for field in ("key", "name", "target", "output", "nvrtc", "log")}
        rows.append(row)
    attached = {name: attrs.asdict(data.add(content)) for name, content in sorted((attachments or {}).items())}
    manifest = {
        "schema": BUNDLE_SCHEMA,
        "about": dict(about or {}),
        "kernels": rows,
        "attachments": attached,
        "data_bytes": data.length,
    }
    text = json.dumps(manifest, sort_keys=True).encode()
    prefix = _PREFIX.pack(_MAGIC, len(text), hashlib.sha256(text).digest())
    file_path = Path(path).absolute()
    _write_whole(file_path, (prefix, text, *data.parts))
    return Bundle.open(file_path)


class _Data:
    """The data part of a file that is being made; equal bytes are kept once."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.length = 0
        self._known: dict[str, Part] = {}

    def add(self, content: bytes) -> Part:
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self._known:
            self._known[digest] = Part(offset=self.length, length=len(content), sha256=digest)
            self.parts.append(content)
            self.length += len(content)
        return self._known[digest]


def _write_whole(path: Path, parts: Iterable[bytes]) -> None:
    temporary = path.with_name(temporary_name(path.name))
    try:
        try:
            with temporary.open("xb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise BundleError(
            f"the bundle {path} cannot be written ({error.strerror}): name a file in a folder that exists, has room "
            "and can be written",
            path=str(path),
        ) from error


def _broken(path: Path, problem: str) -> BundleError:
    return BundleError(f"the bundle {path} {problem}: copy it again, or make it again", path=str(path))
