"""Fixtures of the tests of humming_compile: a stub compiler, services that use it, and scripts in fresh processes.

Used by every test file of this folder.
Assumes that the package is installed, so that fresh processes can import it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from humming_compile.service import CompileService
from humming_compile.settings import Settings
from humming_compile.toolkit import Toolkit, find_toolkit

STUB_WORKER = Path(__file__).with_name("stub_worker.py")


class Stub:
    """Makes services with the stub compiler and counts what it compiled."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.count_file = folder / "compiles.txt"
        self.toolkit = Toolkit(
            library=folder / "libnvrtc.so.13", version=(13, 0), build="stub", origin="test", header_version="13.0"
        )
        self.services: list[CompileService] = []

    def command(self, version: str = "13.0") -> tuple[str, ...]:
        return (sys.executable, str(STUB_WORKER), str(self.count_file), version)

    def service(self, *, workers: int = 2, timeout: float = 30, version: str = "13.0", **settings: object):
        settings = {"cache_folder": self.cache, "workers": workers, "timeout_seconds": timeout, **settings}
        service = CompileService(Settings(**settings), toolkit=self.toolkit, command=self.command(version))
        self.services.append(service)
        return service

    def compiled(self) -> list[str]:
        """Names of the units that the compiler was given, in order."""
        if not self.count_file.exists():
            return []
        return [line.split()[0] for line in self.count_file.read_text().splitlines()]

    def script(self, body: str) -> str:
        """A script that begins with a service `service` on this stub, made by `make(**settings)`."""
        opening = f"""
            import os, sys, time
            from pathlib import Path
            from humming_compile import CompileRequest, CompileService, HummingCompileError, Settings, StoreError
            from humming_compile.toolkit import Toolkit
            toolkit = Toolkit(library=Path("libnvrtc.so.13"), version=(13, 0), build="stub", origin="test",
                              header_version="13.0")
            def make(workers=2, timeout_seconds=30.0, cache_folder={str(self.cache)!r}, **more):
                settings = Settings(cache_folder=cache_folder, workers=workers, timeout_seconds=timeout_seconds, **more)
                return CompileService(settings, toolkit=toolkit, command={self.command()!r})
            service = make()
            def unit(text, name="kernel"):
                return CompileRequest(unit_text=text, target="sm_90a", name=name)
        """
        return textwrap.dedent(opening) + textwrap.dedent(body)


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    made = Stub(tmp_path)
    yield made
    for service in made.services:
        service.close()


@pytest.fixture(scope="session")
def real_toolkit() -> Toolkit:
    """The NVRTC of this environment."""
    return find_toolkit(Settings.from_environment())


@pytest.fixture(scope="session")
def real_service(tmp_path_factory: pytest.TempPathFactory, real_toolkit: Toolkit) -> Iterator[CompileService]:
    """A service with the NVRTC of this environment and an empty cache."""
    settings = Settings(cache_folder=tmp_path_factory.mktemp("cache"), workers=2, timeout_seconds=120)
    with CompileService(settings, toolkit=real_toolkit) as service:
        yield service


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which a process finds the driver of fake_driver.c. Skips where there is no C compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", str(folder / "libcuda.so.1"), str(source)], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_script(tmp_path: Path) -> Run:
    """Runs a script in a fresh Python process, away from the source tree, and returns the completed process."""

    def run(script: str, *, environment: dict[str, str | None] | None = None, seconds: float = 60, **options: object):
        variables = {**os.environ, **(environment or {})}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={name: value for name, value in variables.items() if value is not None},
            cwd=tmp_path,
            text=True,
            capture_output=True,
            timeout=seconds,
            **options,
        )

    return run
