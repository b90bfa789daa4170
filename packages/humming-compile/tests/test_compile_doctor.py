"""`humming-compile doctor` in a sound environment and in broken ones: what is wrong, and the one command that mends it.

Run by pytest; the command runs in this process through `main`.
Assumes the NVRTC of this environment; the driver is made up.
"""

from __future__ import annotations

from pathlib import Path

import humming_compile.doctor as doctor_module
import pytest
from humming_compile import CompileRequest, CompileService, DriverError, Settings
from humming_compile import toolkit as toolkit_module
from humming_compile.__main__ import main
from humming_compile.doctor import newer_compiler
from humming_compile.toolkit import Toolkit, find_toolkits


class Driver:
    """A driver with so many devices."""

    def __init__(self, devices: int = 2) -> None:
        self.devices = devices

    def version_text(self) -> str:
        return "13.0"

    def device_count(self) -> int:
        return self.devices


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound environment, which each test breaks in one way."""
    monkeypatch.setenv("HUMMING_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HUMMING_COMPILE_WORKERS", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor_module, "default_driver", Driver)
    monkeypatch.setattr(doctor_module, "_CONTAINER_MARKS", ())


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, str], list[str]]:
    """Exit code, what is said by topic, and the repairs."""
    code = main(["doctor", *arguments])
    lines = capsys.readouterr().out.splitlines()
    said = {line[:9].strip(): line[10:] for line in lines if line[:9].strip()}
    return code, said, [line[10:] for line in lines if line.startswith("mend with ")]


def test_when_all_is_well(capsys, tmp_path: Path, real_toolkit: Toolkit) -> None:
    code, said, repairs = doctor(capsys)
    assert (code, repairs, said["verdict"]) == (0, [], "all is well")
    assert set(said) >= {"python", "nvrtc", "headers", "targets", "compile", "cache", "driver", "verdict"}
    assert said["nvrtc"].startswith(real_toolkit.version_text) and str(real_toolkit.library) in said["nvrtc"]
    assert "sm_75" in said["targets"].split() and "a test unit for sm_90a in" in said["compile"]
    assert str(tmp_path / "cache") in said["cache"] and "0 entries, 0.0 of 4096 MB" in said["cache"]
    assert list((tmp_path / "cache").iterdir()) == [], "the check leaves nothing behind"


def test_no_nvrtc(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit_module, "places", lambda *_: iter(()))
    code, said, repairs = doctor(capsys)
    assert code == 1 and "NVRTC was not found" in said["nvrtc"] and said["verdict"] == "broken"
    assert repairs == ["pip install 'humming-compile[cu13]'"]


def test_a_variable_that_hides_nvrtc(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_COMPILE_CUDA_DIR", str(tmp_path))
    code, said, repairs = doctor(capsys)
    assert code == 1 and "no libnvrtc" in said["nvrtc"] and str(tmp_path) in said["nvrtc"]
    assert repairs == ["unset HUMMING_COMPILE_CUDA_DIR"]


def test_an_nvrtc_that_is_too_old_for_the_target(capsys, real_toolkit: Toolkit) -> None:
    code, said, repairs = doctor(capsys, "--target", "sm_199a")
    assert code == 1 and "does not know the target 'sm_199a'" in said["compile"]
    assert repairs == ["pip install --upgrade nvidia-cuda-nvrtc nvidia-cuda-runtime"]


@pytest.mark.parametrize(
    ("version", "target", "repair"),
    [
        ((12, 4), "sm_120a", "pip install --upgrade nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"),
        ((12, 9), "sm_110a", "pip install --upgrade nvidia-cuda-nvrtc nvidia-cuda-runtime"),
        ((13, 0), "sm_130a", "pip install --upgrade nvidia-cuda-nvrtc nvidia-cuda-runtime"),
        ((13, 0), "sm_70", "pip install 'humming-compile[cu12]'"),
    ],
)
def test_the_compiler_that_knows_a_target(version: tuple[int, int], target: str, repair: str) -> None:
    toolkit = Toolkit(library=Path("x"), version=version, build="b", origin="test")
    assert newer_compiler(toolkit, target) == repair


@pytest.fixture
def no_headers(tmp_path: Path, real_toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cuda without headers"
    (root / "lib").mkdir(parents=True)
    for path in real_toolkit.library.parent.glob("libnvrtc*"):
        (root / "lib" / path.name).symlink_to(path)
    monkeypatch.setenv("HUMMING_COMPILE_CUDA_DIR", str(root))


def test_no_headers(capsys, no_headers: None, real_toolkit: Toolkit) -> None:
    code, said, repairs = doctor(capsys)
    suffix = "-cu12" if real_toolkit.version[0] < 13 else ""
    assert repairs == [f"pip install 'nvidia-cuda-runtime{suffix}=={real_toolkit.version_text}.*'"]
    assert said["headers"].startswith("none of CUDA") and "a test unit" in said["compile"]
    assert (code, said["verdict"]) == (0, "compiling works; units that include toolkit headers do not compile")


def test_a_cache_folder_that_cannot_be_written(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HUMMING_COMPILE_CACHE_DIR", str(tmp_path / "file/cache"))
    code, said, repairs = doctor(capsys)
    assert code == 1 and str(tmp_path / "file/cache") in said["cache"] and "cannot be written" in said["cache"]
    assert repairs == ["export HUMMING_COMPILE_CACHE_DIR=/tmp/humming-compile"]


def no_libcuda() -> Driver:
    raise DriverError("there is no CUDA driver (libcuda.so.1), so kernels can be compiled but not run", call="cuInit")


def no_device() -> Driver:
    raise DriverError("cuInit failed with CUDA_ERROR_NO_DEVICE", code=100, call="cuInit")


@pytest.mark.parametrize(
    ("driver", "is_container", "visible", "repair"),
    [
        (no_libcuda, False, None, "sudo ubuntu-drivers install"),
        (no_libcuda, True, None, "docker run --gpus all"),
        (no_libcuda, True, "0", "docker run --gpus all"),
        (no_device, False, "", "unset CUDA_VISIBLE_DEVICES"),
        (lambda: Driver(0), False, "7", "unset CUDA_VISIBLE_DEVICES"),
    ],
)
def test_no_gpu(
    capsys,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    driver,
    is_container: bool,
    visible: str | None,
    repair: str,
) -> None:
    monkeypatch.setattr(doctor_module, "default_driver", driver)
    if is_container:
        monkeypatch.setattr(doctor_module, "_CONTAINER_MARKS", (str(tmp_path),))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    code, said, repairs = doctor(capsys)
    assert code == 0 and len(repairs) == 1 and repairs[0].startswith(repair)
    assert said["verdict"] == "compiling works; running kernels does not: there is no usable GPU here"


def test_the_toolkit_that_is_used_and_the_others(
    capsys, tmp_path: Path, real_toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the real one stands an NVRTC 11.8, of which only the names of the files are looked at."""
    real = real_toolkit.library.parent
    places = list(toolkit_module.places(Settings(cache_folder=tmp_path)))
    old = tmp_path / "old"
    old.mkdir()
    for name in ("libnvrtc.so.11", "libnvrtc-builtins.so.11.8"):
        (old / name).write_bytes(b"")
    first = toolkit_module.Place(origin="CONDA_PREFIX", library_folders=(old,), include_folders=())
    monkeypatch.setattr(toolkit_module, "places", lambda *_: iter((first, *places)))
    assert [found.library.parent for found in find_toolkits(Settings(cache_folder=tmp_path))][:2] == [old, real]
    assert main(["doctor", "--target", "sm_90a"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "compiles for sm_90a: 11.8 from CONDA_PREFIX does not know sm_90a" in lines
    assert f"also found: 11.8 from CONDA_PREFIX: {old}/libnvrtc.so.11" in lines


def test_bundles_are_told(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_service: CompileService
) -> None:
    unit = CompileRequest(unit_text='extern "C" __global__ void empty() {}', target="sm_80")
    good = real_service.write_bundle(tmp_path / "good", [unit])
    monkeypatch.setenv("HUMMING_COMPILE_BUNDLES", str(good.path))
    code, said, repairs = doctor(capsys)
    assert (code, repairs, said["bundle"]) == (0, [], f"{good.path}: 1 kernels for sm_80")
    (tmp_path / "bad").write_bytes(b"")
    monkeypatch.setenv("HUMMING_COMPILE_BUNDLES", str(tmp_path / "bad"))
    code, said, repairs = doctor(capsys)
    assert code == 1 and "is not a bundle" in said["bundle"] and repairs == ["unset HUMMING_COMPILE_BUNDLES"]
