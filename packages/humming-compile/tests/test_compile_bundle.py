"""Bundles: what goes in comes out on a machine without compiler and cache, and what is missing is said exactly.

Run by pytest.
Assumes the stub compiler, except for the last test, which uses the NVRTC of this environment.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import struct
from pathlib import Path

import attrs
import humming_compile.bundle as bundle_module
import pytest
from humming_compile import (
    Bundle,
    BundleError,
    CompileRequest,
    CompileService,
    MissingFromBundleError,
    Settings,
    ToolkitError,
)

HEADERS = {"humming/a.cuh": "int a;", "humming/b.cuh": "int b;"}


def unit(name: str, target: str = "sm_90a", **more: object) -> CompileRequest:
    return CompileRequest(
        unit_text=f"#include <humming/a.cuh>\nint {name};", headers=HEADERS, target=target, name=name, **more
    )


REQUESTS = [unit("one"), unit("two"), unit("one", "sm_80"), unit("two", output="ptx")]


@pytest.fixture
def path(stub, tmp_path: Path) -> Path:
    """A bundle of four kernels and a table."""
    made = tmp_path / "with space é" / "model.humming"
    made.parent.mkdir()
    stub.service().write_bundle(made, REQUESTS, attachments={"tuning.json": b"[1]"}, about={"model": "small"})
    return made


def bare(tmp_path: Path, *bundles: Path) -> CompileService:
    """The service of a machine with neither a compiler nor a folder that can be written."""
    empty = tmp_path / "no cuda here"
    empty.mkdir(exist_ok=True)
    settings = Settings(cache_folder=Path("/proc/no/folder"), workers=1, cuda_folder=empty, bundle_files=bundles)
    return CompileService(settings, command=("/bin/false",))


def test_a_bare_machine_is_served_from_the_bundle_alone(stub, path: Path, tmp_path: Path) -> None:
    service = bare(tmp_path, path)
    for request in REQUESTS:
        expected, got = stub.service().compile(request), service.compile(request)
        assert (got.data, got.key, got.origin, got.log) == (expected.data, expected.key, "bundle", expected.log)
        assert service.compile(request).origin == "memory"
    assert service._pools == {}, "no compiler is started"
    assert [item.origin for item in bare(tmp_path, path).compile_many(REQUESTS)] == ["bundle"] * 4


def test_headers_that_are_not_reached_do_not_count(path: Path, tmp_path: Path) -> None:
    edited = attrs.evolve(REQUESTS[0], headers={**HEADERS, "humming/b.cuh": "int edited;"})
    assert bare(tmp_path, path).compile(edited).origin == "bundle"


def test_the_environment_names_bundles(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    values = {"HUMMING_COMPILE_BUNDLES": f"{path}{os.pathsep}{other}", "HUMMING_COMPILE_CACHE_DIR": str(tmp_path)}
    assert Settings.from_environment(values).bundle_files == (path, other)


def test_what_is_kept_beside_the_kernels(path: Path) -> None:
    bundle = Bundle.open(path)
    assert bundle.attachment("tuning.json") == b"[1]" and bundle.about == {"model": "small"}
    assert bundle.targets() == ("sm_80", "sm_90a") and len(bundle.kernels) == 4
    assert {kernel.nvrtc for kernel in bundle.kernels.values()} == {"13.0"}
    with pytest.raises(BundleError, match=r"no attachment 'other'; it has tuning\.json"):
        bundle.attachment("other")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (unit("one", "sm_120a"), "has kernels for sm_80, sm_90a only"),
        (unit("three"), "does not have it among its 3 kernels for sm_90a"),
        (unit("one", options=("-DA=1",)), "has a kernel of that name, made from other text or options"),
        (
            attrs.evolve(REQUESTS[0], headers={"humming/a.cuh": "int edited;"}),
            "has a kernel of that name, made from other text or options",
        ),
    ],
)
def test_what_is_missing_is_said_exactly(path: Path, tmp_path: Path, request_: CompileRequest, words: str) -> None:
    with pytest.raises(MissingFromBundleError, match=words) as caught:
        bare(tmp_path, path).compile(request_)
    error = caught.value
    assert f"{request_.name!r} for {request_.target} is missing" in str(error) and str(path) in str(error)
    assert "no libnvrtc under" in str(error) and "HUMMING_COMPILE_BUNDLES" in str(error) and "\n" not in str(error)
    assert (error.name, error.target, error.bundles) == (request_.name, request_.target, (str(path),))
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_without_bundles_the_error_is_about_the_compiler(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="no libnvrtc"):
        bare(tmp_path).compile(unit("one"))


def test_several_bundles_and_a_compiler(stub, path: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.humming"
    stub.service().write_bundle(second, [unit("three")])
    service = stub.service(bundle_files=(path, second), cache_folder=tmp_path / "another cache")
    names = [*REQUESTS, unit("three"), unit("four")]
    assert [service.compile(request).origin for request in names] == ["bundle"] * 5 + ["compiled"]
    assert len(list((tmp_path / "another cache").iterdir())) == 1, "what a bundle has is not written again"
    with pytest.raises(MissingFromBundleError) as caught:
        bare(tmp_path, path, second).compile(unit("five"))
    assert caught.value.bundles == (str(path), str(second))


def test_the_same_content_gives_the_same_bytes(stub, path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    more = {"attachments": {"tuning.json": b"[1]"}, "about": {"model": "small"}}
    stub.service().write_bundle(again, reversed(REQUESTS), **more)
    assert again.read_bytes() == path.read_bytes()


def test_equal_bytes_are_kept_once(stub, tmp_path: Path) -> None:
    sizes = []
    for names in (("a",), ("a", "b", "c")):
        attachments = {name: bytes(50_000) for name in names}
        stub.service().write_bundle(tmp_path / "file", [], attachments=attachments)
        sizes.append((tmp_path / "file").stat().st_size)
        assert all(Bundle.open(tmp_path / "file").attachment(name) == bytes(50_000) for name in names)
    assert sizes[1] - sizes[0] < 1000


def with_manifest(content: bytes, text: bytes) -> bytes:
    old = struct.unpack_from("<8sQ", content)[1]
    return struct.pack("<8sQ32s", content[:8], len(text), hashlib.sha256(text).digest()) + text + content[48 + old :]


BAD_FILES = {
    "empty": (lambda content: b"", "is not a bundle"),
    "garbage": (lambda content: os.urandom(500), "is not a bundle"),
    "head only": (lambda content: content[:40], "is not a bundle"),
    "manifest cut": (lambda content: content[:200], "manifest that was cut short"),
    "manifest changed": (lambda content: content.replace(b'"one"', b'"two"', 1), "manifest that was cut short"),
    "a huge length": (lambda content: content[:8] + b"\xff" * 8 + content[16:], "manifest that was cut short"),
    "data cut": (lambda content: content[:-1], r"has \d+ bytes, wanted \d+"),
    "longer": (lambda content: content + b"x", r"has \d+ bytes, wanted \d+"),
    "schema": (lambda content: with_manifest(content, b'{"schema": 99}'), "has schema 99, wanted 1"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_with_its_name(path: Path, tmp_path: Path, kind: str) -> None:
    spoil, words = BAD_FILES[kind]
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BundleError, match=words) as caught:
        bare(tmp_path, path).compile(REQUESTS[0])
    assert str(path) in str(caught.value) and caught.value.path == str(path) and "\n" not in str(caught.value)


def test_changed_code_is_never_served(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # the last byte is of the attachment
    path.write_bytes(bytes([*content[:-200], content[-200] ^ 1, *content[-199:]]))
    service, refused = bare(tmp_path, path), 0
    for request in REQUESTS:
        try:
            service.compile(request)
        except BundleError as error:
            refused += "does not have the bytes of kernel" in str(error)
    assert refused == 1


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read") as caught:
        bare(tmp_path, tmp_path / "absent").compile(REQUESTS[0])
    assert str(tmp_path / "absent") in str(caught.value)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_bundle_is_written_whole_or_not_at_all(stub, path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(bundle_module.os, "fsync", fail)
    with pytest.raises(BundleError, match="cannot be written") as caught:
        bundle_module.write_bundle(path, {}, attachments={"new": b"x"})
    assert caught.value.path == str(path) and os.listdir(path.parent) == [path.name]
    assert path.read_bytes() == before
    with pytest.raises(BundleError, match="cannot be written"):
        bundle_module.write_bundle(path.parent / "absent folder" / "file", {})


def test_a_child_reads_beside_its_parent(path: Path) -> None:
    bundle = Bundle.open(path)
    digests = list(bundle.kernels)
    child = os.fork()
    if child == 0:
        good = all(bundle.read(digest) is not None for _ in range(50) for digest in digests)
        os._exit(0 if good else 1)
    assert all(bundle.read(digest) is not None for _ in range(50) for digest in digests)
    assert os.waitpid(child, 0)[1] == 0


def test_real_cubins(real_service: CompileService, tmp_path: Path) -> None:
    requests = [
        CompileRequest(unit_text='extern "C" __global__ void scale(float* d) { *d *= 2; }', target=target, name="scale")
        for target in ("sm_80", "sm_90a")
    ]
    told: list[tuple[int, int]] = []
    bundle = real_service.write_bundle(
        tmp_path / "file", requests, progress=lambda done, total, _: told.append((done, total))
    )
    assert told == [(1, 2), (2, 2)] and bundle.targets() == ("sm_80", "sm_90a")
    service = bare(tmp_path, tmp_path / "file")
    assert [service.compile(request).data[:4] for request in requests] == [b"\x7fELF"] * 2
