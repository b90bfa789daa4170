"""Where NVRTC and its headers are found, what is never mixed, and what is said when something is missing (report 16).

Run by pytest.
Assumes nothing of the machine: the folders are made up, except for the tests that name NVRTC itself.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import attrs
import pytest
from humming_compile import CompileRequest, CompileService, MissingHeaderError, Settings, ToolkitError
from humming_compile import toolkit as toolkit_module
from humming_compile.toolkit import (
    Place,
    Toolkit,
    build_identity,
    find_toolkit,
    find_toolkits,
    header_version,
    package_of_header,
    places,
)


def add_library(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode())


def add_headers(folder: Path, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cuda_runtime_api.h").write_text(f"/* text */\n#define CUDART_VERSION  {version}\n")


def settings(tmp_path: Path, **more: object) -> Settings:
    return Settings(cache_folder=tmp_path / "cache", **more)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up machine: `site` is the module path, and nothing lies in the system's folders."""
    real = toolkit_module.places

    def on_this_machine(chosen: Settings) -> list[Place]:
        found = list(real(chosen, search_path=[str(tmp_path / "site")]))
        return [place for place in found if place.origin not in ("/usr/local/cuda", "system libraries")]

    monkeypatch.setattr(toolkit_module, "places", on_this_machine)
    return tmp_path


def add_wheels_13(root: Path, minor: int = 0) -> None:
    folder = root / "site/nvidia/cu13"
    add_library(folder / "lib", "libnvrtc.so.13", "libnvrtc.alt.so.13", f"libnvrtc-builtins.so.13.{minor}")
    add_headers(folder / "include", 13000 + 10 * minor)


