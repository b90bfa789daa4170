"""Compiled code on disk: one file per key, published whole or not at all, verified when read.

Called by CompileService and the command line.
Assumes POSIX renames. Locks only spare work: where they fail, two processes compile the same key and both are right.

An entry is one line of JSON (schema, key, target, output, length, sha256, ...) followed by the data. Files take their
permissions from the folder, not from the umask, so a folder made for sharing (`mkdir -m 1777`, or 2775 for a group) is
shared by users of any umask, and a private folder stays private.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from humming_compile.errors import StoreError
from humming_compile.settings import CACHE_DIR

ENTRY_SCHEMA = 1

_log = logging.getLogger("humming_compile")
_ENTRY = re.compile(r"[0-9a-f]{64}\.entry\Z")
_LEFTOVER = re.compile(r"[0-9a-f]{64}\.(lock|[0-9]+\.[0-9a-f]+\.tmp)\Z")
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT)


@attrs.frozen(kw_only=True)
class Entry:
    """Compiled code with what is known of it. `nvrtc` is the version that made it, `name` the unit's name then."""

    key: str
    target: str
    output: str
    data: bytes = attrs.field(repr=False)
    log: str = ""
    cpu_seconds: float = 0.0
    nvrtc: str = ""
    name: str = ""


@attrs.frozen(kw_only=True)
class StoreStats:
    """Counts of a folder: entries, their bytes, and lock and temporary files (of running or of killed processes)."""

    entries: int
    bytes: int
    leftovers: int


class Store:
    """The entries in one folder. The folder is made when the first entry is written, never by reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        """Where the entry of a key lies."""
        return self.folder / f"{key}.entry"

    def read(self, key: str, target: str, output: str, *, quiet: bool = False) -> Entry | None:
        """The entry of a key, or None. A bad entry is told in one warning (unless `quiet`) and counts as none."""
        path = self.path(key)
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        else:
            found = _decode(content, key, target, output)
            if isinstance(found, Entry):
                return found
            problem = found
        if not quiet:
            _log.warning("cache entry %s %s: it is compiled again", path, problem)
        return None

    def publish(self, entry: Entry) -> None:
        """Writes an entry under its own temporary name, syncs it and renames it.

        Raises StoreError when the folder cannot be written. A full disk or a failing one is told in one warning only:
        the data is good, it is just not kept.
        """
        temporary = self.folder / f"{entry.key}.{os.getpid()}.{secrets.token_hex(6)}.tmp"
        try:
            mode = self._make_folder()
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_encode(entry))
                    file.flush()
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                os.replace(temporary, self.path(entry.key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            self._sync_folder()
        except OSError as error:
            if error.errno in _NOT_WRITABLE:
                raise self._not_writable(error) from error
            _log.warning("cache folder %s does not take an entry (%s): it is not kept", self.folder, error.strerror)

    @contextlib.contextmanager
    def lock(self, key: str, timeout: float) -> Iterator[bool]:
        """Holds the lock of a key across processes, and tells whether it was got.

        It is not got after `timeout` seconds, nor where the file system has no locks. Raises StoreError when the folder
        cannot be written. The lock file goes with its holder; a waiter then holds a file without a name, which is
        harmless because it finds the entry.
        """
        path = self.folder / f"{key}.lock"
        try:
            mode = self._make_folder()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in _NOT_WRITABLE and not path.exists():
                raise self._not_writable(error) from error
            yield False
            return
        try:
            with contextlib.suppress(OSError):  # only the one who made it may
                os.fchmod(descriptor, mode)
            try:
                held = _wait_for_lock(descriptor, timeout)
                goes = held
            except OSError:  # this file system has no locks, so the file is of no use to anyone
                held, goes = False, True
            try:
                yield held
            finally:
                if goes:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                    # Told explicitly: a forked child may hold a copy of the descriptor.
                    with contextlib.suppress(OSError):
                        fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def check_writable(self) -> None:
        """Makes the folder and a file in it, and removes the file. Raises StoreError when that fails."""
        probe = self.folder / f"{'0' * 64}.{os.getpid()}.{secrets.token_hex(6)}.tmp"
        try:
            self._make_folder()
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            os.unlink(probe)
        except OSError as error:
            raise self._not_writable(error) from error

    def stats(self) -> StoreStats:
        """Counts the entries and what killed processes left."""
        entries = size = leftovers = 0
        for item in self._files():
            if _ENTRY.match(item.name):
                with contextlib.suppress(OSError):
                    size += item.stat().st_size
                entries += 1
            elif _LEFTOVER.match(item.name):
                leftovers += 1
        return StoreStats(entries=entries, bytes=size, leftovers=leftovers)

    def clear(self) -> StoreStats:
        """Removes every entry and leftover, nothing else; returns the counts of what was there."""
        before = self.stats()
        for item in self._files():
            if _ENTRY.match(item.name) or _LEFTOVER.match(item.name):
                try:
                    os.unlink(item.path)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise self._not_writable(error) from error
        return before

    def _files(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.folder) as items:
                return list(items)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _make_folder(self) -> int:
        """Makes the folder if needed and returns the permission bits of files in it."""
        try:
            mode = os.stat(self.folder).st_mode
        except FileNotFoundError:
            os.makedirs(self.folder, exist_ok=True)
            mode = os.stat(self.folder).st_mode
        return stat.S_IMODE(mode) & 0o666

    def _sync_folder(self) -> None:
        """Makes the rename last; some file systems cannot, and then the entry is verified when read anyway."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _not_writable(self, error: OSError) -> StoreError:
        return StoreError(
            f"the cache folder {self.folder} cannot be written ({error.strerror}) and what is asked for is not in it: "
            f"set {CACHE_DIR} to a folder that can be written",
            folder=str(self.folder),
        )


def _wait_for_lock(descriptor: int, timeout: float) -> bool:
    """Whether the lock was got in time; OSError where there are no locks."""
    deadline = time.monotonic() + timeout
    pause = 0.002
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _encode(entry: Entry) -> bytes:
    head = {
        "schema": ENTRY_SCHEMA,
        "key": entry.key,
        "target": entry.target,
        "output": entry.output,
        "length": len(entry.data),
        "sha256": hashlib.sha256(entry.data).hexdigest(),
        "nvrtc": entry.nvrtc,
        "name": entry.name,
        "cpu_seconds": entry.cpu_seconds,
        "log": entry.log,
    }
    return json.dumps(head).encode() + b"\n" + entry.data


def _decode(content: bytes, key: str, target: str, output: str) -> Entry | str:
    """The entry, or what is wrong with it in words that follow "cache entry PATH"."""
    line, newline, data = content.partition(b"\n")
    try:
        head = json.loads(line)
    except ValueError:
        head = None
    if not newline or not isinstance(head, dict):
        return "has no readable head"
    wanted = {"schema": ENTRY_SCHEMA, "key": key, "target": target, "output": output, "length": len(data)}
    for field, value in wanted.items():
        if head.get(field) != value:
            return f"is not the one wanted ({field} is {head.get(field)!r}, wanted {value!r})"
    if head.get("sha256") != hashlib.sha256(data).hexdigest():
        return "does not have the digest that its head states"
    return Entry(
        key=key,
        target=target,
        output=output,
        data=data,
        log=str(head.get("log", "")),
        cpu_seconds=float(head.get("cpu_seconds", 0.0)),
        nvrtc=str(head.get("nvrtc", "")),
        name=str(head.get("name", "")),
    )
