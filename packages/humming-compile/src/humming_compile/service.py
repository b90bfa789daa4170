"""The compile service: text in, compiled code out, from memory, disk or a pool of compiler processes.

Called by humming_torch's session, the command line and anyone who has CUDA text; safe in threads and after fork.
Assumes nothing of a GPU or driver: any target that the NVRTC at hand knows is compiled anywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from types import TracebackType
from typing import Any

import attrs

from humming_compile.errors import (
    CompileError,
    HummingCompileError,
    MissingHeaderError,
    ToolkitError,
    UnknownTargetError,
)
from humming_compile.headers import Reached, reached_headers
from humming_compile.key import compile_key, compiler_options
from humming_compile.pool import Pool, worker_command
from humming_compile.protocol import Message
from humming_compile.request import Artifact, CompileRequest
from humming_compile.settings import KEEP_DIR, Settings
from humming_compile.store import Entry, Store
from humming_compile.toolkit import INSTALL_HINT, Toolkit, find_toolkit, package_of_header

_NO_HEADER = re.compile(r'(?:cannot|could not) open source file "([^"]+)"')

Progress = Callable[[int, int, Artifact], None]


class CompileService:
    """Compiles requests, each key once.

    `settings` default to the environment (HUMMING_COMPILE_*). `toolkit` and `command` (of the worker processes) default
    to what is found; tests and bundlers give their own. Nothing is searched, started or written before the first
    compile.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        toolkit: Toolkit | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self.settings = Settings.from_environment() if settings is None else settings
        self.store = Store(self.settings.cache_folder, int(self.settings.cache_megabytes * 1e6))
        self._toolkit = toolkit
        self._command = command
        self._pool: Pool | None = None
        self._memory: dict[str, Entry] = {}
        self._reset()
        _services.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Future[Artifact]] = {}

    @property
    def toolkit(self) -> Toolkit:
        """The toolkit in use, found on first need. Raises ToolkitError when there is none."""
        if self._toolkit is None:
            self._toolkit = find_toolkit(self.settings)
        return self._toolkit

    @property
    def pool(self) -> Pool:
        """The worker processes; none runs before the first compile."""
        with self._lock:
            if self._pool is None:
                command = self._command or worker_command(str(self.toolkit.library))
                self._pool = Pool(
                    command,
                    size=self.settings.workers,
                    timeout=self.settings.timeout_seconds,
                    idle_seconds=self.settings.idle_seconds,
                    check_hello=partial(_check_hello, self.toolkit),
                )
            return self._pool

    def compile(self, request: CompileRequest) -> Artifact:
        """The compiled code of one request.

        Threads that ask for the same key at once share one compile. Raises CompileError (with NVRTC's log) or one of
        its subclasses for a missing header, an unknown target, a crash or a time-out; ToolkitError without NVRTC;
        StoreError when the cache folder lacks the entry and cannot be written.
        """
        started = time.perf_counter()
        reached = reached_headers(request.unit_text, request.headers)
        key = compile_key(request, self.toolkit, reached)
        with self._lock:
            entry = self._memory.get(key)
            future = None
            if entry is None:
                future = self._running.get(key)
                if future is None:
                    mine = self._running[key] = Future()
        if entry is not None:
            return _artifact(entry, "memory", started)
        if future is not None:
            shared = future.result()
            return attrs.evolve(shared, origin="memory", seconds=time.perf_counter() - started)
        try:
            artifact = self._from_disk_or_compiler(request, reached, key, started)
            mine.set_result(artifact)
            return artifact
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                self._running.pop(key, None)

    def compile_many(self, requests: Iterable[CompileRequest], progress: Progress | None = None) -> list[Artifact]:
        """The compiled code of each request, in their order, compiled side by side on all workers.

        `progress(done, total, artifact)` is called in this thread after each one. The first error is raised after the
        requests that run have ended; those not begun are dropped.
        """
        wanted = list(requests)
        if not wanted:
            return []
        # Threads only wait for workers; a few more than workers keep those busy while others read the disk.
        threads = min(len(wanted), self.settings.workers + 2)
        with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="humming-compile") as executor:
            futures = {executor.submit(self.compile, request): index for index, request in enumerate(wanted)}
            results: dict[int, Artifact] = {}
            try:
                for future in as_completed(futures):
                    results[futures[future]] = future.result()
                    if progress is not None:
                        progress(len(results), len(wanted), results[futures[future]])
            except BaseException:
                executor.shutdown(wait=False, cancel_futures=True)
                raise
        return [results[index] for index in range(len(wanted))]

    def compile_fresh(self, request: CompileRequest) -> Artifact:
        """Compiles a request and neither looks for nor keeps the result: for measurements and for `doctor`."""
        started = time.perf_counter()
        reached = reached_headers(request.unit_text, request.headers)
        entry = self._compile(request, reached, compile_key(request, self.toolkit, reached))
        return _artifact(entry, "compiled", started)

    def close(self) -> None:
        """Ends the worker processes. What is in memory and on disk is still served."""
        with self._lock:
            pool = self._pool
        if pool is not None:
            pool.close()

    def __enter__(self) -> CompileService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _from_disk_or_compiler(self, request: CompileRequest, reached: Reached, key: str, started: float) -> Artifact:
        entry = self.store.read(key, request.target, request.output)
        if entry is not None:
            return self._remember(entry, "disk", started)
        with self.store.lock(key, self.settings.timeout_seconds):
            entry = self.store.read(key, request.target, request.output, quiet=True)
            if entry is not None:
                return self._remember(entry, "disk", started)
            entry = self._compile(request, reached, key)
            self.store.publish(entry)
        return self._remember(entry, "compiled", started)

    def _remember(self, entry: Entry, origin: Any, started: float) -> Artifact:
        with self._lock:
            self._memory[entry.key] = entry
        return _artifact(entry, origin, started)

    def _compile(self, request: CompileRequest, reached: Reached, key: str) -> Entry:
        toolkit = self.toolkit
        options = list(compiler_options(request))
        if reached.foreign:
            options += [f"--include-path={folder}" for folder in toolkit.include_folders]
        answer = self.pool.run(
            Message(
                head={
                    "kind": "compile",
                    "name": request.name,
                    "unit_text": request.unit_text,
                    "headers": reached.project,
                    "options": options,
                    "target": request.target,
                    "output": request.output,
                }
            ),
            request.name,
            request.target,
        )
        log = str(answer.head.get("log", ""))
        if answer.head.get("kind") != "compiled":
            raise self._failure(request, reached, str(answer.head.get("message", "")), log)
        return Entry(
            key=key,
            target=request.target,
            output=request.output,
            data=answer.body,
            log=log,
            cpu_seconds=float(answer.head.get("cpu_seconds", 0.0)),
            nvrtc=toolkit.version_text,
            name=request.name,
        )

    def _failure(self, request: CompileRequest, reached: Reached, message: str, log: str) -> HummingCompileError:
        toolkit = self.toolkit
        if "libnvrtc-builtins" in log:
            return ToolkitError(
                f"NVRTC at {toolkit.library} misses its builtins library: reinstall it ({INSTALL_HINT})",
                package="nvidia-cuda-nvrtc",
            )
        fields = {"name": request.name, "target": request.target, "log": log}
        if "--gpu-architecture" in log or "--nv_arch" in log:
            known = self.known_targets()
            return UnknownTargetError(
                f"NVRTC {toolkit.version_text} does not know the target {request.target!r} of {request.name!r}; it "
                f"knows {', '.join(known)} (some also with 'a' or 'f'): install a newer nvidia-cuda-nvrtc",
                known=known,
                **fields,
            )
        missing = _NO_HEADER.search(log)
        if missing is not None:
            return self._missing_header(request, missing[1], fields)
        kept_at = self._keep(request, reached)
        kept = f"\nThe unit was saved in {kept_at}" if kept_at else f"\n(set {KEEP_DIR} to a folder to save the unit)"
        return CompileError(
            f"{message or 'not compiled'} for {request.target}, NVRTC {toolkit.version_text}:\n{log}{kept}",
            kept_at=kept_at,
            **fields,
        )

    def _missing_header(self, request: CompileRequest, header: str, fields: dict[str, str]) -> CompileError:
        toolkit = self.toolkit
        package = package_of_header(header, toolkit.version[0])
        if not package:
            text = (
                f"{request.name!r} includes {header!r}, which is not among the headers of the request and is no CUDA "
                "header: add its text to `headers` (NVRTC has no headers of the C and C++ standard library)"
            )
        else:
            places = ", ".join(map(str, toolkit.include_folders)) or "no folder"
            text = (
                f"{request.name!r} needs the header {header!r}, which was not found (CUDA {toolkit.version[0]} headers "
                f"were found in {places}): pip install '{package}>={toolkit.version[0]},<{toolkit.version[0] + 1}'"
            )
        return MissingHeaderError(text, header=header, package=package, **fields)

    def known_targets(self) -> tuple[str, ...]:
        """Targets that the NVRTC at hand knows, without their 'a' and 'f' forms. Starts a worker if none has run."""
        hello = self.pool.hello or self.pool.run(None, "nothing", "no target").head
        return tuple(f"sm_{number}" for number in hello["architectures"])

    def _keep(self, request: CompileRequest, reached: Reached) -> str:
        """Saves a unit that failed, with its headers, where settings ask for it; returns the folder or ""."""
        if self.settings.keep_folder is None:
            return ""
        word = re.sub(r"[^A-Za-z0-9_.-]", "_", request.name)[:80]
        folder = self.settings.keep_folder.absolute() / f"{word}-{request.target}"
        with contextlib.suppress(OSError):
            for name, text in {f"{word}.cu": request.unit_text, **reached.project}.items():
                path = folder / os.path.normpath("/" + name).lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return str(folder)
        return ""

    def _after_fork_in_child(self) -> None:
        self._reset()


def default_service() -> CompileService:
    """The service that this process shares; made on first call from the environment."""
    global _default
    with _default_lock:
        if _default is None:
            _default = CompileService()
        return _default


def _check_hello(toolkit: Toolkit, hello: dict[str, Any]) -> None:
    """Refuses a worker whose NVRTC is not the one that the compile keys name."""
    version = tuple(hello["version"])
    if version != toolkit.version:
        raise ToolkitError(
            f"{toolkit.library} says it is NVRTC {version[0]}.{version[1]}, but the files beside it belong to "
            f"{toolkit.version_text}: reinstall it ({INSTALL_HINT})",
            package="nvidia-cuda-nvrtc",
        )


def _artifact(entry: Entry, origin: Any, started: float) -> Artifact:
    return Artifact(
        data=entry.data,
        key=entry.key,
        origin=origin,
        seconds=time.perf_counter() - started,
        cpu_seconds=entry.cpu_seconds,
        log=entry.log,
    )


_services: weakref.WeakSet[CompileService] = weakref.WeakSet()
_default: CompileService | None = None
_default_lock = threading.Lock()


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for service in list(_services):
        service._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
