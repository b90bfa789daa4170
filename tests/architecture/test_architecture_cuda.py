"""The rooms of the CUDA code keep their ranks, and each rule of the rooms can fail.

Run by pytest.
Assumes the ranks in tests/architecture/rules/table.py.
"""

from pathlib import Path

import pytest

from tests.architecture.expect import nothing_wrong
from tests.architecture.rules.cuda_source import asm_texts, cuda_problems, instructions
from tests.architecture.rules.table import CUDA_ROOT, REPOSITORY

OPENING = "// What it does.\n// Who includes it.\n// What it assumes.\n#pragma once\n"


def test_the_rooms_keep_their_rules() -> None:
    nothing_wrong(cuda_problems(REPOSITORY))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that follows the rules."""
    _write(tmp_path, "base/traits.cuh", OPENING + "namespace humming::base {\nusing u32 = unsigned;\n}\n")
    _write(
        tmp_path,
        "arch/sm80/copy.cuh",
        OPENING
        + "#include <cuda_fp16.h>\n#include <humming/base/traits.cuh>\nnamespace humming::arch::sm80 {\n"
        + 'inline __device__ void commit() {\n  asm volatile("cp.async.commit_group;\\n" ::);\n}\n'
        + "inline __device__ void predicated(bool on) {\n"
        + '  asm volatile("{\\n .reg .pred p;\\n setp.ne.b32 p, %0, 0;\\n"\n'
        + '               " @p cp.async.ca.shared.global [%1], [%2], 16;\\n}\\n" ::"r"((int)on));\n}\n}\n',
    )
    _write(
        tmp_path,
        "decode/unsigned.cuh",
        OPENING
        + "#include <humming/arch/sm80/copy.cuh>\n// asm stands elsewhere\nnamespace humming::decode {\nint x;\n}\n",
    )
    _write(
        tmp_path,
        "kernels/dense.cuh",
        OPENING + "#include <humming/decode/unsigned.cuh>\nnamespace humming::kernels {\nint y;\n}\n",
    )
    return tmp_path


def test_the_small_tree_passes(tree: Path) -> None:
    assert cuda_problems(tree) == []


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("base/bad.cuh", "#include <humming/arch/sm80/copy.cuh>", "room base (rank 0) includes room arch (rank 1)"),
        ("mma/bad.cuh", "#include <humming/decode/unsigned.cuh>", "room mma (rank 2) includes room decode (rank 2)"),
        ("arch/sm80/bad.cuh", "#include <humming/kernels/dense.cuh>", "includes room kernels (rank 4)"),
        ("decode/bad.cuh", '#include "humming/base/traits.cuh"', "NVRTC resolves no relative include"),
        ("decode/bad.cuh", '#include "unsigned.cuh"', "NVRTC resolves no relative include"),
        ("decode/bad.cuh", "#include <humming/traits.cuh>", "<humming/room/file.cuh>"),
        ("decode/bad.cuh", "#include <humming/base/absent.cuh>", "no such file"),
        ("decode/bad.cuh", "#include <cuda_fp16.h>", "base and arch only"),
        ("arch/sm80/bad.cuh", "#include <cuda/std/type_traits>", "cost compile time"),
    ],
)
def test_a_bad_include_is_named(tree: Path, file: str, text: str, words: str) -> None:
    namespace = "::".join(("humming", *file.split("/")[:-1]))
    _write(tree, file, OPENING + text + f"\nnamespace {namespace} {{\nint z;\n}}\n")
    problems = cuda_problems(tree)
    assert len(problems) == 1 and words in problems[0] and f"{file}:5:" in problems[0]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("decode/bad.cuh", 'void f() { asm("nop;"); }', "`asm` stands in arch/ only"),
        ("base/bad.cuh", "#if __CUDA_ARCH__ >= 800\n#endif", "`__CUDA_ARCH__` stands in arch/ only"),
        ("arch/sm80/bad.cuh", 'void f() { asm("a.b %0;"); asm("c.d %0;"); }', "2 asm statements"),
        ("arch/sm80/bad.cuh", 'void f() { asm("lop3.b32 %0, %1;\\n"\n "mul.f16x2 %0, %1;"); }', "2 instructions"),
    ],
)
def test_bad_device_code_is_named(tree: Path, file: str, text: str, words: str) -> None:
    namespace = "::".join(("humming", *file.split("/")[:-1]))
    _write(tree, file, OPENING + f"namespace {namespace} {{\n{text}\n}}\n")
    problems = cuda_problems(tree)
    assert len(problems) == 1 and words in problems[0], problems


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("base/bad.cuh", "#pragma once\nnamespace humming::base {\nint z;\n}\n", "three comment lines"),
        (
            "base/bad.cuh",
            OPENING.replace("#pragma once\n", "") + "namespace humming::base {\nint z;\n}\n",
            "#pragma once",
        ),
        ("base/bad.cuh", OPENING + "namespace humming::mma {\nint z;\n}\n", "wanted humming::base"),
        ("arch/sm90/bad.cuh", OPENING + "namespace humming::arch {\nint z;\n}\n", "wanted humming::arch::sm90"),
        ("base/bad.cuh", OPENING + "struct Loose {};\n", "no namespace humming::base"),
        ("lobby/bad.cuh", OPENING, "lobby is no room"),
        ("loose.cuh", OPENING, "is no room"),
        ("base/bad.h", OPENING, "only .cuh headers"),
        ("base/bad.cuh", OPENING + "namespace humming::base {\n" + "int z;\n" * 200 + "}\n", "at most 200"),
        ("kernels/bad.cuh", OPENING + "namespace humming::kernels {\n" + "int z;\n" * 300 + "}\n", "at most 300"),
    ],
)
def test_a_bad_header_is_named(tree: Path, file: str, text: str, words: str) -> None:
    _write(tree, file, text)
    problems = cuda_problems(tree)
    assert any(words in problem and file in problem for problem in problems), problems


def test_branches_of_the_preprocessor_are_separate_functions(tree: Path) -> None:
    body = 'void f() {\n#if __CUDA_ARCH__ >= 800\n  asm("a.b %0;");\n#else\n  asm("c.d %0;");\n#endif\n}'
    _write(tree, "arch/sm80/branches.cuh", OPENING + f"namespace humming::arch::sm80 {{\n{body}\n}}\n")
    assert cuda_problems(tree) == []


def test_asm_texts_and_instructions() -> None:
    code = 'asm volatile("mma.sync.m16n8k16 {%0, %1}, {%2};\\n" : "=r"(a));'
    (text,) = asm_texts(code)
    assert instructions(text) == ["mma.sync.m16n8k16 {%0, %1}, {%2}"]
    assert instructions("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.b32 [%1], %2; }") == [
        "@p st.global.b32 [%1], %2"
    ]


def _write(root: Path, name: str, text: str) -> None:
    path = root / CUDA_ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
