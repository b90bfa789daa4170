"""Long-lived compiler processes: started on demand, one request at a time, ended on time-out, when idle and at exit.

Called by CompileService from any number of threads.
Assumes POSIX pipes. A worker that dies or hangs costs its own request only; a forked child gets workers of its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import IO, Any, cast

from humming_compile import protocol
from humming_compile.errors import (
    ProtocolError,
    ServiceClosedError,
    ToolkitError,
    WorkerCrashError,
    WorkerTimeoutError,
)
from humming_compile.idle import IdleWatch
from humming_compile.protocol import Message

_LOG_TAIL = 8192
_START_SECONDS = 120.0


class _WorkerEndedError(Exception):
    """The other end of the pipes closed."""


class _TooLateError(Exception):
    """The deadline passed."""


class Worker:
    """One child process and its two pipes. Used by one thread at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        self._log: IO[bytes] = _anonymous_file()
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            # `-m` puts the working folder on the module path: make it the folder this package is in, not the user's.
            cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        )
        self._requests = cast(IO[bytes], self.process.stdin).fileno()
        self._answers = cast(IO[bytes], self.process.stdout).fileno()
        os.set_blocking(self._requests, False)
        os.set_blocking(self._answers, False)
        self.hello: dict[str, Any] | None = None

    def alive(self) -> bool:
        """Whether the process still runs and holds its end of the pipe."""
        poll = select.poll()
        poll.register(self._requests, 0)  # only an error is told: the other end was closed
        return self.process.poll() is None and not poll.poll(0)

    def send(self, message: Message, deadline: float) -> None:
        """Writes one message."""
        data = memoryview(protocol.encode(message))
        while data:
            _wait(self._requests, select.POLLOUT, deadline)
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise _WorkerEndedError from error

    def receive(self, deadline: float) -> Message:
        """Reads one message."""
        head_length, body_length = protocol.decode_prefix(self._read(protocol.PREFIX.size, deadline))
        return protocol.decode_rest(self._read(head_length + body_length, deadline), head_length)

    def _read(self, length: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            _wait(self._answers, select.POLLIN, deadline)
            try:
                part = os.read(self._answers, min(length - len(data), 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                raise _WorkerEndedError
            data += part
        return bytes(data)

    def log_tail(self) -> str:
        """The end of what the process wrote to its standard error."""
        # Read by position: the child writes through the same file offset.
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), _LOG_TAIL, max(0, size - _LOG_TAIL))
        return tail.decode(errors="replace").strip()

    def await_end(self) -> None:
        """Gives a process that closed its pipes a moment to end by itself, so that its exit code is its own."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2)

    def kill(self) -> None:
        """Ends the process at once and waits for it; safe beside another thread that uses this worker."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def stop(self) -> int | None:
        """Ends the process and closes the pipes; the exit code, None where SIGCHLD is ignored (nobody knows it)."""
        self.kill()
        self._close()
        return None if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN else self.process.returncode

    def forget(self) -> None:
        """In a forked child: closes the copies of the parent's pipes and leaves the parent's process alone."""
        self.process.returncode = 0  # not our child: nothing to wait for
        self._close()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Pool:
    """At most `size` workers that run `command`; one without work for `idle_seconds` is ended.

    `check_hello` sees what a new worker tells of its compiler and raises when it will not do.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: int,
        timeout: float,
        idle_seconds: float,
        check_hello: Callable[[dict[str, Any]], None] = lambda hello: None,
    ) -> None:
        self._command = tuple(command)
        self.size = size
        self._timeout = timeout
        self._idle_seconds = idle_seconds
        self._check_hello = check_hello
        self._closed = False
        self.hello: dict[str, Any] | None = None  # what the newest worker said of its compiler
        self._workers: set[Worker] = set()
        self._reset()
        _pools.add(self)
        # Runs when the pool is collected and at exit, whichever comes first.
        weakref.finalize(self, _end_workers, self._workers)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[tuple[float, Worker]] = []  # since when; the longest idle first, the next to be used last
        self._starting = 0

    def run(self, message: Message | None, name: str, target: str) -> Message:
        """Sends a request to a free worker and returns its answer; without a request, what the worker said of itself.

        Waits for a free worker without limit (each of them is limited), then at most the time-out. Raises
        WorkerCrashError, WorkerTimeoutError, ToolkitError (the worker cannot load NVRTC) or ServiceClosedError.
        """
        worker = self._take()
        kept = False
        try:
            if worker.hello is None:  # starting is not part of the request, and slow on a busy machine
                self.hello = worker.hello = self._greet(worker, time.monotonic() + max(self._timeout, _START_SECONDS))
            deadline = time.monotonic() + self._timeout
            if message is None:
                answer = Message(head=worker.hello)
            else:
                worker.send(message, deadline)
                answer = worker.receive(deadline)
            kept = True
            return answer
        except _TooLateError as error:
            log = worker.log_tail()
            raise WorkerTimeoutError(
                f"compiling {name!r} for {target} did not end within {self._timeout:g} s, so its worker was ended: set "
                "HUMMING_COMPILE_TIMEOUT if it needs longer" + _indented(log),
                name=name,
                target=target,
                log=log,
                seconds=self._timeout,
            ) from error
        except (_WorkerEndedError, ProtocolError) as error:
            if isinstance(error, _WorkerEndedError):
                worker.await_end()
            log = worker.log_tail()
            code = worker.stop()
            raise WorkerCrashError(
                f"the worker that compiled {name!r} for {target} ended ({_told(code)}); the next request gets a new one"
                + (f": {error}" if isinstance(error, ProtocolError) else "")
                + _indented(log),
                name=name,
                target=target,
                log=log,
                exit_code=code,
            ) from error
        finally:
            self._give_back(worker, kept)

    def worker_ids(self) -> tuple[int, ...]:
        """Process numbers of the workers that run now."""
        with self._changed:
            return tuple(worker.process.pid for worker in self._workers)

    def close(self) -> None:
        """Ends all workers and waits for them. Requests that are running fail with WorkerCrashError."""
        with self._changed:
            self._closed = True
            self._idle.clear()
            self._changed.notify_all()
        _end_workers(self._workers)

    def _greet(self, worker: Worker, deadline: float) -> dict[str, Any]:
        hello = worker.receive(deadline).head
        if hello.get("kind") != "hello":
            raise ToolkitError(str(hello.get("message", "the worker did not say what compiler it has")))
        self._check_hello(hello)
        return hello

    def _take(self) -> Worker:
        with self._changed:
            while True:
                if self._closed:
                    raise ServiceClosedError("the compile service was closed: make a new one")
                while self._idle:
                    _, worker = self._idle.pop()
                    if worker.alive():
                        return worker
                    self._workers.discard(worker)
                    worker.stop()
                if len(self._workers) + self._starting < self.size:
                    self._starting += 1
                    break
                self._changed.wait()
        started: Worker | None = None
        try:
            with _no_fork_now:
                started = Worker(self._command)
        finally:
            with self._changed:
                self._starting -= 1
                if started is not None:
                    self._workers.add(started)
                self._changed.notify()
        return started

    def _give_back(self, worker: Worker, kept: bool) -> None:
        with self._changed:
            kept = kept and not self._closed
            if kept:
                self._idle.append((time.monotonic(), worker))
            else:
                self._workers.discard(worker)
            self._changed.notify()
        if kept:
            _idle_watch.start()
        else:
            worker.stop()

    def end_idle(self, longer_than: float | None = None) -> float | None:
        """Ends workers that have been idle for too long; the seconds until the next one will be, None without any."""
        limit = self._idle_seconds if longer_than is None else longer_than
        ended = []
        with self._changed:
            while self._idle and self._idle[0][0] + limit <= time.monotonic():
                ended.append(self._idle.pop(0)[1])
            self._workers.difference_update(ended)
            remaining = self._idle[0][0] + limit - time.monotonic() if self._idle else None
        for worker in ended:
            worker.stop()
        return remaining

    def _forget_after_fork(self) -> None:
        for worker in self._workers:
            worker.forget()
        self._workers.clear()
        self._reset()


def worker_command(library: str) -> tuple[str, ...]:
    """The command of a worker that uses the NVRTC at `library`."""
    return (sys.executable, "-m", "humming_compile.worker", "--library", library)


def _wait(descriptor: int, event: int, deadline: float) -> None:
    remaining = deadline - time.monotonic()
    poll = select.poll()
    poll.register(descriptor, event)
    if remaining <= 0 or not poll.poll(remaining * 1000):
        raise _TooLateError


def _anonymous_file() -> IO[bytes]:
    """A file without a name for a worker's standard error: in memory where that exists, so no folder is needed."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("humming-compile-worker-log"), "w+b")
    return tempfile.TemporaryFile()


def _told(code: int | None) -> str:
    if code is None:
        return "exit code not known, since SIGCHLD is ignored"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (", perhaps for lack of memory" if -code == signal.SIGKILL else "")


def _indented(log: str) -> str:
    return "".join(f"\n  {line}" for line in log.splitlines()) if log else ""


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
# Held while a process is started and while this process forks, so that no child copies a pipe it does not know of.
_no_fork_now = threading.RLock()


def _end_idle_workers() -> float | None:
    remaining = [seconds for pool in list(_pools) if (seconds := pool.end_idle()) is not None]
    return max(0.01, min(remaining)) if remaining else None


_idle_watch = IdleWatch(_end_idle_workers)


def _before_fork() -> None:
    """No thread may run during a fork, so none can watch idle workers: they end, and come back when needed."""
    _no_fork_now.acquire()
    _idle_watch.before_fork()
    for pool in list(_pools):
        pool.end_idle(longer_than=0)


def _after_fork_in_child() -> None:
    _no_fork_now.release()
    _idle_watch.after_fork_in_child()
    for pool in list(_pools):
        pool._forget_after_fork()


def _end_workers(workers: set[Worker]) -> None:
    """Ends workers, busy or not. Their pipes are closed by whoever uses them, or when they are collected."""
    for worker in list(workers):
        worker.kill()


os.register_at_fork(before=_before_fork, after_in_parent=_no_fork_now.release, after_in_child=_after_fork_in_child)
