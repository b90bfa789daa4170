"""`humming-compile stats | clear`, and the errors' own rules. Of `doctor`: test_compile_doctor.py.

Run by pytest; commands run in this process through `main`.
Assumes nothing of the machine.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import humming_compile.errors as errors_module
import pytest
from humming_compile import CompileRequest, HummingCompileError
from humming_compile.__main__ import main
from humming_compile.errors import WorkerCrashError


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_COMPILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HUMMING_COMPILE_WORKERS", "1")


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    lines = capsys.readouterr().out.splitlines()
    return {line[:9].strip(): line[10:] for line in lines if line[:9].strip()}


def test_a_bad_variable_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_COMPILE_WORKERS", "many")
    assert main(["stats"]) == 1
    assert "HUMMING_COMPILE_WORKERS is 'many'" in said(capsys)["broken"]


def test_stats_and_clear(capsys: pytest.CaptureFixture[str], stub, tmp_path: Path) -> None:
    stub.service().compile(CompileRequest(unit_text="int x;", target="sm_90a"))
    folder = tmp_path / "cache"
    assert main(["stats"]) == 0
    assert said(capsys)["cache"] == f"{folder} holds 1 entries, 0.1 MB"
    assert main(["clear"]) == 0
    assert said(capsys)["cache"] == f"{folder} removed 1 entries, 0.1 MB"
    assert main(["stats"]) == 0
    assert said(capsys)["cache"] == f"{folder} holds 0 entries, 0.0 MB"


def test_bad_arguments_are_refused() -> None:
    for arguments in ([], ["mend"], ["doctor", "--nonsense"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


ERRORS = [
    kind for kind in vars(errors_module).values() if isinstance(kind, type) and issubclass(kind, HummingCompileError)
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_keeps_its_fields_when_pickled(kind: type[HummingCompileError]) -> None:
    error = kind("what, got, wanted, what to do", log="text", name="kernel", exit_code=-9, known=("sm_75",))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind and str(copy) == str(error) == "what, got, wanted, what to do"
    assert vars(copy) == vars(error) and copy.exit_code == -9
    again = pickle.loads(pickle.dumps(copy))
    assert vars(again) == vars(error)


def test_fields_have_defaults() -> None:
    assert len(ERRORS) >= 12
    assert WorkerCrashError("text").exit_code is None and WorkerCrashError("text").log == ""
