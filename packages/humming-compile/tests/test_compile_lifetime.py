"""How long workers live: idle ones are ended, and forks, spawns, signals and the interpreter's exit leave none behind.

Run by pytest.
Assumes Linux: /proc tells the children of a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import humming_compile
import pytest
from humming_compile import CompileRequest, WorkerCrashError


def unit(text: str, name: str = "kernel") -> CompileRequest:
    return CompileRequest(unit_text=text, target="sm_90a", name=name)


def exists(process: int) -> bool:
    """Whether a process runs or is a zombie."""
    return os.path.exists(f"/proc/{process}")


def runs(process: int) -> bool:
    """Whether a process runs. A zombie does not: one whose parent has ended waits for the system's first process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def idle_threads() -> int:
    return sum(thread.name == "humming-compile-idle" for thread in threading.enumerate())


def test_idle_workers_are_ended_and_come_back_when_needed(stub) -> None:
    service = stub.service(idle_seconds=0.2)
    service.compile_many([unit(f"// sleep 0.2\n//{number}") for number in range(2)])
    workers = service.pool.worker_ids()
    assert len(workers) == 2 and idle_threads() >= 1
    assert wait_until(lambda: service.pool.worker_ids() == ())
    assert wait_until(lambda: not any(map(exists, workers))), "not even a zombie is left"
    assert service.compile(unit("int x;")).origin == "compiled"
    assert len(service.pool.worker_ids()) == 1


def test_a_worker_imports_little(run_script) -> None:
    """What it imports is what its start costs; a layer's kernels wait for several of them."""
    done = run_script(
        """
        import sys
        import humming_compile.worker
        print(*sorted(name.partition(".")[2] for name in sys.modules if name.startswith("humming_compile.")))
        print(sys.modules.keys() & {"attr", "cuda", "subprocess", "logging", "argparse", "hashlib"})
        """
    )
    assert done.stdout.splitlines() == ["errors nvrtc protocol worker", "set()"], done.stderr


def test_names_of_the_package_are_imported_on_first_use() -> None:
    assert set(humming_compile.__all__) == set(humming_compile._HOMES)
    assert all(getattr(humming_compile, name).__name__ == name for name in humming_compile.__all__)
    assert set(humming_compile.__all__) <= set(dir(humming_compile))
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = humming_compile.absent


def test_the_watching_thread_ends_with_the_last_idle_worker(stub, run_script) -> None:
    script = """
        import threading
        service = make(idle_seconds=0.3)
        for text in ('int x;', 'int y;'):
            service.compile(unit(text))
            print(threading.active_count())
            while threading.active_count() > 1: time.sleep(0.01)
            print(service.pool.worker_ids())
    """
    assert run_script(stub.script(script)).stdout.splitlines() == ["2", "()", "2", "()"]


def test_a_pool_that_waits_less_is_not_held_up_by_one_that_waits_long(stub) -> None:
    patient, hasty = stub.service(idle_seconds=600), stub.service(idle_seconds=0.2)
    patient.compile(unit("int x;"))
    time.sleep(0.1)
    hasty.compile(unit("int y;"))
    assert wait_until(lambda: hasty.pool.worker_ids() == ())
    assert len(patient.pool.worker_ids()) == 1


def test_a_busy_worker_is_not_idle(stub) -> None:
    service = stub.service(idle_seconds=0.05)
    assert service.compile(unit("// sleep 0.5\n")).origin == "compiled"


def test_the_worker_used_last_is_used_next_so_that_the_others_can_go(stub) -> None:
    service = stub.service(workers=2, idle_seconds=1.5)
    service.compile_many([unit(f"// sleep 0.2\n//{number}") for number in range(2)])
    for number in range(8):
        service.compile(unit(f"int x{number};"))
        time.sleep(0.3)
    assert len(service.pool.worker_ids()) == 1


def test_out_of_memory_in_the_compiler_costs_its_request_only(stub) -> None:
    service = stub.service()
    with pytest.raises(WorkerCrashError, match="MemoryError") as caught:
        service.compile(unit("// memory\n"))
    assert caught.value.exit_code == 1
    assert service.compile(unit("int x;")).origin == "compiled"


def test_where_memory_runs_out_workers_go_first(stub) -> None:
    service = stub.service()
    service.compile(unit("int x;"))
    (worker,) = service.pool.worker_ids()
    assert Path(f"/proc/{worker}/oom_score_adj").read_text().strip() == "1000"
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "1000"


