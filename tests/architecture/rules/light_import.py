"""Imports a package in a fresh interpreter and reports what that import did.

Called by test_architecture_light_import.py.
Assumes that the interpreter running the tests can import the package, or that `paths` says where it lies.
"""

import json
import subprocess
import sys
from pathlib import Path

import attrs

# What the child runs: block modules, listen for processes, sockets and libraries, import, report.
_CHILD = """
import json, sys, threading
name, blocked = sys.argv[1], set(sys.argv[2].split(","))
sys.path[:0] = json.loads(sys.argv[3])
class Blocker:
    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] in blocked:
            raise ImportError(f"{fullname} is blocked by this test", name=fullname)
        return None
sys.meta_path.insert(0, Blocker())
events = []
watched = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "socket.connect")
def hook(event, arguments):
    if event in watched:
        events.append(event)
    elif event == "ctypes.dlopen":
        events.append(f"ctypes.dlopen {arguments[0]}")
sys.addaudithook(hook)
before = set(sys.modules)
error = ""
try:
    __import__(name)
except ImportError as reason:
    error = str(reason)
print(json.dumps({
    "error": error,
    "modules": sorted(set(sys.modules) - before),
    "events": events,
    "threads": threading.active_count() - 1,
}))
"""


@attrs.frozen(kw_only=True)
class ImportReport:
    """What one import did."""

    error: str
    modules: tuple[str, ...]
    events: tuple[str, ...]
    threads: int


def import_in_child(import_name: str, blocked: tuple[str, ...] = (), paths: tuple[Path, ...] = ()) -> ImportReport:
    """Import `import_name` in a new interpreter in which the `blocked` modules cannot be imported."""
    arguments = [import_name, ",".join(blocked), json.dumps([str(path) for path in paths])]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    return ImportReport(
        error=answer["error"],
        modules=tuple(answer["modules"]),
        events=tuple(answer["events"]),
        threads=answer["threads"],
    )


def light_import_problems(
    import_name: str, most_modules: int, blocked: tuple[str, ...], paths: tuple[Path, ...] = ()
) -> list[str]:
    """Sentences for an import that fails, loads `cuda` or too much, or starts processes, threads or libraries."""
    report = import_in_child(import_name, blocked, paths)
    problems = []
    if report.error:
        problems.append(f"import {import_name} fails without {', '.join(blocked)}: {report.error}")
    loaded = [name for name in report.modules if name.split(".")[0] == "cuda"]
    if loaded:
        problems.append(f"import {import_name} loads {loaded[0]}; import it inside the function that needs it")
    for event in report.events:
        problems.append(f"import {import_name} does work: {event}; do it when first asked")
    if report.threads:
        problems.append(f"import {import_name} leaves {report.threads} threads running")
    if len(report.modules) > most_modules:
        problems.append(
            f"import {import_name} loads {len(report.modules)} modules; at most {most_modules}. "
            "Find the costly one with python -X importtime"
        )
    return problems
