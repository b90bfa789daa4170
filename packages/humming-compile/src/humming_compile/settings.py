"""The settings of humming_compile and the only place where its environment variables are read.

Called by CompileService, the command line and tests.
Assumes nothing about the home folder when HUMMING_COMPILE_CACHE_DIR is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from humming_compile.errors import SettingsError

CACHE_DIR = "HUMMING_COMPILE_CACHE_DIR"
CACHE_MEGABYTES = "HUMMING_COMPILE_CACHE_MEGABYTES"
WORKERS = "HUMMING_COMPILE_WORKERS"
TIMEOUT = "HUMMING_COMPILE_TIMEOUT"
CUDA_DIR = "HUMMING_COMPILE_CUDA_DIR"
BUNDLES = "HUMMING_COMPILE_BUNDLES"
KEEP_DIR = "HUMMING_COMPILE_KEEP_DIR"

# Variables of other programs, read here too so that one file tells all that the environment can change.
_PLACES = ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")
_DEVICE_LIMITS = ("CUDA_VISIBLE_DEVICES",)

VARIABLES = {
    CACHE_DIR: "folder of compiled kernels",
    CACHE_MEGABYTES: "size of that folder above which kernels that were not used for longest go (default: 4096)",
    WORKERS: "number of compiler processes (default: the cores this process may use)",
    TIMEOUT: "seconds that one compile may take (default: 300)",
    CUDA_DIR: "use NVRTC and headers of this CUDA folder (holds include/ and lib/ or lib64/)",
    BUNDLES: "files of compiled kernels that are looked into before anything else, with ':' between them",
    KEEP_DIR: "save the text of units that fail to compile in this folder",
}


@attrs.frozen(kw_only=True)
class Settings:
    """Where compiled kernels lie and how the compiler processes are run.

    `cache_megabytes` (of 10^6 bytes) bounds the folder, `workers` counts processes, `timeout_seconds` bounds one
    compile, `idle_seconds` is how long a worker without work is kept. `cuda_folder` replaces the search for a toolkit,
    `keep_folder` receives the text of units that fail; both may be None. `bundle_files` are looked into before folder
    and compiler. `toolkit_places` are the folders that other programs' variables (CONDA_PREFIX, CUDA_HOME, CUDA_PATH,
    LD_LIBRARY_PATH) name, by variable; `device_limits` are the variables that hide devices.
    """

    cache_folder: Path = attrs.field(converter=Path)
    cache_megabytes: float = 4096.0
    workers: int = attrs.field(factory=lambda: usable_cores())
    timeout_seconds: float = 300.0
    idle_seconds: float = 60.0
    cuda_folder: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))
    bundle_files: tuple[Path, ...] = ()
    keep_folder: Path | None = attrs.field(default=None, converter=attrs.converters.optional(Path))
    toolkit_places: Mapping[str, str] = attrs.field(factory=dict)
    device_limits: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads HUMMING_COMPILE_*. Raises SettingsError that names the variable and the value that does not fit."""
        values = os.environ if environment is None else environment
        return cls(
            cache_folder=_cache_folder(values.get(CACHE_DIR, "")),
            cache_megabytes=_positive(values, CACHE_MEGABYTES, "a number of megabytes above 0") or 4096.0,
            workers=int(_positive(values, WORKERS, "a whole number above 0") or usable_cores()),
            timeout_seconds=_positive(values, TIMEOUT, "a number of seconds above 0") or 300.0,
            cuda_folder=Path(values[CUDA_DIR]) if values.get(CUDA_DIR) else None,
            bundle_files=tuple(Path(text) for text in values.get(BUNDLES, "").split(os.pathsep) if text),
            keep_folder=Path(values[KEEP_DIR]) if values.get(KEEP_DIR) else None,
            device_limits=tuple(name for name in _DEVICE_LIMITS if name in values),
            toolkit_places={name: values[name] for name in _PLACES if values.get(name)},
        )


def usable_cores() -> int:
    """Cores that this process may run on, at least one."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _cache_folder(text: str) -> Path:
    if text:
        return Path(text).absolute()
    import platformdirs  # only needed when no folder is named

    folder = platformdirs.user_cache_path("humming-compile")
    if not folder.is_absolute():
        raise SettingsError(
            f"no home folder is known to this process, so there is no default cache folder (got {str(folder)!r}): "
            f"set {CACHE_DIR} to a folder that can be written",
            variable=CACHE_DIR,
        )
    return folder


def _positive(values: Mapping[str, str], variable: str, wanted: str) -> float | None:
    text = values.get(variable, "").strip()
    if not text:
        return None
    try:
        number = float(int(text)) if wanted.startswith("a whole") else float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise SettingsError(f"{variable} is {text!r}, wanted {wanted}: correct or unset it", variable=variable)
    return number
