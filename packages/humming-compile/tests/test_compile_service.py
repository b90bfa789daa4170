"""The service with a stub compiler: one compile per key in threads and processes (field report 13), and many at once.

Run by pytest.
Assumes two cores; the slow part is the start of fresh Python processes.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import attrs
import pytest
from humming_compile import (
    CompileError,
    CompileRequest,
    CompileService,
    MissingHeaderError,
    ServiceClosedError,
    ToolkitError,
    UnknownTargetError,
    default_service,
)


def unit(text: str, name: str = "kernel", **more: object) -> CompileRequest:
    return CompileRequest(unit_text=text, target="sm_90a", name=name, **more)


def test_memory_then_disk_then_compiler(stub) -> None:
    service = stub.service()
    first, second = service.compile(unit("int x;")), service.compile(unit("int x;", "other name"))
    third = stub.service().compile(unit("int x;"))
    assert [first.origin, second.origin, third.origin] == ["compiled", "memory", "disk"]
    assert first.data == second.data == third.data and first.key == second.key == third.key
    assert (third.log, third.cpu_seconds) == ("a note", 0.25)
    assert 0 < third.seconds < 10
    assert stub.compiled() == ["kernel"]


def test_a_service_does_nothing_before_the_first_compile(stub) -> None:
    service = stub.service()
    assert service.pool.worker_ids() == () and not stub.cache.exists()


def test_the_worker_gets_the_reached_headers_only(stub) -> None:
    headers = {"humming/a.cuh": "int a;", "humming/b.cuh": "int b;"}
    service = stub.service()
    with_more = service.compile(unit("#include <humming/a.cuh>\n", headers=headers))
    alone = service.compile_fresh(unit("#include <humming/a.cuh>\n", headers={"humming/a.cuh": "int a;"}))
    assert alone.data == with_more.data, "the stub's data is a digest of all it was given"


def test_threads_share_one_compile(stub) -> None:
    service = stub.service()
    artifacts = []
    threads = [
        threading.Thread(target=lambda: artifacts.append(service.compile(unit("// sleep 0.3\n")))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(artifacts) == 8 and len({artifact.data for artifact in artifacts}) == 1
    assert stub.compiled() == ["kernel"]


def test_threads_share_one_error_and_the_next_call_tries_again(stub) -> None:
    service = stub.service()
    errors = []

    def compile_it() -> None:
        with pytest.raises(CompileError) as caught:
            service.compile(unit("// fail here\n"))
        errors.append(caught.value)

    threads = [threading.Thread(target=compile_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compile_it()
    assert [error.log for error in errors] == ["here"] * 5
    assert 2 <= len(stub.compiled()) <= 5


def start_together(script: str, count: int, gate: Path) -> list[subprocess.Popen]:
    """Starts processes that wait for the gate file, opens it when all stand at it, and returns them."""
    barrier = f"\nprint('ready', flush=True)\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.005)\n"
    opening, body = script.split("# barrier", 1)
    processes = [
        subprocess.Popen([sys.executable, "-c", opening + barrier + body], stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    gate.touch()
    return processes


SLOW_WRITER = """
import humming_compile.store as store_module
real_fdopen, real_publish = os.fdopen, store_module.Store.publish
class InPieces:
    def __init__(self, file):
        self.file = file
    def write(self, data):
        step = len(data) // 10
        for start in range(0, len(data), step):
            self.file.write(data[start:start + step])
            self.file.flush()
            time.sleep(0.02)
    def __getattr__(self, name):
        return getattr(self.file, name)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.file.close()
def publish(self, entry):
    os.fdopen = lambda *rest: InPieces(real_fdopen(*rest))
    real_publish(self, entry)
    os.fdopen = real_fdopen
