"""Looks at compiler, headers, cache folder and driver, and names the one command that mends what is wrong.

Called by the command line.
Assumes nothing: whatever is missing is told, and the rest is looked at all the same.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable

import attrs

from humming_compile import __version__
from humming_compile.choice import knows_target
from humming_compile.errors import (
    BundleError,
    DriverError,
    HummingCompileError,
    StoreError,
    ToolkitError,
    UnknownTargetError,
)
from humming_compile.module import default_driver
from humming_compile.request import CompileRequest
from humming_compile.service import CompileService
from humming_compile.settings import BUNDLES, CACHE_DIR, CUDA_DIR, Settings
from humming_compile.store import Store
from humming_compile.toolkit import INSTALL_HINT, Toolkit, find_toolkits

_TEST_UNIT = 'extern "C" __global__ void probe(float* data) { data[threadIdx.x] *= 2.0f; }\n'
_INSTALL = INSTALL_HINT.partition(" (")[0]
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")

Say = Callable[[str, str], None]


def examine(settings: Settings, target: str, say: Say) -> bool:
    """Tells through `say(topic, text)` what is there; whether kernels can be compiled and kept.

    `target` is what the test unit is compiled for; "" takes one that the compiler knows.
    """
    repairs: list[str] = []
    lacks: list[str] = []
    bindings = _bindings_version()
    say("python", f"{platform.python_version()}, humming-compile {__version__}, cuda-bindings {bindings or 'missing'}")
    if not bindings:
        repairs.append("pip install cuda-bindings")
    is_sound = bool(bindings)
    with CompileService(settings) as service:
        is_sound &= _look_at_bundles(service, say, repairs)
        is_sound &= _look_at_compiler(service, target, say, repairs, lacks)
    is_sound &= _look_at_folder(settings, say, repairs)
    _look_at_driver(settings, say, repairs, lacks)
    for repair in dict.fromkeys(repairs):
        say("mend with", repair)
    if not is_sound:
        say("verdict", "broken")
    elif lacks:
        say("verdict", f"compiling works; {' and '.join(lacks)}")
    else:
        say("verdict", "all is well")
    return is_sound


def _look_at_bundles(service: CompileService, say: Say, repairs: list[str]) -> bool:
    try:
        for bundle in service.bundles:
            targets = ", ".join(bundle.targets()) or "no target"
            say("bundle", f"{bundle.path}: {len(bundle.kernels)} kernels for {targets}")
    except BundleError as error:
        say("bundle", str(error))
        repairs.append(f"unset {BUNDLES}")
        return False
    return True


def _look_at_compiler(service: CompileService, target: str, say: Say, repairs: list[str], lacks: list[str]) -> bool:
    try:
        toolkits = service.toolkits
    except ToolkitError as error:
        say("nvrtc", str(error))
        repairs.append(_without_compiler(service.settings))
        return False
    toolkit = toolkits[0]
    chosen = target
    try:
        if not chosen:
            targets = service.known_targets()
            chosen = "sm_90a" if "sm_90" in targets else targets[0]
        choice = service.choice(chosen)
        toolkit = choice.toolkit
        say("nvrtc", f"{toolkit.version_text} from {toolkit.origin}: {toolkit.library}")
        say("", f"compiles for {chosen}: {choice.reason}")
        for other in toolkits:
            if other is not toolkit:
                say("", f"also found: {other.version_text} from {other.origin}: {other.library}")
        _tell_headers(toolkit, say, repairs, lacks)
        say("targets", " ".join(service.known_targets(toolkit)))
        request = CompileRequest(unit_text=_TEST_UNIT, target=chosen, name="probe")
        first, second = service.compile_fresh(request), service.compile_fresh(request)
    except UnknownTargetError as error:
        say("compile", str(error))
        repairs.append(newer_compiler(toolkit, chosen))
        return False
    except HummingCompileError as error:
        say("compile", str(error))
        repairs.append(f"pip install --force-reinstall nvidia-cuda-nvrtc{_suffix(toolkit)}")
        return False
    say(
        "compile",
        f"a test unit for {chosen} in {first.seconds:.3f} s, again in {second.seconds:.3f} s "
        f"({second.cpu_seconds:.3f} s of CPU time)",
    )
    return True


def _tell_headers(toolkit: Toolkit, say: Say, repairs: list[str], lacks: list[str]) -> None:
    if not toolkit.include_folders:
        say("headers", f"none of CUDA {toolkit.version_text}: units that include toolkit headers do not compile")
        lacks.append("units that include toolkit headers do not compile")
        repairs.append(f"pip install 'nvidia-cuda-runtime{_suffix(toolkit)}=={toolkit.version_text}.*'")
        return
    say("headers", f"CUDA {toolkit.header_version} in {toolkit.include_folders[0]}")
    if toolkit.header_version != toolkit.version_text:
        say("", f"beside NVRTC {toolkit.version_text}: where they do not fit, install both of one version")


def _look_at_folder(settings: Settings, say: Say, repairs: list[str]) -> bool:
    store = Store(settings.cache_folder)
    counts = store.stats()
    held = f"{counts.entries} entries, {counts.bytes / 1e6:.1f} of {settings.cache_megabytes:.0f} MB"
    try:
        store.check_writable()
    except StoreError as error:
        say("cache", f"{error} ({held})")
        repairs.append(f"export {CACHE_DIR}=/tmp/humming-compile")
        return False
    say("cache", f"{store.folder} can be written; {held}")
    return True


def _look_at_driver(settings: Settings, say: Say, repairs: list[str], lacks: list[str]) -> None:
    try:
        driver = default_driver()
        count = driver.device_count()
        say("driver", f"CUDA {driver.version_text()}, {count} device(s)")
        problem = "" if count else "no GPU is visible"
    except DriverError as error:
        say("driver", f"none usable; compiling does not need one ({error})")
        problem = str(error)
    if not problem:
        return
    lacks.append("running kernels does not: there is no usable GPU here")
    if settings.device_limits and "libcuda" not in problem:
        repairs.append(f"unset {' '.join(settings.device_limits)}")
    elif any(map(os.path.exists, _CONTAINER_MARKS)):
        repairs.append("docker run --gpus all ...  (start this container again with the GPU in it)")
    else:
        repairs.append("sudo ubuntu-drivers install  (or what installs NVIDIA's driver on this system)")


def _without_compiler(settings: Settings) -> str:
    """The repair where no NVRTC was found: unset the variable that hides one, else install one."""
    if settings.cuda_folder is not None and any(find_toolkits(attrs.evolve(settings, cuda_folder=None))):
        return f"unset {CUDA_DIR}"
    return _INSTALL


def newer_compiler(toolkit: Toolkit, target: str) -> str:
    """The repair where a toolkit does not know a target: the newest of its CUDA major, where that one knows it."""
    if toolkit.version[0] < 13 and knows_target((12, 9), target):
        return "pip install --upgrade nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"
    if not knows_target((13, 5), target) and knows_target((12, 9), target):
        return "pip install 'humming-compile[cu12]'"
    return "pip install --upgrade nvidia-cuda-nvrtc nvidia-cuda-runtime"


def _suffix(toolkit: Toolkit) -> str:
    return "-cu12" if toolkit.version[0] < 13 else ""


def _bindings_version() -> str:
    try:
        return importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        return ""
