"""The compile service: text in, compiled code out, from memory, disk or a pool of compiler processes.

Called by humming_torch's session, the command line and anyone who has CUDA text; safe in threads and after fork.
Assumes nothing of a GPU or driver: any target that the NVRTC at hand knows is compiled anywhere.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from types import TracebackType
from typing import Any

import attrs

from humming_compile.bundle import Bundle, write_bundle
from humming_compile.choice import Choice, choose_toolkit
from humming_compile.errors import MissingFromBundleError, ServiceClosedError, ToolkitError
from humming_compile.failures import explain_failure, keep_unit
from humming_compile.headers import Reached, reached_headers
from humming_compile.key import compile_key, compiler_options, request_digest
from humming_compile.pool import Pool, worker_command
from humming_compile.protocol import Message
from humming_compile.request import Artifact, CompileRequest, Origin
from humming_compile.settings import BUNDLES, Settings
from humming_compile.store import Entry, Store
from humming_compile.toolkit import INSTALL_HINT, Toolkit, find_toolkit, find_toolkits

_log = logging.getLogger("humming_compile")

Progress = Callable[[int, int, Artifact], None]


class CompileService:
    """Compiles requests, each key once.

    `settings` default to the environment (HUMMING_COMPILE_*). `toolkit` and `command` (of the worker processes) default
    to what is found; tests give their own. Nothing is searched, started or written before the first compile.
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
        self._found: tuple[Toolkit, ...] = () if toolkit is None else (toolkit,)
        self._command = command
        self._choices: dict[tuple[str, bool], Choice] = {}
        self._bundles: tuple[Bundle, ...] | None = None
        self._pools: dict[Toolkit, Pool] = {}
        self._memory: dict[str, Entry] = {}  # by the digest of the request, as `_running`
        self._closed = False
        self._reset()
        _services.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Future[Artifact]] = {}

    @property
    def toolkits(self) -> tuple[Toolkit, ...]:
        """The toolkits that are found, best first, searched for on first need. Raises ToolkitError without any."""
        if not self._found:
            self._found = tuple(find_toolkits(self.settings)) or (find_toolkit(self.settings),)
        return self._found

    @property
    def toolkit(self) -> Toolkit:
        """The best toolkit. A target that it does not know is compiled by another one: see `choice`."""
        return self.toolkits[0]

    def choice(self, target: str, needs_headers: bool = False) -> Choice:
        """The toolkit that compiles for a target, and why it is this one."""
        found = self._choices.get((target, needs_headers))
        if found is None:
            found = self._choices[target, needs_headers] = choose_toolkit(self.toolkits, target, needs_headers)
            if found.toolkit is not self.toolkit:
                _log.info(
                    "NVRTC %s from %s compiles for %s: %s",
                    found.toolkit.version_text,
                    found.toolkit.origin,
                    target,
                    found.reason,
                )
        return found

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """The bundles that settings name, opened on first need. Raises BundleError for one that cannot be read."""
        if self._bundles is None:
            self._bundles = tuple(map(Bundle.open, self.settings.bundle_files))
        return self._bundles

    @property
    def pool(self) -> Pool:
        """The worker processes of the best toolkit; none runs before the first compile."""
        return self._pool_of(self.toolkit)

    def _pool_of(self, toolkit: Toolkit) -> Pool:
        with self._lock:
            pool = self._pools.get(toolkit)
            if pool is None:
                if self._closed:
                    raise ServiceClosedError("the compile service was closed: make a new one")
                pool = self._pools[toolkit] = Pool(
                    self._command or worker_command(str(toolkit.library)),
                    size=self.settings.workers,
                    timeout=self.settings.timeout_seconds,
                    idle_seconds=self.settings.idle_seconds,
                    check_hello=partial(_check_hello, toolkit),
                )
            return pool

    def compile(self, request: CompileRequest) -> Artifact:
        """The compiled code of one request.

        Threads that ask for the same key at once share one compile. Raises CompileError (with NVRTC's log) or one of
        its subclasses for a missing header, an unknown target, a crash or a time-out; ToolkitError without NVRTC
        (MissingFromBundleError where there are bundles); StoreError when the cache folder lacks the entry and cannot be
        written.
        """
        started = time.perf_counter()
        reached = reached_headers(request.unit_text, request.headers)
        digest = request_digest(request, reached)
        with self._lock:
            entry = self._memory.get(digest)
            future = None
            if entry is None:
                future = self._running.get(digest)
                if future is None:
                    mine = self._running[digest] = Future()
        if entry is not None:
            return _artifact(entry, "memory", started)
        if future is not None:
            shared = future.result()
            return attrs.evolve(shared, origin="memory", seconds=time.perf_counter() - started)
        try:
            entry, origin = self._find_or_compile(request, reached, digest)
            with self._lock:
                self._memory[digest] = entry
            artifact = _artifact(entry, origin, started)
            mine.set_result(artifact)
            return artifact
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                self._running.pop(digest, None)

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
        toolkit = self.choice(request.target, bool(reached.foreign)).toolkit
        entry = self._compile(request, reached, toolkit, compile_key(request, toolkit, reached))
        return _artifact(entry, "compiled", started)

    def write_bundle(
        self,
        path: str | os.PathLike[str],
        requests: Iterable[CompileRequest],
        *,
        attachments: Mapping[str, bytes] | None = None,
        about: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Bundle:
        """Compiles the requests and writes them into one file, from which a machine without a compiler serves them.

        `attachments` and `about` go along: see Bundle. Raises what `compile_many` raises, and BundleError.
        """
        wanted = list(requests)
        self.compile_many(wanted, progress)
        digests = [request_digest(item, reached_headers(item.unit_text, item.headers)) for item in wanted]
        with self._lock:
            kernels = {
                digest: attrs.evolve(self._memory[digest], name=item.name)
                for digest, item in zip(digests, wanted, strict=True)
            }
        return write_bundle(path, kernels, attachments=attachments, about=about)

    def close(self) -> None:
        """Ends the worker processes. What is in memory and on disk is still served."""
        with self._lock:
            self._closed = True
            pools = list(self._pools.values())
        for pool in pools:
            pool.close()

    def __enter__(self) -> CompileService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _find_or_compile(self, request: CompileRequest, reached: Reached, digest: str) -> tuple[Entry, Origin]:
        for bundle in self.bundles:
            entry = bundle.read(digest)
            if entry is not None:
                return entry, "bundle"
        try:
            toolkit = self.choice(request.target, bool(reached.foreign)).toolkit
        except ToolkitError as error:
            if not self.bundles:
                raise
            raise _missing_from(self.bundles, request, error) from error
        key = compile_key(request, toolkit, reached, digest)
        entry = self.store.read(key, request.target, request.output)
        if entry is not None:
            return entry, "disk"
        for bundle in self.bundles:
            _log.info("%r is compiled: the bundle %s %s", request.name, bundle.path, bundle.lack_of(request))
        with self.store.lock(key, self.settings.timeout_seconds):
            entry = self.store.read(key, request.target, request.output, quiet=True)
            if entry is not None:
                return entry, "disk"
            entry = self._compile(request, reached, toolkit, key)
            self.store.publish(entry)
        return entry, "compiled"

    def _compile(self, request: CompileRequest, reached: Reached, toolkit: Toolkit, key: str) -> Entry:
        options = list(compiler_options(request))
        if reached.foreign:
            options += [f"--include-path={folder}" for folder in toolkit.include_folders]
        answer = self._pool_of(toolkit).run(
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
            raise explain_failure(
                request,
                toolkit,
                str(answer.head.get("message", "")),
                log,
                known_targets=partial(self.known_targets, toolkit),
                keep=partial(keep_unit, request, reached, self.settings.keep_folder),
            )
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

    def known_targets(self, toolkit: Toolkit | None = None) -> tuple[str, ...]:
        """Targets that a toolkit (the best one) knows, without 'a' and 'f'. Starts a worker if none has run."""
        pool = self._pool_of(toolkit or self.toolkit)
        hello = pool.hello or pool.run(None, "nothing", "no target").head
        return tuple(f"sm_{number}" for number in hello["architectures"])

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


def _missing_from(bundles: Sequence[Bundle], request: CompileRequest, error: ToolkitError) -> MissingFromBundleError:
    lacks = "; ".join(f"the bundle {bundle.path} {bundle.lack_of(request)}" for bundle in bundles)
    return MissingFromBundleError(
        f"the kernel {request.name!r} for {request.target} is missing: {lacks}. It cannot be compiled here either "
        f"({error}). Make a bundle that has it where there is a compiler, and name it in {BUNDLES}",
        name=request.name,
        target=request.target,
        bundles=tuple(str(bundle.path) for bundle in bundles),
    )


def _artifact(entry: Entry, origin: Origin, started: float) -> Artifact:
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
