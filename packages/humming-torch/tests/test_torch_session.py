"""Sessions without a GPU: each kernel loaded once, scratch memory per stream, counters that no two captures share.

Run by pytest.
Assumes stand-ins for torch.cuda, the compile service and the driver; memory comes from the CPU.
"""

import contextlib

import pytest
import torch
from humming_compile.request import Artifact
from humming_torch import session as session_module
from humming_torch.errors import UnsupportedError
from humming_torch.plan import dense_configs, range_sources
from humming_torch.session import Session, session_of


class FakeService:
    """Counts what it is asked for."""

    def __init__(self):
        self.requests = []

    def compile_many(self, requests, progress=None):
        self.requests += requests
        artifacts = []
        for done, request in enumerate(requests, 1):
            data = request.name.encode()
            artifacts.append(Artifact(data=data, key="0" * 64, origin="compiled", seconds=0, cpu_seconds=0, log=""))
            if progress is not None:
                progress(done, len(requests), artifacts[-1])
        return artifacts


class FakeFunction:
    def __init__(self, data, symbol, index):
        assert data == symbol.encode() and index == 0
        self.shared = None

    def allow_shared_bytes(self, count):
        self.shared = count


@pytest.fixture
def capturing(monkeypatch):
    """Set its only item to true for a stream that is being captured."""
    state = [False]
    stream = type("Stream", (), {"synchronize": lambda self: None, "query": lambda self: True})()
    properties = type("Properties", (), {"major": 9, "minor": 0, "multi_processor_count": 132, "name": "GPU"})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(session_module, "load_function", FakeFunction)
    return state


@pytest.fixture
def session(capturing):
    made = Session(torch.device("cuda", 0), FakeService())
    made.device = torch.device("cpu")
    return made


def sources(session, text="u4g128", n=576, k=1536):
    layer, compute = dense_configs(text, n, k, torch.bfloat16, torch.bfloat16, False)
    return [entry.source for entry in range_sources(layer, compute, session.facts, 256)]


def test_layers_of_one_format_share_their_loaded_kernels(session):
    wanted = sources(session)
    seen = []
    first = session.load(wanted, lambda done, total, artifact: seen.append((done, total)))
    unique = len({source.unit_text for source in wanted})
    assert seen == [(i, unique) for i in range(1, unique + 1)]
    assert [function.shared for function in first] == [source.recipe.shared_bytes for source in wanted]
    assert session.load(sources(session)) == first
    other = session.load(sources(session, n=640))
    assert set(other) & set(first)
    assert len(session.service.requests) == len({request.unit_text for request in session.service.requests})


def test_plans_are_shared_by_signature(session):
    arguments = ("u4g128", 64, 128, torch.bfloat16, torch.bfloat16, False)
    plan = session.plan(*arguments)
    assert session.plan(*arguments) is plan
    assert session.plan(*arguments[:-1], True) is not plan


def test_a_stream_keeps_its_scratch_memory_and_it_only_grows(session):
    first = session.scratch(1, 1000, 64)
    assert first.workspace.numel() >= 1000 and first.counters.numel() >= 64 and not first.counters.any()
    assert first.workspace_address == first.workspace.data_ptr() and first.counters_address == first.counters.data_ptr()
    assert session.scratch(1, 500, 32) is first
    larger = session.scratch(1, 2000, 16)
    assert larger.workspace.numel() >= 2000 and larger.counters.numel() >= 64
    assert session.scratch(1, 1000, 64) is larger
    assert session.scratch(2, 1000, 64).workspace_address != larger.workspace_address


def test_captured_launches_share_counters_with_nobody(session, capturing):
    session.fill_arena()
    eager = session.scratch(1, 64, 1000)
    capturing[0] = True
    captured = [session.scratch(1, 64, size) for size in (1, 20, 1000, 1 << 20, 40)]
    spans = [(c.data_ptr(), c.data_ptr() + c.numel()) for c in (each.counters for each in [eager, *captured])]
    for index, (first, last) in enumerate(spans):
        assert all(last <= start or end <= first for start, end in spans[:index])
        assert first % 16 == 0
    assert all(not each.counters.any() for each in captured)
    assert [each.counters.numel() >= size for each, size in zip(captured, (1, 20, 1000, 1 << 20, 40), strict=True)]
    assert all(each.workspace_address != eager.workspace_address for each in captured)


def test_the_arena_is_refilled_and_what_graphs_point_at_is_kept(session, capturing):
    session.fill_arena()
    capturing[0] = True
    first = session.scratch(1, 0, 700_000).counters
    capturing[0] = False
    session.fill_arena()
    capturing[0] = True
    second = session.scratch(1, 0, 700_000).counters
    assert second.data_ptr() != first.data_ptr()
    assert any(kept.data_ptr() == first.data_ptr() for kept in session._kept)


def test_devices_without_kernels_are_refused(capturing, monkeypatch):
    for device in ("cpu", "meta"):
        with pytest.raises(UnsupportedError, match=device):
            session_of(torch.device(device))
    old = type("Properties", (), {"major": 6, "minor": 1, "multi_processor_count": 20, "name": "Old GPU"})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: old)
    with pytest.raises(UnsupportedError, match=r"Old GPU.*6\.1"):
        Session(torch.device("cuda", 0), FakeService())
