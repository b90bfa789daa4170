"""The examples of the README run as they stand.

Run by pytest.
Assumes the NVRTC of this environment; the launch goes to the driver of fake_driver.c.
"""

from __future__ import annotations

import re
from pathlib import Path

from humming_compile import errors
from humming_compile.settings import VARIABLES

README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
COMPILE, BUNDLE, LAUNCH = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_compile_example(run_script, tmp_path: Path) -> None:
    environment = {"HUMMING_COMPILE_CACHE_DIR": str(tmp_path / "cache")}
    done = run_script(COMPILE, environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("compiled ") and done.stdout.endswith("4 of 4\n")


def test_the_bundle_example(run_script, tmp_path: Path) -> None:
    environment = {"HUMMING_COMPILE_CACHE_DIR": str(tmp_path / "cache")}
    done = run_script(COMPILE + BUNDLE, environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("('sm_75', 'sm_80')\nbundle\n")


def test_the_launch_example(run_script, tmp_path: Path, fake_driver: dict[str, str]) -> None:
    environment = {"HUMMING_COMPILE_CACHE_DIR": str(tmp_path / "cache"), **fake_driver}
    done = run_script(COMPILE + LAUNCH, environment=environment)
    assert done.returncode == 0, done.stderr
    # Grid, block, shared bytes, stream, and the one parameter of 8 bytes.
    assert f"\n1 1 1 32 1 1 0 0 {0x7F0000000000}\n" in done.stdout, done.stdout


def test_every_variable_and_error_is_told() -> None:
    assert all(f"`{name}`" in README for name in VARIABLES)
    raised = ("CompileError", "MissingHeaderError", "UnknownTargetError", "WorkerCrashError", "WorkerTimeoutError")
    others = (
        "BundleError",
        "MissingFromBundleError",
        "ToolkitError",
        "StoreError",
        "RequestError",
        "SettingsError",
        "DriverError",
    )
    assert all(hasattr(errors, name) and f"`{name}`" in README for name in (*raised, *others))