store_module.Store.publish = publish
"""


@pytest.mark.parametrize("locks", [True, False])
def test_sixteen_processes_on_an_empty_cache(stub, tmp_path: Path, locks: bool) -> None:
    """Field report 13: three keys, all at once, a slow compiler and entries that are written in pieces."""
    no_locks = "import fcntl\ndef no(*_): raise OSError(37, 'no locks')\nfcntl.flock = no\n"
    script = stub.script(
        SLOW_WRITER
        + ("" if locks else no_locks)
        + "import hashlib, logging\nlogging.basicConfig(stream=sys.stdout)\n"
        + "# barrier\n"
        + "for artifact in service.compile_many([unit(f'// sleep 0.2\\n// {number}') for number in range(3)]):\n"
        + "    print(hashlib.sha256(artifact.data).hexdigest(), len(artifact.data), artifact.origin)\n"
    )
    started = time.monotonic()
    processes = start_together(script, 16, tmp_path / "gate")
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0] * 16
    assert all(len(lines) == 3 for lines in outputs), f"a warning was logged: {outputs}"
    for number in range(3):
        answers = [lines[number].split() for lines in outputs]
        assert {tuple(answer[:2]) for answer in answers} == {(answers[0][0], "96000")}
    origins = [line.split()[2] for lines in outputs for line in lines]
    if locks:
        assert len(stub.compiled()) == 3
        assert sorted(origins) == ["compiled"] * 3 + ["disk"] * 45
    else:
        assert len(stub.compiled()) == origins.count("compiled") >= 3
    assert [path.suffix for path in stub.cache.iterdir()] == [".entry"] * 3
    assert time.monotonic() - started < 60


def test_a_second_process_reuses_what_the_first_one_made(stub, run_script) -> None:
    script = stub.script("print(service.compile(unit('int x;')).origin)")
    assert [run_script(script).stdout.strip() for _ in range(2)] == ["compiled", "disk"]
    assert stub.compiled() == ["kernel"]


def test_many_requests_keep_their_order_and_tell_progress(stub) -> None:
    service = stub.service()
    requests = [unit(f"// sleep {0.2 - 0.02 * number}\n", f"k{number}") for number in range(8)]
    told = []
    artifacts = service.compile_many(requests, progress=lambda *step: told.append((*step[:2], step[2].key)))
    assert [artifact.data for artifact in artifacts] == [service.compile(request).data for request in requests]
    assert [step[:2] for step in told] == [(number, 8) for number in range(1, 9)]
    assert {step[2] for step in told} == {artifact.key for artifact in artifacts}
    assert len(service.pool.worker_ids()) == 2
    assert service.compile_many([]) == []


def test_many_requests_run_side_by_side(stub) -> None:
    service = stub.service(workers=4)
    service.compile_many([unit(f"// sleep 0.1\n//{number}") for number in range(4)])  # all workers are up now
    started = time.perf_counter()
    service.compile_many([unit(f"// sleep 0.5\n//{number}") for number in range(4)])
    assert time.perf_counter() - started < 1.6, "four sleeps of 0.5 s, one after the other, take 2 s"


def test_many_requests_with_the_same_key_compile_once(stub) -> None:
    assert len(stub.service().compile_many([unit("// sleep 0.1\n")] * 6)) == 6
    assert stub.compiled() == ["kernel"]


def test_an_error_among_many_is_raised_and_the_service_goes_on(stub) -> None:
    service = stub.service()
    requests = [unit("// fail here\n", "bad"), *(unit(f"// sleep 0.05\n//{number}") for number in range(20))]
    with pytest.raises(CompileError, match="'bad'"):
        service.compile_many(requests)
    assert len(stub.compiled()) < 21, "requests not begun are dropped"
    assert service.compile(unit("int x;")).origin == "compiled"


def test_a_failed_unit_is_saved_where_settings_ask_for_it(stub, tmp_path: Path) -> None:
    service = stub.service(keep_folder=tmp_path / "kept")
    bad = unit("// fail line 3\n#include <humming/a.cuh>\n", "odd/../name", headers={"humming/a.cuh": "int a;"})
    with pytest.raises(CompileError, match="saved in") as caught:
        service.compile(bad)
    folder = Path(caught.value.kept_at)
    assert folder.parent == tmp_path / "kept"
    assert (folder / "humming/a.cuh").read_text() == "int a;"
    assert [path.read_text() for path in folder.glob("*.cu")] == [bad.unit_text]
    with pytest.raises(CompileError, match="HUMMING_COMPILE_KEEP_DIR") as caught:
        stub.service().compile(bad)
    assert caught.value.kept_at == ""


@pytest.mark.parametrize(
    ("log", "kind", "words"),
    [
        ('unit.cu(1): error: cannot open source file "cuda_fp8.h"', MissingHeaderError, "nvidia-cuda-runtime>=13,<14"),
        ('unit.cu(1): error: could not open source file "cuda/std/array"', MissingHeaderError, "nvidia-cuda-cccl>=13"),
        ('x: cannot open source file "humming/x.cuh"', MissingHeaderError, "not among the headers of the request"),
        ("nvrtc: error: invalid value for --gpu-architecture (-arch)", UnknownTargetError, "it knows sm_75, sm_90"),
        ("nvrtc: error: failed to open libnvrtc-builtins.so.13.0.", ToolkitError, "reinstall"),
    ],
)
def test_what_nvrtc_says_becomes_one_line(stub, log: str, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        stub.service().compile(unit(f"// fail {log}\n"))
    assert "\n" not in str(caught.value)


def test_a_worker_with_another_compiler_than_the_files_say_is_refused(stub) -> None:
    with pytest.raises(ToolkitError, match=r"says it is NVRTC 12\.9, but the files beside it belong to 13\.0"):
        stub.service(version="12.9").compile(unit("int x;"))


def test_a_closed_service_serves_memory_and_refuses_to_compile(stub) -> None:
    with stub.service() as service:
        service.compile(unit("int x;"))
    assert service.compile(unit("int x;")).origin == "memory"
    with pytest.raises(ServiceClosedError):
        service.compile(unit("int y;"))


def test_fresh_compiles_leave_no_trace(stub) -> None:
    service = stub.service()
    assert [service.compile_fresh(unit("int x;")).origin for _ in range(2)] == ["compiled"] * 2
    assert not stub.cache.exists() and len(stub.compiled()) == 2


def test_the_default_service_is_one_per_process() -> None:
    assert isinstance(default_service(), CompileService) and default_service() is default_service()


def test_errors_of_the_service_survive_pickling(stub) -> None:
    with pytest.raises(UnknownTargetError) as caught:
        stub.service().compile(unit("// fail invalid value for --gpu-architecture\n"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is UnknownTargetError and str(copy) == str(caught.value)
    assert (copy.known, copy.log, copy.name) == (("sm_75", "sm_90"), caught.value.log, "kernel")


def test_artifacts_print_short(stub) -> None:
    artifact = stub.service().compile(unit("int x;"))
    assert "<96000 bytes>" in repr(artifact) and len(repr(artifact)) < 400
    assert attrs.evolve(artifact, seconds=1.0) != artifact
