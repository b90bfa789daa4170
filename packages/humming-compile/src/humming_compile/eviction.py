"""Keeps a cache folder within its size, and free of what killed processes left in it.

Called by Store after it has published an entry; also names the temporary files, so that their owner can be told.
Assumes nothing of other processes: a file that is removed here may be in use, or gone already; both are harmless.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

import attrs

ENTRY_NAME = re.compile(r"[0-9a-f]{64}\.entry\Z")
LEFTOVER_NAME = re.compile(r"[0-9a-f]{64}\.(lock|[0-9a-f.]+\.tmp)\Z")
_TEMPORARY_NAME = re.compile(r"[0-9a-f]{64}\.([0-9a-f]{8})\.([0-9]+)\.[0-9a-f]+\.tmp\Z")
_LEFTOVER_SECONDS = 86400.0  # no compile takes a day, so nobody writes a temporary file or holds a lock that long
_LOCK_SECONDS = 60.0  # much more than passes between making a lock file and locking it
_KEPT_PART = 0.9  # of the size limit: room for some entries, so that not each of them evicts


@attrs.frozen(kw_only=True)
class Evicted:
    """What was removed: entries, their bytes, and leftover lock and temporary files."""

    entries: int
    bytes: int
    leftovers: int


def temporary_name(key: str) -> str:
    """A name that no other process and no other call uses, and that tells who writes the file."""
    return f"{key}.{_machine()}.{os.getpid()}.{secrets.token_hex(6)}.tmp"


def evict(folder: Path, limit_bytes: int, *, now: float, keep: str) -> Evicted:
    """Removes leftovers, then the least recently used entries while the entries exceed `limit_bytes`; never `keep`.

    `now` is the file system's time, which is not the local clock where the folder is on another machine. Files of other
    users that cannot be removed stay.
    """
    found: list[tuple[float, int, str]] = []
    leftovers = 0
    for item in scan(folder):
        try:
            state = item.stat(follow_symlinks=False)
        except OSError:  # it went in the meantime
            continue
        if ENTRY_NAME.match(item.name):
            found.append((state.st_mtime, state.st_size, item.name))
        elif LEFTOVER_NAME.match(item.name) and _is_left(item, now - state.st_mtime):
            leftovers += _removed(item.path)
    total = sum(size for _, size, _ in found)
    entries = removed_bytes = 0
    if total > limit_bytes:
        for _, size, name in sorted(found):
            if total - removed_bytes <= limit_bytes * _KEPT_PART:
                break
            if name != keep and _removed(folder / name):
                entries += 1
                removed_bytes += size
    return Evicted(entries=entries, bytes=removed_bytes, leftovers=leftovers)


def scan(folder: Path) -> Iterable[os.DirEntry[str]]:
    """The files in a folder; none where it does not exist."""
    try:
        with os.scandir(folder) as items:
            return list(items)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _removed(path: str | Path) -> bool:
    with contextlib.suppress(OSError):
        os.unlink(path)
        return True
    return False


def _is_left(item: os.DirEntry[str], age: float) -> bool:
    """Whether a lock or temporary file is certainly nobody's: its process has ended, or it is a day old."""
    if age > _LEFTOVER_SECONDS:
        return True
    match = _TEMPORARY_NAME.match(item.name)
    if match is not None:
        return match[1] == _machine() and not _runs(int(match[2]))
    return age > _LOCK_SECONDS and item.name.endswith(".lock") and not _is_held(item.path)


def _is_held(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # another user's, or gone
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:  # held, or no locks here
        return True
    finally:
        os.close(descriptor)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


@functools.cache
def _machine() -> str:
    """Eight hex digits for this start of this machine and this space of process numbers (containers have their own)."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:  # then nobody else's files can be told from those of ended processes, so they wait for a day
        start, space = secrets.token_hex(16), ""
    return hashlib.sha256(f"{start} {space}".encode()).hexdigest()[:8]
