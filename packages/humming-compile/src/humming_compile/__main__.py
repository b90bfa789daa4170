"""The command line: `humming-compile doctor | stats | clear`.

Called by people and by CI.
Assumes nothing: its task is to say what is missing and the one command that mends it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys

from humming_compile import __version__
from humming_compile.errors import DriverError, HummingCompileError, StoreError, ToolkitError, UnknownTargetError
from humming_compile.module import default_driver
from humming_compile.request import CompileRequest
from humming_compile.service import CompileService
from humming_compile.settings import CACHE_DIR, VARIABLES, Settings
from humming_compile.store import Store
from humming_compile.toolkit import INSTALL_HINT, find_toolkits

_TEST_UNIT = 'extern "C" __global__ void probe(float* data) { data[threadIdx.x] *= 2.0f; }\n'


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0 when all is well, 1 when something is broken."""
    parser = argparse.ArgumentParser(
        prog="humming-compile",
        description="Compiles CUDA text and keeps the result on disk. This command looks after the set-up.",
        epilog="Environment: " + "; ".join(f"{name}: {meaning}" for name, meaning in VARIABLES.items()),
    )
    parser.add_argument("--version", action="version", version=f"humming-compile {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="check compiler, headers, cache folder and driver; compile a test unit")
    doctor.add_argument("--target", default="", help="target of the test compile, for example sm_90a")
    commands.add_parser("stats", help="count what the cache folder holds")
    commands.add_parser("clear", help="remove what the cache folder holds")
    chosen = parser.parse_args(arguments)
    try:
        settings = Settings.from_environment()
        if chosen.command == "doctor":
            return _doctor(settings, chosen.target)
        return _stats(settings, clear=chosen.command == "clear")
    except HummingCompileError as error:
        _say("broken", str(error))
        return 1


def _say(topic: str, text: str) -> None:
    sys.stdout.write(f"{topic:<9} {text}\n")
    sys.stdout.flush()


def _stats(settings: Settings, *, clear: bool) -> int:
    store = Store(settings.cache_folder)
    counts = store.clear() if clear else store.stats()
    verb = "removed" if clear else "holds"
    _say("cache", f"{store.folder} {verb} {counts.entries} entries, {counts.bytes / 1e6:.1f} MB")
    if counts.leftovers:
        _say("", f"{counts.leftovers} lock and temporary files of running or ended processes")
    return 0


def _doctor(settings: Settings, target: str) -> int:
    repairs: list[str] = []
    bindings = _bindings_version()
    _say("python", f"{platform.python_version()}, humming-compile {__version__}, cuda-bindings {bindings or 'missing'}")
    if not bindings:
        repairs.append("pip install cuda-bindings")
    with CompileService(settings) as service:
        compiler_works = _tell_compiler(service, target, repairs)
    try:
        store = Store(settings.cache_folder)
        store.check_writable()
        counts = store.stats()
        _say("cache", f"{store.folder} can be written; {counts.entries} entries, {counts.bytes / 1e6:.1f} MB")
    except StoreError as error:
        _say("cache", str(error))
        repairs.append(f"export {CACHE_DIR}=/a/folder/that/can/be/written")
    try:
        driver = default_driver()
        _say("driver", f"CUDA {driver.version_text()}, {driver.device_count()} device(s)")
    except DriverError as error:
        _say("driver", f"none usable; compiling does not need one ({error})")
    if repairs or not compiler_works:
        for repair in dict.fromkeys(repairs):
            _say("mend with", repair)
        _say("verdict", "broken")
        return 1
    _say("verdict", "all is well")
    return 0


def _tell_compiler(service: CompileService, target: str, repairs: list[str]) -> bool:
    try:
        toolkit = service.toolkit
        _say("nvrtc", f"{toolkit.version_text} from {toolkit.origin}: {toolkit.library}")
        for other in find_toolkits(service.settings):
            if other.library != toolkit.library:
                _say("", f"not used: {other.version_text} from {other.origin}: {other.library}")
        if toolkit.include_folders:
            _say("headers", f"CUDA {toolkit.header_version} in {toolkit.include_folders[0]}")
        else:
            _say("headers", f"none for CUDA {toolkit.version[0]}; only units that include toolkit headers need them")
        targets = service.known_targets()
        _say("targets", " ".join(targets))
        chosen = target or ("sm_90a" if "sm_90" in targets else targets[0])
        request = CompileRequest(unit_text=_TEST_UNIT, target=chosen, name="probe")
        first, second = service.compile_fresh(request), service.compile_fresh(request)
    except ToolkitError as error:
        _say("nvrtc", str(error))
        repairs.append(INSTALL_HINT.partition(" (")[0])
        return False
    except HummingCompileError as error:
        _say("compile", str(error))
        package = "nvidia-cuda-nvrtc" + ("-cu12" if toolkit.version[0] < 13 else "")
        how = "--upgrade" if isinstance(error, UnknownTargetError) else "--force-reinstall"
        repairs.append(f"pip install {how} {package}")
        return False
    _say(
        "compile",
        f"a test unit for {chosen} in {first.seconds:.3f} s, again in {second.seconds:.3f} s "
        f"({second.cpu_seconds:.3f} s of CPU time)",
    )
    return True


def _bindings_version() -> str:
    try:
        return importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
