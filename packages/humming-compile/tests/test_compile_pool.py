"""The worker processes: crashes, hangs, kills, forks, and no child left behind (field report 17).

Run by pytest.
Assumes Linux: /proc tells the children of a process.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time

import pytest
from humming_compile import CompileRequest, WorkerCrashError, WorkerTimeoutError


def unit(text: str, name: str = "kernel") -> CompileRequest:
    return CompileRequest(unit_text=text, target="sm_90a", name=name)


def alive(process: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_workers_are_kept_and_reused(stub) -> None:
    service = stub.service()
    service.compile(unit("int x;"))
    first = service.pool.worker_ids()
    service.compile(unit("int y;"))
    assert len(first) == 1 and service.pool.worker_ids() == first


def test_a_crash_is_an_error_with_its_log_and_the_next_request_works(stub) -> None:
    service = stub.service()
    with pytest.raises(WorkerCrashError, match="exit code 3") as caught:
        service.compile(unit("// exit 3\n", "bad"))
    error = caught.value
    assert (error.exit_code, error.log, error.name) == (3, "the compiler is unwell", "bad")
    assert "the compiler is unwell" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert service.compile(unit("int x;")).origin == "compiled"


def test_a_worker_that_is_killed_is_an_error_and_the_next_request_works(stub) -> None:
    service = stub.service()
    with pytest.raises(WorkerCrashError, match="SIGKILL, perhaps for lack of memory") as caught:
        service.compile(unit("// kill\n"))
    assert caught.value.exit_code == -9
    assert service.compile(unit("int x;")).origin == "compiled"


def test_kill_from_outside_in_the_middle_of_a_compile(stub) -> None:
    service = stub.service()
    errors = []

    def compile_it() -> None:
        with pytest.raises(WorkerCrashError) as caught:
            service.compile(unit("// hang\n"))
        errors.append(caught.value)

    thread = threading.Thread(target=compile_it)
    thread.start()
    assert wait_until(lambda: stub.compiled() == ["kernel"])
    os.kill(service.pool.worker_ids()[0], signal.SIGKILL)
    thread.join(10)
    assert [error.exit_code for error in errors] == [-9]
    assert service.compile(unit("int x;")).origin == "compiled"


def test_an_idle_worker_that_was_killed_is_replaced_without_a_word(stub) -> None:
    service = stub.service()
    service.compile(unit("int x;"))
    (old,) = service.pool.worker_ids()
    os.kill(old, signal.SIGKILL)
    os.waitid(os.P_PID, old, os.WEXITED | os.WNOWAIT)  # it has ended, and is left for its owner to find
    assert service.compile(unit("int y;")).origin == "compiled"
    assert old not in service.pool.worker_ids()


def test_a_hung_worker_is_ended_at_the_time_out(stub) -> None:
    service = stub.service(timeout=0.6)
    service.compile(unit("int x;"))
    (old,) = service.pool.worker_ids()
    started = time.perf_counter()
    with pytest.raises(WorkerTimeoutError, match="HUMMING_COMPILE_TIMEOUT") as caught:
        service.compile(unit("// hang\n"))
    assert 0.5 < time.perf_counter() - started < 5 and caught.value.seconds == 0.6
    assert not alive(old)
    service.compile(unit("int y;"))


def test_a_worker_that_cannot_start_is_an_error(stub, tmp_path) -> None:
    service = stub.service()
    service._command = ("/bin/false",)
    with pytest.raises(WorkerCrashError, match="exit code 1"):
        service.compile(unit("int x;"))


def test_printing_does_not_reach_the_pipe(stub) -> None:
    assert stub.service().compile(unit("// print\n")).origin == "compiled"


def test_units_larger_than_a_pipe(stub) -> None:
    big = "\n".join(f"int x{number};" for number in range(200_000))
    assert stub.service().compile(unit(big)).origin == "compiled"


def test_more_threads_than_workers(stub) -> None:
    service = stub.service(workers=2)
    threads = [
        threading.Thread(target=service.compile, args=(unit(f"// sleep 0.05\n//{number}"),)) for number in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stub.compiled()) == 10 and len(service.pool.worker_ids()) <= 2


def test_closing_ends_busy_workers_too(stub) -> None:
    service = stub.service()
    service.compile(unit("int x;"))
    errors = []

    def compile_it() -> None:
        with pytest.raises(WorkerCrashError) as caught:
            service.compile(unit("// hang\n"))
        errors.append(caught.value)

    thread = threading.Thread(target=compile_it)
    thread.start()
    assert wait_until(lambda: len(stub.compiled()) == 2)
    workers = service.pool.worker_ids()
    service.close()
    thread.join(10)
    assert len(errors) == 1 and not any(map(alive, workers))
    service.close()


def test_a_forgotten_service_leaves_no_worker(stub) -> None:
    service = stub.service()
    service.compile(unit("int x;"))
    (worker,) = service.pool.worker_ids()
    stub.services.clear()
    del service
    assert wait_until(lambda: not alive(worker))


def test_no_worker_is_left_at_exit(stub, run_script) -> None:
    script = """
        import threading
        service.compile(unit('int x;'))
        threading.Thread(target=service.compile, args=(unit('// hang\\n'),), daemon=True).start()
        while len(open(COUNT).readlines()) < 2: time.sleep(0.01)
        print(*service.pool.worker_ids())
    """.replace("COUNT", repr(str(stub.count_file)))
    done = run_script(stub.script(script))
    workers = [int(word) for word in done.stdout.split()]
    assert done.returncode == 0 and workers and not any(map(alive, workers)), done.stderr


def test_workers_end_when_their_parent_is_killed(stub, run_script) -> None:
    """Also in the middle of a compile: the worker watches its pipe."""
    script = """
        import signal, threading
        service.compile(unit('int x;'))
        threading.Thread(target=service.compile, args=(unit('// hang\\n'),), daemon=True).start()
        while len(open(COUNT).readlines()) < 2: time.sleep(0.01)
        print(*service.pool.worker_ids(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """.replace("COUNT", repr(str(stub.count_file)))
    done = run_script(stub.script(script))
    workers = [int(word) for word in done.stdout.split()]
    assert done.returncode == -signal.SIGKILL and workers
    assert wait_until(lambda: not any(map(alive, workers)))


def test_a_forked_child_has_workers_of_its_own(stub, run_script) -> None:
    script = """
        service.compile(unit('int x;'))
        before = service.pool.worker_ids()
        child = os.fork()
        if child == 0:
            print('child memory', service.compile(unit('int x;')).origin, flush=True)
            print('child', service.compile(unit('// child\\n', 'child')).origin, flush=True)
            print('child shares', bool(set(service.pool.worker_ids()) & set(before)), flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print('status', status)
        print('parent', service.compile(unit('// parent\\n', 'parent')).origin)
    """
    done = run_script(stub.script(script))
    assert done.stdout.splitlines() == [
        "child memory memory",
        "child compiled",
        "child shares False",
        "status 0",
        "parent compiled",
    ], done.stderr
    assert done.stderr == ""


def test_a_fork_in_the_middle_of_a_compile(stub, run_script) -> None:
    """The child neither waits for the parent's compile nor disturbs it, and the worker outlives neither."""
    script = """
        import threading
        def late():
            print('parent', service.compile(unit('// sleep 1\\n', 'same')).origin, flush=True)
        thread = threading.Thread(target=late)
        thread.start()
        while not os.path.exists(COUNT): time.sleep(0.01)
        child = os.fork()
        if child == 0:
            service.compile(unit('int x;'))
            print('child', flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        thread.join()
    """.replace("COUNT", repr(str(stub.count_file)))
    done = run_script(stub.script(script))
    assert done.stdout.splitlines() == ["child", "parent compiled"], done.stderr


def test_with_sigchld_ignored(stub, run_script) -> None:
    """The kernel then reaps children by itself and no exit code is known."""
    script = """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print(service.compile(unit('int x;')).origin)
        try:
            service.compile(unit('// exit 3\\n'))
        except HummingCompileError as error:
            print(type(error).__name__, error.exit_code, error.log)
        print(service.compile(unit('int y;')).origin)
        service.close()
    """
    done = run_script(stub.script(script))
    assert done.stdout.splitlines() == ["compiled", "WorkerCrashError None the compiler is unwell", "compiled"]
    assert done.stderr == ""


def test_an_interrupt_ends_the_wait_and_the_worker(stub, run_script) -> None:
    script = """
        import signal, threading
        service.compile(unit('int x;'))
        def interrupt():
            while len(open(COUNT).readlines()) < 2: time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            service.compile(unit('// hang\\n'))
        except KeyboardInterrupt:
            print('interrupted', service.pool.worker_ids())
        print(service.compile(unit('int y;')).origin)
    """.replace("COUNT", repr(str(stub.count_file)))
    assert run_script(stub.script(script)).stdout.splitlines() == ["interrupted ()", "compiled"]


IMPORT = """
    import os, sys, threading, time
    seen = []
    def watch(event, arguments):
        if event.split(".")[0] in ("socket", "subprocess") or event in ("os.fork", "os.exec", "os.posix_spawn"):
            seen.append(event)
    def children():
        path = f"/proc/{os.getpid()}/task"
        return [c for task in os.listdir(path) for c in open(f"{path}/{task}/children").read().split()]
    def load():
        sys.addaudithook(watch)
        import humming_compile, humming_compile.__main__, humming_compile.module, humming_compile.worker
    BODY
    time.sleep(0.3)
    loaded = [name for name in ("cuda.bindings", "torch") if name in sys.modules]
    print(children(), threading.active_count(), seen, loaded)
"""


@pytest.mark.parametrize(
    "body",
    [
        "load()",
        "thread = threading.Thread(target=load); thread.start(); thread.join()",
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); load()",
    ],
)
def test_import_starts_nothing(run_script, body: str) -> None:
    """Field report 17: no child, no thread, no CUDA, no network; in a thread and with SIGCHLD ignored too."""
    done = run_script(IMPORT.replace("BODY", body))
    assert done.stdout.strip() == "[] 1 [] []", done.stderr
