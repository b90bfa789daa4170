"""Requests, settings and protocol: what is refused, and in what words.

Run by pytest.
Assumes nothing of the machine.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from humming_compile import CompileRequest, RequestError, Settings, SettingsError
from humming_compile.errors import ProtocolError
from humming_compile.protocol import Message, encode, read_message
from humming_compile.settings import VARIABLES, usable_cores


@pytest.mark.parametrize("target", ["sm_75", "sm_90a", "sm_100f", "sm_121a"])
def test_targets_that_are_well_formed(target: str) -> None:
    assert CompileRequest(unit_text="", target=target).target == target


@pytest.mark.parametrize(
    "target", ["", "90a", "sm90", "sm_9", "sm_90A", "compute_90", "sm_90a ", "sm_90a\n", "sm_1000"]
)
def test_targets_that_are_refused(target: str) -> None:
    with pytest.raises(RequestError, match="wanted a name like"):
        CompileRequest(unit_text="", target=target)


@pytest.mark.parametrize(
    "option", ["-I/opt/x", "--include-path=/x", "-arch=sm_80", "--gpu-architecture=sm_80", "--pre-include=a.h", "-dlto"]
)
def test_options_that_the_key_cannot_cover_are_refused(option: str) -> None:
    with pytest.raises(RequestError, match=re.escape(repr(option)) + " cannot be given"):
        CompileRequest(unit_text="", target="sm_80", options=(option,))


@pytest.mark.parametrize("option", ["NAME=1", "-D NAME", ""])
def test_options_of_more_than_one_word_are_refused(option: str) -> None:
    with pytest.raises(RequestError, match="one word"):
        CompileRequest(unit_text="", target="sm_80", options=(option,))


def test_output_is_checked() -> None:
    with pytest.raises(RequestError, match="'cubin', 'ptx'"):
        CompileRequest(unit_text="", target="sm_80", output="sass")


def test_settings_from_the_environment(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            "HUMMING_COMPILE_CACHE_DIR": str(tmp_path / "a b é"),
            "HUMMING_COMPILE_WORKERS": "3",
            "HUMMING_COMPILE_TIMEOUT": "1.5",
            "HUMMING_COMPILE_CUDA_DIR": "/opt/cuda",
            "HUMMING_COMPILE_KEEP_DIR": "/tmp/keep",
            "CUDA_HOME": "/opt/other",
        }
    )
    assert settings == Settings(
        cache_folder=tmp_path / "a b é",
        workers=3,
        timeout_seconds=1.5,
        cuda_folder=Path("/opt/cuda"),
        keep_folder=Path("/tmp/keep"),
        toolkit_places={"CUDA_HOME": "/opt/other"},
    )


def test_defaults_of_the_settings(tmp_path: Path) -> None:
    settings = Settings.from_environment({"HUMMING_COMPILE_CACHE_DIR": str(tmp_path)})
    assert (settings.workers, settings.timeout_seconds) == (usable_cores(), 300.0)
    assert settings.cuda_folder is None and settings.keep_folder is None


def test_a_relative_cache_folder_does_not_move_with_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings.from_environment({"HUMMING_COMPILE_CACHE_DIR": "kernels"})
    assert settings.cache_folder == tmp_path / "kernels"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("WORKERS", "0"),
        ("WORKERS", "2.5"),
        ("WORKERS", "many"),
        ("TIMEOUT", "-1"),
        ("TIMEOUT", "nan"),
        ("TIMEOUT", "x"),
    ],
)
def test_bad_values_name_the_variable(variable: str, value: str) -> None:
    name = f"HUMMING_COMPILE_{variable}"
    with pytest.raises(SettingsError, match=f"{name} is '{value}', wanted") as caught:
        Settings.from_environment({"HUMMING_COMPILE_CACHE_DIR": "/tmp/x", name: value})
    assert caught.value.variable == name


def test_the_environment_is_read_in_one_file_and_stays_small() -> None:
    sources = Path(__file__).parents[1].joinpath("src/humming_compile").glob("*.py")
    readers = [path.name for path in sources if re.search(r"environ\b|getenv", path.read_text(encoding="utf-8"))]
    assert readers == ["settings.py"]
    assert len(VARIABLES) < 8 and all(name.startswith("HUMMING_COMPILE_") for name in VARIABLES)


def test_messages_round_trip() -> None:
    messages = [Message(head={"kind": "x", "text": "é\n\0"}, body=bytes(range(256)) * 9), Message(head={})]
    stream = io.BytesIO(b"".join(map(encode, messages)))
    assert [read_message(stream), read_message(stream), read_message(stream)] == [*messages, None]


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:7], lambda data: b"x" + data])
def test_spoiled_messages_are_told(spoil) -> None:
    data = spoil(encode(Message(head={"kind": "x"}, body=b"1234")))
    with pytest.raises(ProtocolError):
        read_message(io.BytesIO(data))
