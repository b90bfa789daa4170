"""One session per GPU: its facts, the functions loaded on it, its plans, and scratch memory per stream.

Called by the ops and by `Linear` through `session_of(device)`.
Assumes torch has made the device's primary context; compiles through the process's shared CompileService.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import torch
from humming_compile.module import Function, load_function
from humming_compile.request import Artifact, CompileRequest
from humming_compile.service import CompileService, default_service
from humming_kernels.arch import DeviceFacts, arch_of_capability
from humming_kernels.compose import KernelSource
from humming_kernels.errors import KernelError

from humming_torch.checks import refuse_device
from humming_torch.errors import UnsupportedError
from humming_torch.launch import Scratch, bind_context
from humming_torch.plan import Plan, dense_configs

Progress = Callable[[int, int, Artifact], None]

_ARENA_BYTES = 1 << 20
_ARENA_LOW = _ARENA_BYTES // 2
_SLICE = 16


class Session:
    """Functions, plans and scratch memory of one GPU.

    `service` compiles; the process's shared one unless given. Thread-safe.
    """

    def __init__(self, device: torch.device, service: CompileService | None = None) -> None:
        if device.type != "cuda":
            raise refuse_device(device)
        self.index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", self.index)
        properties = torch.cuda.get_device_properties(self.index)
        try:
            arch = arch_of_capability(properties.major, properties.minor)
        except KernelError as error:
            raise UnsupportedError(f"{properties.name}: {error}") from error
        self.facts = DeviceFacts(arch=arch, multiprocessors=properties.multi_processor_count)
        self._service = service
        self._lock = threading.RLock()
        self._functions: dict[tuple[str, str, tuple[str, ...]], Function] = {}
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._scratch: dict[int, Scratch] = {}
        self._kept: list[torch.Tensor] = []  # memory that a captured graph may still point at
        self._arena: torch.Tensor | None = None
        self._arena_used = 0

    @property
    def service(self) -> CompileService:
        """The compile service in use."""
        return self._service or default_service()

    def plan(self, text: str, n: int, k: int, activation: torch.dtype, output: torch.dtype, bias: bool) -> Plan:
        """The plan of all layers of this format, shape and signature; made on first use, compiled by `prepare`."""
        key = (text, n, k, activation, output, bias)
        plan = self._plans.get(key)
        if plan is None:
            layer, compute = dense_configs(text, n, k, activation, output, bias)
            with self._lock:
                plan = self._plans.setdefault(key, Plan(self, layer, compute, output))
        return plan

    def load(self, sources: Iterable[KernelSource], progress: Progress | None = None) -> list[Function]:
        """The loaded function of each source, compiling those that are not there yet, side by side."""
        wanted = list(sources)
        keys = [(source.unit_text, source.target, tuple(source.options)) for source in wanted]
        # The kernels of the most tokens come last and compile longest: begin with them.
        named = reversed(list(zip(keys, wanted, strict=True)))
        missing = {key: source for key, source in named if key not in self._functions}
        if missing:
            # Outside the lock: layers that are prepared in several threads compile side by side, and the service
            # compiles equal requests once.
            artifacts = self.service.compile_many([compile_request(s) for s in missing.values()], progress)
            with self._lock, torch.cuda.device(self.index):
                bind_context(self.index)
                for (key, source), artifact in zip(missing.items(), artifacts, strict=True):
                    if key not in self._functions:
                        function = load_function(artifact.data, source.symbol, self.index)
                        function.allow_shared_bytes(source.recipe.shared_bytes)
                        self._functions[key] = function
        return [self._functions[key] for key in keys]

    def scratch(self, stream: int, workspace_bytes: int, counter_bytes: int) -> Scratch:
        """Workspace and zeroed counters for one launch on the current stream, whose handle is `stream`.

        Launches of one stream follow each other and share theirs. Under capture every launch gets its own: graphs are
        replayed on any stream, beside anything. The caller keeps the result until it has launched.
        """
        if torch.cuda.is_current_stream_capturing():
            workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=self.device)
            return Scratch(workspace, self._captured_counters(counter_bytes))
        held = self._scratch.get(stream)
        if held is None or held.workspace_bytes < workspace_bytes or held.counter_bytes < counter_bytes:
            held = self._grow(stream, workspace_bytes, counter_bytes)
        return held

    def fill_arena(self) -> None:
        """See that counters for captured launches are at hand, zeroed; not to be called under capture."""
        with self._lock:
            if self._arena is None or self._arena.numel() - self._arena_used < _ARENA_LOW:
                if self._arena is not None:
                    self._kept.append(self._arena)
                with torch.cuda.device(self.index):
                    self._arena = torch.zeros(_ARENA_BYTES, dtype=torch.uint8, device=self.device)
                    torch.cuda.current_stream().synchronize()  # graphs replay on other streams
                self._arena_used = 0

    def _captured_counters(self, nbytes: int) -> torch.Tensor:
        """A slice of the arena that no other launch ever gets; when it is used up, zeroed inside the graph instead."""
        with self._lock:
            end = self._arena_used + -(-nbytes // _SLICE) * _SLICE
            if self._arena is None or end > self._arena.numel():
                return torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
            counters = self._arena[self._arena_used : end]
            self._arena_used = end
            return counters

    def _grow(self, stream: int, workspace_bytes: int, counter_bytes: int) -> Scratch:
        """Larger scratch for a stream. What it had is freed in stream order, after the launches that use it."""
        with self._lock:
            old = self._scratch.get(stream)
            if old is not None:
                workspace_bytes = max(workspace_bytes, old.workspace_bytes)
                counter_bytes = max(counter_bytes, old.counter_bytes)
            held = Scratch(
                torch.empty(max(workspace_bytes, _SLICE), dtype=torch.uint8, device=self.device),
                torch.zeros(max(counter_bytes, _SLICE), dtype=torch.uint8, device=self.device),
            )
            self._scratch[stream] = held
            return held


def compile_request(source: KernelSource) -> CompileRequest:
    """What to ask the compile service for a composed kernel."""
    return CompileRequest(
        unit_text=source.unit_text,
        headers=source.headers,
        target=source.target,
        options=source.options,
        name=source.symbol,
    )


_sessions: dict[int, Session] = {}
_sessions_lock = threading.Lock()


def session_of(device: torch.device) -> Session:
    """The session of a GPU, made on first use. Raises UnsupportedError for any other device."""
    index = device.index
    if device.type != "cuda":
        raise refuse_device(device)
    if index is None:
        index = torch.cuda.current_device()
    session = _sessions.get(index)
    if session is None:
        with _sessions_lock:
            session = _sessions.get(index)
            if session is None:
                session = _sessions[index] = Session(torch.device("cuda", index))
    return session
