"""A GPU's place taken by the CPU, so that the call path runs where there is none: sessions, functions, torch.cuda.

Called by the tests of humming-torch and by tests/support/call_path.py.
Assumes that tensors on the CPU have the device index -1, which stands for the GPU's; kernels are recorded, not run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import attrs
import torch
from humming_compile.module import ArgumentBuffer
from humming_kernels.arch import DeviceFacts, find_arch
from humming_kernels.launch import ARGUMENT_FIELDS, ARGUMENTS, TENSOR_MAP_BYTES
from humming_torch import direct, launch, modules, plan
from humming_torch.launch import Scratch
from humming_torch.plan import Plan, dense_configs

STREAM = 0x5EED
INDEX = -1


@attrs.frozen(kw_only=True)
class Call:
    """One recorded launch: grid, threads, shared bytes, stream, the argument fields by name and all bytes."""

    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    stream: int
    fields: dict[str, int]
    data: bytes


class RecordingFunction:
    """Stands for a loaded kernel and records its launches."""

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol
        self.calls: list[Call] = []

    def launch(
        self, grid: tuple[int, int, int], block: int, shared_bytes: int, stream: int, arguments: ArgumentBuffer
    ) -> None:
        values = ARGUMENTS.unpack_from(arguments.view)
        fields = dict(zip((name for name, _ in ARGUMENT_FIELDS), values, strict=True))
        self.calls.append(
            Call(
                grid=grid,
                threads=block,
                shared_bytes=shared_bytes,
                stream=stream,
                fields=fields,
                data=bytes(arguments.view),
            )
        )


class FakeEncoder:
    """Tensor maps that say which activations they are of."""

    def encode(self, address: int, rows: int, columns: int, row_bytes: int, box_rows: int, box_columns: int) -> bytes:
        text = f"{address} {rows} {columns} {row_bytes} {box_rows} {box_columns}"
        return text.encode().ljust(TENSOR_MAP_BYTES)


class FakeSession:
    """Plans and scratch memory as a session has them; `make_function` makes what stands for a loaded kernel."""

    index = INDEX
    device = torch.device("cpu")
    facts = DeviceFacts(arch=find_arch("sm_90a"), multiprocessors=132)

    def __init__(self, make_function: Callable[[str], Any] = RecordingFunction) -> None:
        self.make_function = make_function
        self.functions: dict[str, Any] = {}
        self.scratches: list[Scratch] = []
        self._plans: dict[tuple[object, ...], Plan] = {}

    def plan(self, text: str, n: int, k: int, activation: torch.dtype, output: torch.dtype, bias: bool) -> Plan:
        key = (text, n, k, activation, output, bias)
        if key not in self._plans:
            layer, compute = dense_configs(*key)
            self._plans[key] = Plan(self, layer, compute, output)  # type: ignore[arg-type]
        return self._plans[key]

    def load(self, sources: Any, progress: object = None) -> list[Any]:
        for source in sources:
            self.functions.setdefault(source.unit_text, self.make_function(source.symbol))
        return [self.functions[source.unit_text] for source in sources]

    def fill_arena(self) -> None:
        """Counters of captured launches come from `scratch` here."""

    def scratch(self, stream: int, workspace_bytes: int, counter_bytes: int) -> Scratch:
        made = Scratch(torch.empty(workspace_bytes, dtype=torch.uint8), torch.zeros(counter_bytes, dtype=torch.uint8))
        self.scratches.append(made)
        return made

    @property
    def calls(self) -> list[Call]:
        return [call for function in self.functions.values() for call in function.calls]


@attrs.define(kw_only=True)
class FakeCuda:
    """What torch.cuda says: whether the current stream is being captured, and which device is current."""

    session: FakeSession
    capturing: bool = False
    device: int = INDEX


@contextlib.contextmanager
def fake_cuda(session: FakeSession | None = None) -> Iterator[FakeCuda]:
    """Within the block, layers on the CPU take the call path of a GPU that has the index -1."""
    state = FakeCuda(session=session or FakeSession())
    stream = mock.Mock(cuda_stream=STREAM)

    @contextlib.contextmanager
    def on_device(index: int) -> Iterator[None]:
        before, state.device = state.device, index
        yield
        state.device = before

    with contextlib.ExitStack() as stack:

        def replace(owner: Any, name: str, value: object) -> None:
            stack.enter_context(mock.patch.object(owner, name, value, create=True))

        replace(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
        replace(torch.cuda, "current_stream", lambda device=None: stream)
        replace(torch.cuda, "device", on_device)
        for owner, name in ((torch._C, "_cuda_getDevice"), (direct, "current_device")):
            replace(owner, name, lambda: state.device)
        for owner, name in ((torch._C, "_cuda_getCurrentRawStream"), (direct, "current_stream")):
            replace(owner, name, lambda index: STREAM)
        replace(direct, "_empty_strided", torch._C._dynamo.guards._empty_strided_cpu)
        replace(launch, "TensorMapEncoder", FakeEncoder)
        replace(plan, "bind_context", lambda index: launch.THREAD.bound.add(index))
        replace(modules, "session_of", lambda device: state.session)
        replace(modules, "has_kernels", lambda tensor: tensor.device.type == "cpu")
        yield state
    launch.THREAD.bound.discard(INDEX)
