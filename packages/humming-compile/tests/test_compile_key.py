"""The compile key: what changes it and what does not (field report 14), and which headers count.

Run by pytest.
Assumes nothing of the machine: toolkits are made up.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import attrs
import humming_compile.key as key_module
import pytest
from humming_compile import CompileRequest
from humming_compile.headers import reached_headers
from humming_compile.key import compile_key, compiler_options
from humming_compile.toolkit import Toolkit

TOOLKIT = Toolkit(
    library=Path("/a/libnvrtc.so.13"), version=(13, 0), build="b1", origin="wheels", header_version="13.0"
)
HEADERS = {
    "humming/base/config.cuh": "#include <humming/base/types.cuh>\nstruct Config {};\n",
    "humming/base/types.cuh": "using u32 = unsigned;\n",
    "humming/arch/sm100/mma.cuh": "// far away\n",
}
UNIT = "#include <humming/base/config.cuh>\n__global__ void kernel() {}\n"
REQUEST = CompileRequest(unit_text=UNIT, headers=HEADERS, target="sm_90a", options=("-DA=1", "-DB=2"))
WITH_TOOLKIT_HEADER = attrs.evolve(REQUEST, unit_text="#include <cuda_fp16.h>\n" + UNIT)


def with_header(name: str, text: str, request: CompileRequest = REQUEST) -> CompileRequest:
    return attrs.evolve(request, headers={**request.headers, name: text})


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(REQUEST, unit_text=UNIT + " "),
        attrs.evolve(REQUEST, target="sm_90"),
        attrs.evolve(REQUEST, output="ptx"),
        attrs.evolve(REQUEST, options=("-DA=1",)),
        attrs.evolve(REQUEST, options=("-DA=1", "-DB=3")),
        attrs.evolve(REQUEST, options=("-DA=1", "-DB=2", "-std=c++17")),
        with_header("humming/base/config.cuh", HEADERS["humming/base/config.cuh"] + "\n"),
        with_header("humming/base/types.cuh", "using u32 = int;\n"),
    ],
)
def test_what_changes_the_key(other: CompileRequest) -> None:
    assert compile_key(other, TOOLKIT) != compile_key(REQUEST, TOOLKIT)


@pytest.mark.parametrize("change", [{"version": (13, 1)}, {"version": (12, 0)}, {"build": "b2"}])
def test_the_compiler_changes_the_key(change: dict) -> None:
    assert compile_key(REQUEST, attrs.evolve(TOOLKIT, **change)) != compile_key(REQUEST, TOOLKIT)


def test_the_schema_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compile_key(REQUEST, TOOLKIT)
    monkeypatch.setattr(key_module, "KEY_SCHEMA", key_module.KEY_SCHEMA + 1)
    assert compile_key(REQUEST, TOOLKIT) != before


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(REQUEST, name="another name"),
        attrs.evolve(REQUEST, options=("-DB=2", "-DA=1", "-DA=1")),
        attrs.evolve(REQUEST, headers=dict(reversed(HEADERS.items()))),
        with_header("humming/arch/sm100/mma.cuh", "// edited\n"),
        with_header("humming/new.cuh", "// never included\n"),
    ],
)
def test_what_does_not_change_the_key(other: CompileRequest) -> None:
    assert compile_key(other, TOOLKIT) == compile_key(REQUEST, TOOLKIT)


def test_the_place_of_the_toolkit_does_not_change_the_key() -> None:
    moved = attrs.evolve(
        TOOLKIT, library=Path("/b/libnvrtc.so.13"), origin="conda", include_folders=(Path("/b/include"),)
    )
    assert compile_key(WITH_TOOLKIT_HEADER, moved) == compile_key(WITH_TOOLKIT_HEADER, TOOLKIT)


def test_toolkit_headers_count_only_where_a_unit_reaches_one() -> None:
    other = attrs.evolve(TOOLKIT, header_version="13.1")
    assert compile_key(WITH_TOOLKIT_HEADER, other) != compile_key(WITH_TOOLKIT_HEADER, TOOLKIT)
    assert compile_key(REQUEST, other) == compile_key(REQUEST, TOOLKIT)


def test_moved_text_between_fields_changes_the_key() -> None:
    """No two splits of the same characters over names and texts may meet."""
    one = CompileRequest(unit_text="#include <ab>\n#include <c>\n", headers={"ab": "x", "c": "y"}, target="sm_80")
    two = attrs.evolve(one, headers={"ab": "xc", "c": "y"})
    assert compile_key(one, TOOLKIT) != compile_key(two, TOOLKIT)


def test_header_files_count_by_bytes_and_not_by_time(tmp_path: Path) -> None:
    """Field report 14: the same package version installed again, with other bytes and older time stamps."""
    header = tmp_path / "one" / "config.cuh"
    header.parent.mkdir()

    def key(folder: Path) -> str:
        text = (folder / "config.cuh").read_text(encoding="utf-8")
        return compile_key(with_header("humming/base/config.cuh", text), TOOLKIT)

    header.write_text("constexpr int kStages = 3;\n")
    os.utime(header, (2_000_000_000, 2_000_000_000))
    first, stamp = key(header.parent), header.stat().st_mtime_ns
    header.write_text("constexpr int kStages = 4;\n")
    os.utime(header, ns=(stamp, stamp))
    assert key(header.parent) != first, "changed bytes under an old time stamp"
    os.utime(header, (1_000_000_000, 1_000_000_000))
    header.write_text("constexpr int kStages = 3;\n")
    assert key(header.parent) == first, "a new time stamp on the same bytes"
    shutil.copytree(header.parent, tmp_path / "elsewhere")
    assert key(tmp_path / "elsewhere") == first, "the same bytes installed elsewhere"


def test_the_key_is_pinned() -> None:
    """Keys are shared between machines and versions: a change of this value needs a new KEY_SCHEMA."""
    assert compile_key(REQUEST, TOOLKIT) == "51ad9db95aed91ec03a45b7280cbca8d470709e7ff0f88ce8a01bfbb2262c6d1"


def test_options_are_sorted_and_hold_target_and_defaults() -> None:
    options = ("--gpu-architecture=sm_90a", "--no-cache", "-DA=1", "-DB=2", "-default-device", "-std=c++20")
    assert compiler_options(REQUEST) == options
    assert "--gpu-architecture=compute_90a" in compiler_options(attrs.evolve(REQUEST, output="ptx"))
    own = compiler_options(attrs.evolve(REQUEST, options=("-std=c++17",)))
    assert [option for option in own if option.startswith("-std")] == ["-std=c++17"]


def test_headers_are_followed() -> None:
    reached = reached_headers(UNIT, HEADERS)
    assert list(reached.project) == ["humming/base/config.cuh", "humming/base/types.cuh"]
    assert reached.foreign == ()


@pytest.mark.parametrize(
    "directive",
    [
        "#include <a>",
        '#include "a"',
        "  #  include\t<a>",
        "%: include <a>",
        "#inc\\\nlude <a>",
        "#if 0\n#include <a>\n#endif",
        "#if __has_include(<a>)\n#endif",
        "/* note */ #include <a>",
        "# /* note */ include <a>",
        "#include /* note */ <a>",
        "#define NAME <a>\n#include NAME",
        "#if __has_include(NAME)\n#endif",
        "#include_next <a>",
    ],
)
def test_every_form_of_include_reaches_a_header(directive: str) -> None:
    assert reached_headers(f"int x;\n{directive}\nint y;\n", {"a": "// text\n"}).project == {"a": "// text\n"}


@pytest.mark.parametrize("text", ["int include;", "// a word on include <a>", "#define INCLUDE 1", 'printf("a");'])
def test_text_without_a_directive_reaches_nothing(text: str) -> None:
    assert reached_headers(text, {"a": ""}).project == {}


def test_cycles_and_foreign_names() -> None:
    headers = {"a": "#include <b>\n", "b": "#include <a>\n#include <cuda_fp16.h>\n#include <humming/absent.cuh>\n"}
    reached = reached_headers("#include <a>\n", headers)
    assert list(reached.project) == ["a", "b"]
    assert reached.foreign == ("cuda_fp16.h", "humming/absent.cuh")