def add_wheels_12(root: Path) -> None:
    nvidia = root / "site/nvidia"
    add_library(nvidia / "cuda_nvrtc/lib", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9")
    add_headers(nvidia / "cuda_runtime/include", 12090)
    (nvidia / "cuda_cccl/include").mkdir(parents=True)


def test_wheels_of_cuda_13(machine: Path) -> None:
    add_wheels_13(machine, minor=5)
    (machine / "site/nvidia/cu13/include/cccl").mkdir()
    root = machine / "site/nvidia/cu13"
    assert find_toolkit(settings(machine)) == Toolkit(
        library=root / "lib/libnvrtc.so.13",
        version=(13, 5),
        build="size-14",
        origin="wheels (cu13)",
        include_folders=(root / "include", root / "include/cccl"),
        header_version="13.5",
    )


def test_wheels_of_cuda_12(machine: Path) -> None:
    add_wheels_12(machine)
    found = find_toolkit(settings(machine))
    nvidia = machine / "site/nvidia"
    assert (found.library, found.version) == (nvidia / "cuda_nvrtc/lib/libnvrtc.so.12", (12, 9))
    assert found.include_folders == (nvidia / "cuda_runtime/include", nvidia / "cuda_cccl/include")
    assert found.header_version == "12.9"


def test_of_two_majors_each_keeps_its_own_headers(machine: Path) -> None:
    add_wheels_12(machine)
    add_wheels_13(machine)
    found = list(find_toolkits(settings(machine)))
    assert [(toolkit.version, toolkit.header_version) for toolkit in found] == [((13, 0), "13.0"), ((12, 9), "12.9")]


def test_headers_of_another_major_are_never_used(machine: Path) -> None:
    add_wheels_12(machine)
    shutil.rmtree(machine / "site/nvidia/cuda_runtime")
    add_headers(machine / "site/nvidia/cu13/include", 13000)
    found = find_toolkit(settings(machine, toolkit_places={"CUDA_HOME": str(machine / "home")}))
    assert (found.version, found.include_folders, found.header_version) == ((12, 9), (), "")
    in_home = settings(machine, toolkit_places={"CUDA_HOME": str(machine / "home")})
    add_headers(machine / "home/include", 12060)
    assert find_toolkit(in_home).header_version == "", "of another place, and not of this compiler's version"
    add_headers(machine / "home/include", 12090)
    found = find_toolkit(in_home)
    assert (found.include_folders, found.header_version) == ((machine / "home/include",), "12.9")
    add_headers(machine / "site/nvidia/cuda_runtime/include", 12080)
    assert find_toolkit(in_home).header_version == "12.8", "wheels side by side, of the same major"
    add_headers(machine / "site/nvidia/cuda_runtime/include", 13000)
    assert find_toolkit(in_home).header_version == "12.9", "a wheel of the wrong major does not count"


@pytest.mark.parametrize("variable", ["CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"])
def test_conda_and_system_folders(machine: Path, variable: str) -> None:
    root = machine / "root"
    sub = "targets/x86_64-linux" if variable == "CONDA_PREFIX" else "."
    library = root / sub / "lib"
    add_library(library, "libnvrtc.so.13.1.48", "libnvrtc-builtins.so.13.1", "libnvrtc-builtins.so.13.1.48")
    (library / "libnvrtc.so.13").symlink_to("libnvrtc.so.13.1.48")
    (library / "libnvrtc.so").symlink_to("libnvrtc.so.13")
    add_headers(root / sub / "include", 13010)
    found = find_toolkit(settings(machine, toolkit_places={variable: str(root)}))
    assert (found.origin, found.version, found.header_version) == (variable, (13, 1), "13.1")
    assert found.library.name == "libnvrtc.so.13"


def test_wheels_come_before_everything_and_a_named_folder_before_wheels(machine: Path) -> None:
    add_wheels_13(machine)
    add_library(machine / "named/lib64", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9")
    add_headers(machine / "named/include", 12090)
    in_home = settings(machine, toolkit_places={"CUDA_HOME": str(machine / "named")})
    assert [toolkit.version for toolkit in find_toolkits(in_home)] == [(13, 0), (12, 9)]
    named = settings(machine, cuda_folder=machine / "named")
    assert [toolkit.version for toolkit in find_toolkits(named)] == [(12, 9)]


def test_nothing_found_names_the_places_and_the_package(machine: Path) -> None:
    with pytest.raises(ToolkitError, match=r"CUDA_HOME.*pip install 'humming-compile\[cu13\]'") as caught:
        find_toolkit(settings(machine, toolkit_places={"CUDA_HOME": "/nowhere"}))
    assert caught.value.package == "nvidia-cuda-nvrtc" and "\n" not in str(caught.value)
    with pytest.raises(ToolkitError, match="HUMMING_COMPILE_CUDA_DIR"):
        find_toolkit(settings(machine, cuda_folder=machine))


def test_a_library_without_its_builtins_does_not_count(machine: Path) -> None:
    add_library(machine / "site/nvidia/cu13/lib", "libnvrtc.so.13")
    with pytest.raises(ToolkitError):
        find_toolkit(settings(machine))


def test_places_that_cannot_be_read_are_passed_over(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_library(machine / "broken/lib", "libnvrtc-builtins.so.12.9")
    (machine / "broken/lib/libnvrtc.so.12").symlink_to("absent")
    add_library(machine / "closed/lib", "libnvrtc.so.12", "libnvrtc-builtins.so.12.9")
    add_library(machine / "good/lib", "libnvrtc.so.13", "libnvrtc-builtins.so.13.1")
    real = os.listdir

    def listdir(folder: Path) -> list[str]:
        if "closed" in str(folder):
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(toolkit_module.os, "listdir", listdir)
    where = {"CONDA_PREFIX": "broken", "CUDA_HOME": "closed", "CUDA_PATH": "good"}
    found = find_toolkits(settings(machine, toolkit_places={name: str(machine / to) for name, to in where.items()}))
    assert [(toolkit.origin, toolkit.version) for toolkit in found] == [("CUDA_PATH", (13, 1))]


def test_system_places_come_last(tmp_path: Path) -> None:
    origins = [place.origin for place in places(settings(tmp_path, toolkit_places={"CUDA_PATH": "/x"}), search_path=[])]
    assert origins == ["CUDA_PATH", "/usr/local/cuda", "system libraries"]


@pytest.mark.parametrize(("number", "version"), [(12090, "12.9"), (13000, "13.0"), (13050, "13.5")])
def test_versions_of_headers(tmp_path: Path, number: int, version: str) -> None:
    add_headers(tmp_path, number)
    assert header_version(tmp_path) == version
    assert header_version(tmp_path / "absent") == ""


def test_build_numbers_of_libraries(tmp_path: Path) -> None:
    """Against a file put together here from the ELF-64 format: header, one program header, one note."""
    note = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20))
    other = struct.pack("<III", 4, 4, 1) + b"GNU\0" + b"abcd"
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    entry = struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(other + note), 0, 4)
    path = tmp_path / "library"
    path.write_bytes(header + entry + other + note)
    assert build_identity(path) == bytes(range(20)).hex()
    path.write_bytes(b"no ELF")
    assert build_identity(path) == "size-6"


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_the_build_number_of_this_nvrtc(real_toolkit: Toolkit) -> None:
    told = subprocess.run(["readelf", "-n", str(real_toolkit.library)], capture_output=True, text=True).stdout
    assert f"Build ID: {real_toolkit.build}" in told


