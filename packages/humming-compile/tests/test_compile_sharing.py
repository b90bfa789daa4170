"""A folder that several users share: permissions, umasks, and entries that one user keeps from another.

Run by pytest.
Assumes POSIX permissions; as root, other users are played by processes of their own.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

import humming_compile.store as store_module
import pytest
from humming_compile import CompileRequest
from humming_compile.store import Entry, Store

KEY = "0123456789abcdef" * 4
ENTRY = Entry(key=KEY, target="sm_90a", output="cubin", data=b"some code")
AS_NOBODY = "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n" if os.getuid() == 0 else ""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "with space é" / "cache")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def let_others_in(path: Path) -> None:
    for folder in (path, *path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH and os.getuid() == 0:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)


def test_a_read_only_folder_as_an_ordinary_user(stub, run_script, tmp_path: Path) -> None:
    """Field report 15 again, with real permissions."""
    let_others_in(tmp_path)
    stub.service().compile(CompileRequest(unit_text="int x;", target="sm_90a"))
    stub.cache.chmod(0o555)
    done = run_script(
        stub.script(
            AS_NOBODY
            + "print(service.compile(unit('int x;')).origin)\n"
            + "try:\n    service.compile(unit('int y;'))\n"
            + "except StoreError as error:\n    print(error)\n"
        )
    )
    stub.cache.chmod(0o755)
    lines = done.stdout.splitlines()
    assert lines[0] == "disk", done.stderr
    assert str(stub.cache) in lines[1] and "HUMMING_COMPILE_CACHE_DIR" in lines[1] and len(lines) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
@pytest.mark.parametrize(("folder_mode", "kept"), [(0o777, True), (0o1777, False)])
def test_an_entry_that_another_user_keeps_private(
    store: Store, run_script, tmp_path: Path, folder_mode: int, kept: bool
) -> None:
    """Umasks that do not fit: it counts as bad, and is replaced where the folder allows that."""
    store.publish(ENTRY)
    let_others_in(store.folder)
    store.path(KEY).chmod(0o600)
    store.folder.chmod(folder_mode)
    script = f"""
        import logging, os, sys
        from pathlib import Path
        from humming_compile.store import Entry, Store
        logging.basicConfig(format='%(message)s', stream=sys.stdout)
        {AS_NOBODY.strip()}
        store = Store(Path({str(store.folder)!r}))
        entry = Entry(key={KEY!r}, target='sm_90a', output='cubin', data=b'made again')
        print(store.read(entry.key, entry.target, entry.output))
        store.publish(entry)
        print(store.read(entry.key, entry.target, entry.output, quiet=True) == entry)
    """
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "cannot be read (Permission denied): it is compiled again" in lines[0] and lines[1] == "None"
    assert ["does not take an entry" in line for line in lines[2:]] == ([False] if kept else [True, False])
    assert lines[-1] == str(kept)
    assert os.listdir(store.folder) == [f"{KEY}.entry"]


@pytest.mark.parametrize(
    ("folder_mode", "file_mode"), [(0o1777, 0o666), (0o2775, 0o664), (0o755, 0o644), (0o700, 0o600)]
)
def test_files_take_their_permissions_from_the_folder(store: Store, folder_mode: int, file_mode: int) -> None:
    """Two users with different umasks share a folder that was made for sharing."""
    store.folder.mkdir(parents=True)
    store.folder.chmod(folder_mode)
    before = os.umask(0o077)
    try:
        store.publish(ENTRY)
        with store.lock(KEY, 1) as held:
            assert held
            lock_mode = (store.folder / f"{KEY}.lock").stat().st_mode
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.path(KEY).stat().st_mode) == file_mode
    assert stat.S_IMODE(lock_mode) == file_mode


def test_another_user_s_bad_entry_in_a_sticky_folder_is_worked_around(
    stub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`mkdir -m 1777`: the entry can neither be used nor replaced, so its key is compiled by each process."""
    request = CompileRequest(unit_text="int x;", target="sm_90a")
    good = stub.service().compile(request)
    path = stub.service().store.path(good.key)
    path.write_bytes(b"garbage")

    def not_yours(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(store_module.os, "replace", not_yours)
    again = stub.service().compile(request)
    assert (again.origin, again.data) == ("compiled", good.data)
    assert ["compiled again" in warnings(caplog)[0], "not kept" in warnings(caplog)[1]] == [True, True]
    assert [item.name for item in stub.cache.iterdir()] == [path.name]
