"""Finds one CUDA toolkit on disk: the NVRTC library, its version, and the headers that belong to it.

Called by CompileService (for the key and for the worker) and by the command line; loads nothing, reads file names only.
Assumes Linux names of libraries. Headers are those beside the compiler, else of another place with the same version.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from humming_compile.errors import ToolkitError
from humming_compile.settings import CUDA_DIR, Settings

_LIBRARY = re.compile(r"libnvrtc\.so\.(\d+)(?:\.(\d+))?(?:\.\d+)*\Z")
_BUILTINS = re.compile(r"libnvrtc-builtins\.so\.(\d+)\.(\d+)")
_VERSION_LINE = re.compile(r"^#define\s+(?:CUDART_VERSION|CUDA_VERSION)\s+(\d+)", re.MULTILINE)
_LIBRARY_FOLDERS = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib/x86_64-linux-gnu")
_INCLUDE_FOLDERS = ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")

# Names of the headers in the CUDA runtime's include folder.
_RUNTIME_HEADER = re.compile(
    r"(cuda|cuComplex|cooperative_groups|vector_|texture_|surface_|device_|driver_|builtin_types|channel_descriptor"
    r"|common_functions|host_(config|defines)|library_types|math_(constants|functions)|mma\.h|sm_\d\d_)"
)

INSTALL_HINT = "pip install 'humming-compile[cu13]' (or [cu12] for CUDA 12)"


@attrs.frozen(kw_only=True)
class Place:
    """Somewhere a toolkit may lie: a name for messages, library folders and include folders, best first."""

    origin: str
    library_folders: tuple[Path, ...]
    include_folders: tuple[Path, ...]


@attrs.frozen(kw_only=True)
class Toolkit:
    """One NVRTC and the headers that go with it.

    library          path of libnvrtc
    version          (major, minor) of NVRTC
    build            identity of the library's bytes: its ELF build number, or its size where it has none
    origin           where it was found, for messages
    include_folders  folders of toolkit headers of the same CUDA major; empty where none were found
    header_version   CUDA version that those headers state, "" where there are none
    """

    library: Path
    version: tuple[int, int]
    build: str
    origin: str
    include_folders: tuple[Path, ...] = ()
    header_version: str = ""

    @property
    def version_text(self) -> str:
        """For example "13.0"."""
        return f"{self.version[0]}.{self.version[1]}"


def find_toolkit(settings: Settings) -> Toolkit:
    """The first place that holds NVRTC. Raises ToolkitError that lists the places when none does."""
    toolkit = next(iter(find_toolkits(settings)), None)
    if toolkit is not None:
        return toolkit
    if settings.cuda_folder is not None:
        raise ToolkitError(
            f"no libnvrtc under {settings.cuda_folder}, which {CUDA_DIR} names: correct or unset it, or {INSTALL_HINT}",
            package="nvidia-cuda-nvrtc",
        )
    looked = ", ".join(dict.fromkeys(place.origin for place in places(settings)))
    raise ToolkitError(f"NVRTC was not found (looked in {looked}): {INSTALL_HINT}", package="nvidia-cuda-nvrtc")


def find_toolkits(settings: Settings) -> Iterator[Toolkit]:
    """Every toolkit that is found, best first."""
    all_places = list(places(settings))
    for place in all_places:
        found = _find_library(place.library_folders)
        if found is None:
            continue
        library, version = found
        try:
            build = build_identity(library)
        except OSError:  # a link to nowhere, or not for this user
            continue
        include_folders, header_version = _find_headers(place, all_places, version)
        yield Toolkit(
            library=library,
            version=version,
            build=build,
            origin=place.origin,
            include_folders=include_folders,
            header_version=header_version,
        )


def places(settings: Settings, search_path: Iterable[str] | None = None) -> Iterator[Place]:
    """Where to look, in order: the folder that settings name, else wheels, conda, CUDA_HOME, CUDA_PATH, system."""
    if settings.cuda_folder is not None:
        yield _folder(str(settings.cuda_folder), settings.cuda_folder)
        return
    for entry in dict.fromkeys(sys.path if search_path is None else search_path):
        nvidia = Path(entry or ".").absolute() / "nvidia"
        if not os.path.isdir(nvidia):
            continue
        # From CUDA 13 all wheels share nvidia/cu13; before, each component has a folder of its own.
        for root in sorted(nvidia.glob("cu[0-9]*"), key=_trailing_number, reverse=True):
            yield Place(
                origin=f"wheels ({root.name})", library_folders=(root / "lib",), include_folders=_includes(root)
            )
        yield Place(
            origin="wheels (cu12)",
            library_folders=(nvidia / "cuda_nvrtc/lib",),
            include_folders=tuple(nvidia / name / "include" for name in ("cuda_runtime", "cuda_cccl", "cuda_nvcc")),
        )
    for variable in ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"):
        if variable in settings.toolkit_places:
            yield _folder(variable, Path(settings.toolkit_places[variable]))
    yield _folder("/usr/local/cuda", Path("/usr/local/cuda"))
    loader_folders = settings.toolkit_places.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    yield Place(
        origin="system libraries",
        library_folders=(*(Path(name) for name in loader_folders if name), *_folder("", Path("/usr")).library_folders),
        include_folders=(Path("/usr/include"),),
    )


def _folder(origin: str, root: Path) -> Place:
    return Place(
        origin=origin,
        library_folders=tuple(root / name for name in _LIBRARY_FOLDERS),
        include_folders=_includes(root),
    )


def _includes(root: Path) -> tuple[Path, ...]:
    """Include folders of a root; from CUDA 13 the C++ library lies one folder deeper."""
    folders = [root / name for name in _INCLUDE_FOLDERS]
    return (*folders, *(folder / "cccl" for folder in folders))


def _trailing_number(path: Path) -> int:
    digits = path.name[2:]
    return int(digits) if digits.isdigit() else 0


def _find_library(folders: Iterable[Path]) -> tuple[Path, tuple[int, int]] | None:
    """The newest libnvrtc of the first folder that has one, with its (major, minor)."""
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:  # it does not exist, or is not for this user
            continue
        libraries = sorted(
            ((int(match[1]), -len(name), name) for name in names if (match := _LIBRARY.match(name))), reverse=True
        )
        for major, _, name in libraries:
            minor = _minor(folder / name, major, names)
            if minor is not None:
                return folder / name, (major, minor)
    return None


def _minor(library: Path, major: int, names: Iterable[str]) -> int | None:
    """Minor version: from the name that a system link points to, else from the builtins library beside it."""
    real = _LIBRARY.match(os.path.basename(os.path.realpath(library)))
    if real is not None and real[2] is not None:
        return int(real[2])
    minors = [int(match[2]) for name in names if (match := _BUILTINS.match(name)) and int(match[1]) == major]
    return max(minors, default=None)


def _find_headers(own: Place, others: Iterable[Place], version: tuple[int, int]) -> tuple[tuple[Path, ...], str]:
    """Include folders for a compiler and the version that their headers state.

    Those of its own place need only be of its CUDA major, since wheels are installed one by one; those of another place
    belong to another compiler, and are taken only where that one has the same version.
    """
    for place in (own, *others):
        folders = tuple(folder for folder in place.include_folders if os.path.isdir(folder))
        found = next(filter(None, map(header_version, folders)), "")
        if found == f"{version[0]}.{version[1]}" or (place is own and found.split(".")[0] == str(version[0])):
            return folders, found
    return (), ""


def header_version(folder: Path) -> str:
    """CUDA version that the headers of a folder state, for example "13.0"; "" where they state none."""
    for name in ("cuda_runtime_api.h", "cuda.h"):
        try:
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        match = _VERSION_LINE.search(text)
        if match:
            number = int(match[1])
            return f"{number // 1000}.{number % 1000 // 10}"
    return ""


def build_identity(library: Path) -> str:
    """GNU build number of an ELF64 library in hex, which changes with its bytes; "size-<n>" where there is none.

    Source of the layout: the ELF-64 object file format, and elf.h for the note (name "GNU", type 3).
    """
    with library.open("rb") as file:
        header = file.read(64)
        if len(header) == 64 and header[:6] == b"\x7fELF\x02\x01":
            offset, entry_size, entries = *struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54)
            for index in range(entries):
                file.seek(offset + index * entry_size)
                entry = file.read(56)
                kind, _, start = struct.unpack_from("<IIQ", entry)
                (length,) = struct.unpack_from("<Q", entry, 32)
                if kind == 4:  # PT_NOTE
                    file.seek(start)
                    found = _build_note(file.read(min(length, 1 << 16)))
                    if found:
                        return found
        file.seek(0, os.SEEK_END)
        return f"size-{file.tell()}"


def _build_note(notes: bytes) -> str:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        start = at + 12 + (name_size + 3) // 4 * 4
        if kind == 3 and notes[at + 12 : at + 12 + name_size] == b"GNU\0":
            return notes[start : start + size].hex()
        at = start + (size + 3) // 4 * 4
    return ""


def package_of_header(header: str, major: int) -> str:
    """The wheel that holds a toolkit header for CUDA `major`; "" for headers that no toolkit has."""
    suffix = "-cu12" if major < 13 else ""
    if header.startswith("crt/"):
        return "nvidia-cuda-nvcc-cu12" if major < 13 else "nvidia-cuda-crt"
    if header.startswith(("cuda/", "nv/", "cub/", "thrust/")):
        return f"nvidia-cuda-cccl{suffix}"
    if header.startswith("curand"):
        return f"nvidia-curand{suffix}"
    return f"nvidia-cuda-runtime{suffix}" if _RUNTIME_HEADER.match(header) else ""