@pytest.mark.parametrize(
    ("header", "package_12", "package_13"),
    [
        ("cuda_fp16.h", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
        ("vector_types.h", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
        ("crt/mma.h", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt"),
        ("cuda/std/array", "nvidia-cuda-cccl-cu12", "nvidia-cuda-cccl"),
        ("nv/target", "nvidia-cuda-cccl-cu12", "nvidia-cuda-cccl"),
        ("curand_kernel.h", "nvidia-curand-cu12", "nvidia-curand"),
        ("cooperative_groups/reduce.h", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
        ("humming/base/x.cuh", "", ""),
        ("type_traits", "", ""),
    ],
)
def test_packages_of_headers(header: str, package_12: str, package_13: str) -> None:
    assert (package_of_header(header, 12), package_of_header(header, 13)) == (package_12, package_13)


UNITS = {
    "cuda_fp16.h": "#include <cuda_fp16.h>\n__global__ void kernel(__half* data) { *data = __half(1.0f); }\n",
    "cuda_fp8.h": "#include <cuda_fp8.h>\n__global__ void kernel(__nv_fp8_e4m3* d) { *d = __nv_fp8_e4m3(1.0f); }\n",
}


@pytest.mark.parametrize(
    ("unit", "missing"),
    [("cuda_fp16.h", "vector_types.h"), ("cuda_fp8.h", "cuda_fp8.h"), ("cuda_fp16.h", "cuda_fp16.h")],
)
def test_a_missing_toolkit_header_is_named_in_one_line(
    tmp_path: Path, real_toolkit: Toolkit, unit: str, missing: str
) -> None:
    """Field report 16, with this machine's NVRTC and a copy of its headers that lacks one."""
    if not real_toolkit.include_folders:
        pytest.skip("no CUDA headers are installed")
    root = tmp_path / "cuda with space é"
    (root / "lib").mkdir(parents=True)
    (root / "include").mkdir()
    for path in real_toolkit.library.parent.glob("libnvrtc*"):
        (root / "lib" / path.name).symlink_to(path)
    for path in real_toolkit.include_folders[0].iterdir():
        if path.name != missing:
            (root / "include" / path.name).symlink_to(path)
    chosen = Settings(cache_folder=tmp_path / "cache", workers=1, cuda_folder=root)
    request = CompileRequest(unit_text=UNITS[unit], target="sm_90a", name="half")
    package = "nvidia-cuda-runtime" + ("-cu12" if real_toolkit.version[0] < 13 else "")
    with CompileService(chosen) as service:
        if missing == "vector_types.h":
            # Only a header that another one needs; some versions of NVRTC have those types built in.
            try:
                assert service.compile(request).data.startswith(b"\x7fELF")
            except MissingHeaderError as error:
                assert error.header == missing and error.package == package
            request = attrs.evolve(request, unit_text=f"#include <{missing}>\n")
        with pytest.raises(MissingHeaderError, match=f"pip install '{package}>=") as caught:
            service.compile(request)
    assert caught.value.header == missing and "\n" not in str(caught.value)
    assert str(root / "include") in str(caught.value)


def test_every_header_of_the_runtime_wheel_is_known_as_its_own(real_toolkit: Toolkit) -> None:
    if not real_toolkit.include_folders or not real_toolkit.origin.startswith("wheels"):
        pytest.skip("the CUDA headers here are not of wheels")
    folder = real_toolkit.include_folders[0]
    used = [
        path.name for path in folder.glob("*.h") if path.name.startswith(("cuda_", "vector_", "mma", "device_", "sm_"))
    ]
    assert len(used) > 20
    assert all("nvidia-cuda-runtime" in package_of_header(name, real_toolkit.version[0]) for name in used)


def test_the_cpp_library_is_named_when_it_is_missing(tmp_path: Path, real_toolkit: Toolkit) -> None:
    """Field report 16: `cuda/std` needed, not installed."""
    bare = attrs.evolve(real_toolkit, include_folders=(), header_version="")
    request = CompileRequest(unit_text="#include <cuda/std/array>\n", target="sm_90a")
    with CompileService(Settings(cache_folder=tmp_path, workers=1), toolkit=bare) as service:
        with pytest.raises(MissingHeaderError, match="nvidia-cuda-cccl") as caught:
            service.compile(request)
        assert "were found in no folder" in str(caught.value) and "\n" not in str(caught.value)
        own = attrs.evolve(request, unit_text=UNITS["cuda_fp16.h"].replace("cuda_fp16.h", "humming/absent.cuh"))
        with pytest.raises(MissingHeaderError, match="not among the headers of the request"):
            service.compile(own)


def test_headers_are_found_as_wheels(tmp_path: Path, real_toolkit: Toolkit) -> None:
    """Field report 16: an environment that has only the runtime wheels compiles units that include their headers."""
    if not real_toolkit.include_folders:
        pytest.skip("no CUDA headers are installed")
    with CompileService(Settings(cache_folder=tmp_path, workers=1)) as service:
        for text in UNITS.values():
            assert service.compile(CompileRequest(unit_text=text, target="sm_90a")).data.startswith(b"\x7fELF")


def test_finding_loads_nothing(run_script) -> None:
    done = run_script(
        """
        import sys
        from humming_compile import CompileService, Settings
        service = CompileService(Settings(cache_folder="unused"))
        print(service.toolkit.version)
        print("nvrtc" in open("/proc/self/maps").read(), "cuda.bindings" in sys.modules)
        """
    )
    assert done.stdout.splitlines()[1] == "False False", done.stderr
    assert not os.path.exists("unused")
