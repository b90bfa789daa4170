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
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from humming_compile.errors import StoreError
from humming_compile.eviction import ENTRY_NAME, LEFTOVER_NAME, evict, scan, temporary_name
from humming_compile.settings import CACHE_DIR

ENTRY_SCHEMA = 1

_log = logging.getLogger("humming_compile")
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT)
_USED_SECONDS = 3600.0  # how exactly it is known when an entry was last used: reading one marks it so rarely
_EVICT_EVERY = 32  # published entries, at most, between two looks at the folder's size


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
    """The entries in one folder. The folder is made when the first entry is written, never by reading.

    With `limit_bytes`, publishing removes entries that were not used for longest when the folder exceeds it.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._published = 0
        self._published_bytes = 0

    def path(self, key: str) -> Path:
        """Where the entry of a key lies."""
        return self.folder / f"{key}.entry"

    def read(self, key: str, target: str, output: str, *, quiet: bool = False) -> Entry | None:
        """The entry of a key, or None. A bad entry is told in one warning (unless `quiet`) and counts as none."""
        path = self.path(key)
        try:
            content = _read_and_mark(path)
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

        Raises StoreError when the folder cannot be written. A full disk or a failing one, and another user's entry that
        cannot be replaced, are told in one warning only: the data is good, it is just not kept.
        """
        content = _encode(entry)
        try:
            try:
                now = self._write(entry.key, content)
            except FileNotFoundError:  # the folder or the temporary file was removed meanwhile
                now = self._write(entry.key, content)
        except OSError as error:
            if error.errno in _NOT_WRITABLE and not self.path(entry.key).exists():
                raise self._not_writable(error) from error
            _log.warning("cache folder %s does not take an entry (%s): it is not kept", self.folder, error.strerror)
            return
        self._evict_at_times(len(content), now, keep=self.path(entry.key).name)

    def _write(self, key: str, content: bytes) -> float:
        """Writes one file whole; the time of the file system."""
        mode = self._make_folder()
        temporary = self.folder / temporary_name(key)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                now = os.fstat(file.fileno()).st_mtime
            os.replace(temporary, self.path(key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self._sync_folder()
        return now

    def _evict_at_times(self, size: int, now: float, keep: str) -> None:
        """Looks at the whole folder after the first entry that this process publishes, and then now and again."""
        if self.limit_bytes is None:
            return
        is_due = self._published % _EVICT_EVERY == 0 or self._published_bytes > self.limit_bytes // 16
        self._published += 1
        self._published_bytes = 0 if is_due else self._published_bytes + size
        if is_due:
            evicted = evict(self.folder, self.limit_bytes, now=now, keep=keep)
            if evicted.entries:
                _log.info(
                    "cache folder %s exceeded %.0f MB: %d entries (%.1f MB) not used for longest were removed",
                    self.folder,
                    self.limit_bytes / 1e6,
                    evicted.entries,
                    evicted.bytes / 1e6,
                )

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
            if error.errno in _NOT_WRITABLE and not (path.exists() and os.access(self.folder, os.W_OK)):
                raise self._not_writable(error) from error
            yield False
            return
        _descriptors.add(descriptor)
        try:
            with contextlib.suppress(OSError):  # only the one who made it may
                os.fchmod(descriptor, mode)
            try:
                held = _wait_for_lock(descriptor, timeout)
                goes = held
            except OSError:  # this file system has no locks, so the file is of no use to anyone
                held, goes = False, True
            self._look_again()
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
            _descriptors.discard(descriptor)
            os.close(descriptor)

    def check_writable(self) -> None:
        """Makes the folder and a file in it, and removes the file. Raises StoreError when that fails."""
        probe = self.folder / temporary_name("0" * 64)
        try:
            self._make_folder()
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            os.unlink(probe)
        except OSError as error:
            raise self._not_writable(error) from error

    def stats(self) -> StoreStats:
        """Counts the entries and what killed processes left."""
        entries = size = leftovers = 0
        for item in scan(self.folder):
            if ENTRY_NAME.match(item.name):
                with contextlib.suppress(OSError):
                    size += item.stat().st_size
                entries += 1
            elif LEFTOVER_NAME.match(item.name):
                leftovers += 1
        return StoreStats(entries=entries, bytes=size, leftovers=leftovers)

    def clear(self) -> StoreStats:
        """Removes every entry and leftover, nothing else; returns the counts of what was there."""
        before = self.stats()
        for item in scan(self.folder):
            if ENTRY_NAME.match(item.name) or LEFTOVER_NAME.match(item.name):
                try:
                    os.unlink(item.path)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise self._not_writable(error) from error
        return before

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

    def _look_again(self) -> None:
        """Opens the folder, at which a network file system notices files that other machines made in it."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def _not_writable(self, error: OSError) -> StoreError:
        return StoreError(
            f"the cache folder {self.folder} cannot be written ({error.strerror}) and what is asked for is not in it: "
            f"set {CACHE_DIR} to a folder that can be written",
            folder=str(self.folder),
        )


def _read_and_mark(path: Path) -> bytes:
    """The bytes of a file, which is marked as used now where that may be written and was not done lately."""
    try:
        file = path.open("rb")
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        file = path.open("rb")  # another machine replaced it while its name was looked up
    with file:
        content = file.read()
        used = os.fstat(file.fileno()).st_mtime
    if abs(time.time() - used) > _USED_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(path)
    return content


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


# Descriptors of lock files that are open now. A forked child closes its copies, or it would hold its parent's locks.
_descriptors: set[int] = set()


def _after_fork_in_child() -> None:
    for descriptor in list(_descriptors):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
