"""The size bound of the cache folder, and what is cleaned up after processes that were killed.

Run by pytest.
Assumes Linux: the ids of processes are told by the kernel.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from pathlib import Path

import attrs
import pytest
from humming_compile import CompileRequest
from humming_compile.eviction import temporary_name
from humming_compile.store import Entry, Store

KEY = "0123456789abcdef" * 4
ENTRY = Entry(key=KEY, target="sm_90a", output="cubin", data=b"some code")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "with space é" / "cache")


def entry(digit: str, size: int = 1000) -> Entry:
    return attrs.evolve(ENTRY, key=digit * 64, data=bytes(size))


def age(store: Store, digit: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(store.path(digit * 64), (then, then))


def kept(store: Store) -> str:
    return "".join(sorted(path.name[0] for path in store.folder.glob("*.entry")))


def test_the_entries_not_used_for_longest_go_when_the_folder_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nine entries of about 1.2 kB in a folder for ten, of which the oldest two were read lately."""
    unbounded = Store(tmp_path)
    for number in range(9):
        unbounded.publish(entry(str(number)))
        age(unbounded, str(number), 10_000 * (10 - number))
    size = unbounded.stats().bytes // 9
    assert {unbounded.read(digit * 64, "sm_90a", "cubin") is not None for digit in "01"} == {True}
    with caplog.at_level(logging.INFO, logger="humming_compile"):
        Store(tmp_path, limit_bytes=10 * size).publish(entry("a"))
        assert kept(unbounded) == "012345678a" and not caplog.records, "ten of ten fit"
        Store(tmp_path, limit_bytes=10 * size).publish(entry("b"))
    assert kept(unbounded) == "0145678ab", "down to nine tenths, from the least recently used on"
    assert [record.levelname for record in caplog.records] == ["INFO"] and "2 entries" in caplog.text


def test_what_was_just_published_stays_though_it_alone_is_too_large(tmp_path: Path) -> None:
    store = Store(tmp_path, limit_bytes=100)
    for digit in "abc":
        store.publish(entry(digit))
    assert kept(store) == "c" and store.read("c" * 64, "sm_90a", "cubin") is not None


def test_the_folder_stays_within_its_bound_while_one_process_publishes(tmp_path: Path) -> None:
    store = Store(tmp_path, limit_bytes=100_000)
    for number in range(150):
        store.publish(attrs.evolve(ENTRY, key=f"{number:064x}", data=bytes(2000)))
        assert store.stats().bytes <= 110_000, "at most a sixteenth more than the bound, and one entry"
    assert store.read(f"{149:064x}", "sm_90a", "cubin") is not None


def test_an_entry_that_is_evicted_is_compiled_again(stub) -> None:
    service = stub.service(cache_megabytes=0.1)  # one entry of the stub is 96 kB
    requests = [CompileRequest(unit_text=f"int x{number};", target="sm_90a") for number in range(3)]
    first = [service.compile(request).data for request in requests]
    assert [path.suffix for path in stub.cache.iterdir()] == [".entry"]
    again = stub.service(cache_megabytes=0.1)
    assert [again.compile(request).data for request in requests] == first
    assert [service.compile(request).origin for request in requests] == ["memory"] * 3


def ended_process() -> str:
    return subprocess.run(["/bin/sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout.strip()


def test_temporary_files_of_ended_processes_go_and_those_of_others_stay(store: Store) -> None:
    store.publish(ENTRY)
    name = temporary_name(KEY)
    key, machine, _, random, _ = name.split(".")
    running = f"{key}.{machine}.{os.getppid()}.{random}.tmp"
    ended = f"{key}.{machine}.{ended_process()}.{random}.tmp"
    elsewhere = f"{key}.00000000.{ended_process()}.{random}.tmp"
    old = f"{key}.00000001.{ended_process()}.{random}.tmp"
    lock, held_lock, old_lock = (f"{digit * 64}.lock" for digit in "def")
    for item in (name, running, ended, elsewhere, old, lock, held_lock, old_lock, "notes.tmp"):
        (store.folder / item).write_text("")
    two_days_ago = time.time() - 2 * 86400
    for item in (old, "notes.tmp"):
        os.utime(store.folder / item, (two_days_ago, two_days_ago))
    with store.lock("e" * 64, 1) as held:
        for item in (held_lock, old_lock):
            os.utime(store.folder / item, (time.time() - 100, time.time() - 100))
        Store(store.folder, limit_bytes=10**9).publish(entry("a"))
        assert held and (store.folder / held_lock).exists()
    left = {path.name for path in store.folder.iterdir()} - {f"{KEY}.entry", f"{'a' * 64}.entry"}
    assert left == {name, running, elsewhere, lock, "notes.tmp"}


def test_reading_marks_an_entry_as_used_and_rarely(store: Store) -> None:
    store.publish(ENTRY)
    path = store.path(KEY)
    now = time.time()
    for seconds, is_marked in ((7200.0, True), (60.0, False), (-7200.0, True)):  # the last: a clock that ran ahead
        os.utime(path, (now - seconds, now - seconds))
        assert store.read(KEY, "sm_90a", "cubin") == ENTRY
        assert (abs(path.stat().st_mtime - now) < 60) is is_marked or seconds == 60.0
    os.utime(path, (now - 60, now - 60))
    store.read(KEY, "sm_90a", "cubin")
    assert abs(path.stat().st_mtime - (now - 60)) < 1
