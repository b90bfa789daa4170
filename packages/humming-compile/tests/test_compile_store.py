"""The store: whole entries or none, bad ones rebuilt with one warning, folders that cannot be written (report 15).

Run by pytest.
Assumes POSIX permissions; as root, the tests of permissions run as another user in a process of their own.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import threading
from pathlib import Path

import attrs
import humming_compile.store as store_module
import pytest
from humming_compile import CompileRequest, CompileService, StoreError
from humming_compile.store import Entry, Store

KEY = "0123456789abcdef" * 4
ENTRY = Entry(
    key=KEY, target="sm_90a", output="cubin", data=bytes(range(256)) * 40, log="note", cpu_seconds=0.5, nvrtc="13.0"
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "with space é" / "cache")


def read(store: Store) -> Entry | None:
    return store.read(KEY, "sm_90a", "cubin")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_entry_round_trips(store: Store) -> None:
    assert read(store) is None and not store.folder.exists(), "reading makes no folder"
    store.publish(ENTRY)
    assert read(store) == ENTRY
    assert os.listdir(store.folder) == [f"{KEY}.entry"], "no temporary file is left"


def rewrite_head(content: bytes, **fields: object) -> bytes:
    head, _, data = content.partition(b"\n")
    return json.dumps({**json.loads(head), **fields}).encode() + b"\n" + data


BAD_ENTRIES = {
    "empty": lambda content: b"",
    "truncated head": lambda content: content[:20],
    "truncated data": lambda content: content[:-1],
    "head only": lambda content: content.partition(b"\n")[0],
    "longer": lambda content: content + b"x",
    "garbage": lambda content: os.urandom(500),
    "zeros": lambda content: bytes(len(content)),
    "one bit": lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
    "a list": lambda content: b"[1]\n" + content,
    "another target": lambda content: rewrite_head(content, target="sm_80"),
    "another output": lambda content: rewrite_head(content, output="ptx"),
    "another schema": lambda content: rewrite_head(content, schema=0),
    "another key": lambda content: rewrite_head(content, key="f" * 64),
    "another digest": lambda content: rewrite_head(content, sha256="0" * 64),
}


@pytest.mark.parametrize("kind", BAD_ENTRIES)
def test_a_bad_entry_is_rebuilt_with_one_warning(stub, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    request = CompileRequest(unit_text="int x;", target="sm_90a")
    good = stub.service().compile(request)
    path = stub.service().store.path(good.key)
    content = path.read_bytes()
    path.write_bytes(BAD_ENTRIES[kind](content))

    again = stub.service().compile(request)
    assert (again.origin, again.data) == ("compiled", good.data)
    assert len(warnings(caplog)) == 1 and str(path) in warnings(caplog)[0]
    assert "compiled again" in warnings(caplog)[0]
    assert path.read_bytes() == content, "the entry is whole again"
    assert stub.service().compile(request).origin == "disk"
    assert len(stub.compiled()) == 2


def test_an_entry_that_cannot_be_read_is_rebuilt_with_one_warning(stub, caplog: pytest.LogCaptureFixture) -> None:
    request = CompileRequest(unit_text="int x;", target="sm_90a")
    service = stub.service()
    path = service.store.path(service.compile(request).key)
    path.unlink()
    path.symlink_to(path.name)  # a loop: reading it fails for root too
    assert stub.service().compile(request).origin == "compiled"
    assert len(warnings(caplog)) == 1 and "cannot be read" in warnings(caplog)[0]
    assert stub.service().compile(request).origin == "disk"


def test_readers_never_see_a_part(store: Store) -> None:
    """Writers publish big entries over each other while a reader reads."""
    entries = [attrs.evolve(ENTRY, data=bytes([number]) * 3_000_000) for number in range(4)]
    store.publish(entries[0])
    done = threading.Event()
    seen: list[object] = []

    def read_all() -> None:
        while not done.is_set():
            found = read(store)
            seen.append(None if found is None else (found.data[0], len(set(found.data)), len(found.data)))

    reader = threading.Thread(target=read_all)
    reader.start()
    for _ in range(10):
        for entry in entries:
            store.publish(entry)
    done.set()
    reader.join()
    assert seen and all(item is not None and item[1:] == (1, 3_000_000) for item in seen)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_told_and_the_data_is_served(
    stub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store_module.os, "fsync", fail)
    artifact = stub.service().compile(CompileRequest(unit_text="int x;", target="sm_90a"))
    assert artifact.origin == "compiled" and artifact.data
    assert len(warnings(caplog)) == 1 and "not kept" in warnings(caplog)[0]
    assert os.listdir(stub.cache) == [], "neither entry nor temporary file"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_folder_that_cannot_be_written_is_named(stub, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Field report 15: hits are served from a populated folder without writing; a miss names folder and variable."""
    here = CompileRequest(unit_text="int x;", target="sm_90a")
    stub.service().compile(here)
    before = {path.name: path.stat() for path in stub.cache.iterdir()}
    real_open, real_mkdir = os.open, os.mkdir

    def no_writing(path, flags, *rest, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(code, os.strerror(code))
        return real_open(path, flags, *rest, **options)

    def no_folders(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store_module.os, "open", no_writing)
    monkeypatch.setattr(store_module.os, "mkdir", no_folders)
    service = stub.service()
    assert service.compile(here).origin == "disk"
    with pytest.raises(StoreError, match="HUMMING_COMPILE_CACHE_DIR") as caught:
        service.compile(CompileRequest(unit_text="int y;", target="sm_90a"))
    monkeypatch.setattr(store_module.os, "open", real_open)
    monkeypatch.setattr(store_module.os, "mkdir", real_mkdir)
    assert str(stub.cache) in str(caught.value) and caught.value.folder == str(stub.cache)
    assert "\n" not in str(caught.value)
    assert {path.name: path.stat() for path in stub.cache.iterdir()} == before
    assert len(stub.compiled()) == 1, "nothing is compiled for a folder that cannot keep it"


@pytest.mark.parametrize("home", [None, "/nonexistent", "empty"])
def test_only_the_named_folder_is_used(stub, run_script, tmp_path: Path, home: str | None) -> None:
    """Field report 15: a container without a home that can be written."""
    empty = tmp_path / "home"
    empty.mkdir()
    cache = tmp_path / "named by the variable"
    script = """
        from humming_compile import CompileRequest, CompileService, Settings
        from pathlib import Path
        from humming_compile.toolkit import Toolkit
        toolkit = Toolkit(library=Path("x"), version=(13, 0), build="stub", origin="test")
        service = CompileService(toolkit=toolkit, command=COMMAND)
        print(service.compile(CompileRequest(unit_text="int x;", target="sm_90a")).origin)
    """.replace("COMMAND", repr(stub.command()))
    environment = {
        "HOME": str(empty) if home == "empty" else home,
        "XDG_CACHE_HOME": None,
        "HUMMING_COMPILE_CACHE_DIR": str(cache),
    }
    assert run_script(script, environment=environment).stdout.split() == ["compiled"]
    assert run_script(script, environment=environment).stdout.split() == ["disk"]
    assert list(empty.iterdir()) == []
    assert [path.suffix for path in cache.iterdir()] == [".entry"]


def test_the_lock_excludes_and_goes_away(store: Store) -> None:
    with store.lock(KEY, 1) as first, store.lock(KEY, 0.05) as second, store.lock("f" * 64, 1) as other:
        assert (first, second, other) == (True, False, True)
    assert os.listdir(store.folder) == []


def test_a_lock_is_handed_over(store: Store) -> None:
    got = []

    def wait() -> None:
        with store.lock(KEY, 10) as held:
            got.append(held)

    with store.lock(KEY, 1):
        waiter = threading.Thread(target=wait)
        waiter.start()
        waiter.join(0.1)
        assert got == []
    waiter.join(10)
    assert got == [True]


def test_without_locks_everything_still_works(stub, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(store_module.fcntl, "flock", no_locks)
    request = CompileRequest(unit_text="int x;", target="sm_90a")
    assert stub.service().compile(request).origin == "compiled"
    assert stub.service().compile(request).origin == "disk"


def test_a_cache_path_that_is_a_file_is_named(stub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="HUMMING_COMPILE_CACHE_DIR"):
        stub.service(cache_folder=tmp_path / "file").compile(CompileRequest(unit_text="int x;", target="sm_90a"))


def test_another_machine_replaces_an_entry_while_it_is_opened(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: the name was looked up, then the file behind it went away; the next look-up finds the new one."""
    store.publish(ENTRY)
    real, failures = Path.open, [errno.ESTALE]

    def stale_once(self: Path, *rest: object, **options: object):
        if failures:
            raise OSError(failures.pop(), "Stale file handle")
        return real(self, *rest, **options)

    monkeypatch.setattr(Path, "open", stale_once)
    assert read(store) == ENTRY


def test_an_entry_that_disappears_between_opening_and_reading(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open file stays readable after another process removed its name."""
    store.publish(ENTRY)
    real = Path.open

    def and_remove(self: Path, *rest: object, **options: object):
        file = real(self, *rest, **options)
        self.unlink()
        return file

    monkeypatch.setattr(Path, "open", and_remove)
    assert read(store) == ENTRY
    monkeypatch.undo()
    assert read(store) is None


def test_a_winner_that_is_not_seen_yet_costs_a_compile_only(stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: the lock was waited for, the winner renamed its entry, and this machine does not see the name yet."""
    request = CompileRequest(unit_text="int x;", target="sm_90a")
    first = stub.service().compile(request)
    monkeypatch.setattr(Store, "read", lambda *_, **__: None)
    again = stub.service().compile(request)
    assert (again.origin, again.data) == ("compiled", first.data)
    monkeypatch.undo()
    assert stub.service().compile(request).origin == "disk"


def test_a_folder_that_is_removed_while_something_compiles_is_made_again(
    stub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = stub.service()
    real = CompileService._compile

    def and_remove(self: CompileService, *rest: object):
        entry = real(self, *rest)
        shutil.rmtree(stub.cache)
        return entry

    monkeypatch.setattr(CompileService, "_compile", and_remove)
    assert service.compile(CompileRequest(unit_text="int x;", target="sm_90a")).origin == "compiled"
    assert [path.suffix for path in stub.cache.iterdir()] == [".entry"] and not warnings(caplog)


def test_a_forked_child_does_not_hold_the_lock_of_its_parent(stub, run_script) -> None:
    """Also not when the parent is killed, so that nobody gives the lock back."""
    script = """
        import signal
        holder = os.fork()
        if holder == 0:
            with service.store.lock("a" * 64, 1) as held:
                child = os.fork()
                if child == 0:
                    os.closerange(0, 3)  # so that nobody waits for its output
                    time.sleep(20)
                    os._exit(0)
                print(held, child, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(holder, 0)
        with service.store.lock("a" * 64, 2) as held:
            print(held)
    """
    held, child, again = run_script(stub.script(script)).stdout.split()
    os.kill(int(child), 9)
    assert (held, again) == ("True", "True")


def test_a_temporary_file_that_is_removed_is_written_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real, removed = os.replace, []

    def and_remove(temporary: Path, path: Path) -> None:
        if not removed:
            removed.append(temporary)
            shutil.rmtree(store.folder)
        real(temporary, path)

    monkeypatch.setattr(store_module.os, "replace", and_remove)
    store.publish(ENTRY)
    assert removed and read(store) == ENTRY and len(os.listdir(store.folder)) == 1


def test_a_real_full_disk(stub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file system of 64 KiB, where the stub's 96 kB do not fit."""
    disk = tmp_path / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        service = stub.service(cache_folder=disk / "cache")
        artifact = service.compile(CompileRequest(unit_text="int x;", target="sm_90a"))
        assert artifact.origin == "compiled" and len(artifact.data) == 96000
        assert len(warnings(caplog)) == 1 and "No space left on device" in warnings(caplog)[0]
        assert os.listdir(disk / "cache") == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_stats_and_clear_touch_only_our_files(store: Store) -> None:
    assert store.stats().entries == store.clear().entries == 0
    store.publish(ENTRY)
    store.publish(attrs.evolve(ENTRY, key="f" * 64))
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / f"{KEY}.12.ab.tmp").write_text("left by a killed process")
    size = store.path(KEY).stat().st_size
    counts = store.stats()
    assert (counts.entries, counts.bytes, counts.leftovers) == (2, 2 * size, 1)
    assert store.clear() == counts
    assert os.listdir(store.folder) == ["notes.txt"]