def test_forks_while_workers_are_idle_and_busy(stub, run_script) -> None:
    """Children that fork in turn, from several threads; Python 3.12 and later warn where a thread lives in a fork."""
    script = """
        import threading, warnings
        warnings.simplefilter('error')
        service = make(idle_seconds=0.1)
        service.compile(unit('int x;'))
        for round in range(5):
            child = os.fork()
            if child == 0:
                service.compile(unit(f'int child{round};'))
                grandchild = os.fork()
                if grandchild == 0:
                    service.compile(unit(f'int grandchild{round};'))
                    os._exit(7)
                os._exit(os.waitpid(grandchild, 0)[1] >> 8)
            time.sleep(0.03 * round)
            service.compile(unit(f'int parent{round};'))
            print(os.waitpid(child, 0)[1] >> 8, flush=True)
        while service.pool.worker_ids(): time.sleep(0.01)
        print('idle workers ended')
    """
    done = run_script(stub.script(script))
    assert done.stdout.splitlines() == ["7"] * 5 + ["idle workers ended"], done.stderr
    assert done.stderr == ""


def test_no_thread_of_ours_runs_and_no_worker_idles_during_a_fork(stub, run_script) -> None:
    """Hooks run in the reverse order of their registration, so this one sees what ours leave."""
    opening = """
        import os, threading
        os.register_at_fork(before=lambda: print(threading.active_count(), len(os.listdir('/proc/self/task'))))
    """
    script = """
        service.compile(unit('int x;'))
        before = service.pool.worker_ids()
        print(threading.active_count())
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        print(len(before), service.pool.worker_ids(), os.path.exists(f'/proc/{before[0]}'), threading.active_count())
    """
    done = run_script(textwrap.dedent(opening) + stub.script(script))
    assert done.stdout.splitlines() == ["2", "1 1", "1 () False 1"], done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing(stub, tmp_path: Path, method: str) -> None:
    module = """
        def work(number):
            artifact = service.compile(unit(f'// sleep 0.05\\n//{number % 4}'))
            return artifact.key, os.getpid(), service.pool.worker_ids()
        if __name__ == '__main__':
            import multiprocessing
            work(0)
            with multiprocessing.get_context(METHOD).Pool(3) as pool:
                done = pool.map(work, range(12), chunksize=1)
            print(len({key for key, _, _ in done}), all(process != os.getpid() for _, process, _ in done))
            workers = {worker for _, _, ids in done for worker in ids}
            print(*workers)
    """.replace("METHOD", repr(method))
    (tmp_path / "program.py").write_text(stub.script(module))
    # In a file, since spawned processes import the program again.
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, text=True, capture_output=True, timeout=60)
    told, workers = done.stdout.splitlines()
    assert told == "4 True" and wait_until(lambda: not any(map(runs, map(int, workers.split())))), done.stderr
    assert len(stub.compiled()) == 4


def test_compiling_while_the_interpreter_ends(stub, run_script) -> None:
    """From an exit handler that runs after the pool's own one, and from a thread that nobody waits for."""
    script = """
        import atexit, threading
        def late():
            print(service.compile(unit('int late;')).origin, *service.pool.worker_ids(), flush=True)
        atexit.register(late)
        service.compile(unit('int x;'))
        threading.Thread(target=lambda: [service.compile(unit(f'int t{n};')) for n in range(1000)], daemon=True).start()
    """
    done = run_script(stub.script(script))
    origin, *workers = done.stdout.split()
    assert (origin, done.returncode) == ("compiled", 0) and workers, done.stderr
    assert wait_until(lambda: not any(runs(int(worker)) for worker in workers))


def test_a_handler_that_waits_for_all_children(stub, run_script) -> None:
    """Servers do that; the exit codes of workers are then lost, and nothing else."""
    script = """
        import signal
        def reap(*_):
            try:
                while os.waitpid(-1, os.WNOHANG)[0]: pass
            except ChildProcessError:
                pass
        signal.signal(signal.SIGCHLD, reap)
        service.compile(unit('int x;'))
        for text in ('// exit 3\\n', '// kill\\n'):
            try:
                service.compile(unit(text))
            except HummingCompileError as error:
                print(type(error).__name__)
            print(service.compile(unit('int after;' + text)).origin)
        service.close()
    """
    done = run_script(stub.script(script))
    assert done.stdout.splitlines() == ["WorkerCrashError", "compiled"] * 2, done.stderr


def test_workers_end_with_their_parent_though_another_process_holds_the_pipe(stub, run_script) -> None:
    """A library that forks without Python's knowledge copies the pipes, so their end is not told."""
    script = """
        import ctypes, signal
        service.compile(unit('int x;'))
        sleeper = ctypes.CDLL(None).fork()
        if sleeper == 0:
            os.closerange(0, 3)
            ctypes.CDLL(None).sleep(20)
            ctypes.CDLL(None)._exit(0)
        print(sleeper, *service.pool.worker_ids(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    sleeper, *workers = map(int, run_script(stub.script(script)).stdout.split())
    assert workers and wait_until(lambda: not any(map(runs, workers)), seconds=8)
    assert runs(sleeper)
    os.kill(sleeper, 9)
