"""Rules on the CUDA headers: rooms and their ranks, include style, where `asm` may stand, names and opening lines.

Called by test_architecture_cuda.py.
Assumes headers named `.cuh` under include/humming, one room per folder.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.rules.python_source import over_length
from tests.architecture.rules.table import COMPONENT_LINES, CUDA_ROOT, KERNEL_LINES, ROOM_RANK, shown

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
_NAMESPACE = re.compile(r"^[ \t]*(?:inline[ \t]+)?namespace[ \t]+([A-Za-z_][\w:]*)[ \t]*\{", re.MULTILINE)
# Rooms that may include headers of the CUDA toolkit, and which those are: all others cost seconds under NVRTC.
TOOLKIT_ROOMS = ("base", "arch")
TOOLKIT_HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h", "cuda.h")
# PTX lines that carry predicates and labels for the one instruction of a function.
_PLUMBING = re.compile(r"^(?:\{|\}|\.reg\b.*|@?!?%?\w*\s*bra\b.*|setp\b.*|selp\b.*|mov\.pred\b.*|\w+:)$")


def cuda_problems(root: Path) -> list[str]:
    """Everything that the rules of this file say about the headers of the tree."""
    folder = root / CUDA_ROOT
    problems: list[str] = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        if path.suffix != ".cuh":
            problems.append(f"{shown(path, root)}: only .cuh headers stand under include/humming")
            continue
        text = path.read_text(encoding="utf-8")
        inside = path.relative_to(folder)
        room = inside.parts[0]
        if room not in ROOM_RANK or len(inside.parts) < 2:
            problems.append(f"{shown(path, root)}: {room} is no room; wanted one of {', '.join(ROOM_RANK)}")
            continue
        for line, what in (
            *_opening(text),
            *_includes(text, room, folder),
            *_arch_only(text, room),
            *_namespaces(text, inside),
            *(_instructions(text) if room == "arch" else ()),
        ):
            problems.append(f"{shown(path, root)}:{line}: {what}")
        problems += over_length(path, root, KERNEL_LINES if room == "kernels" else COMPONENT_LINES)
    return problems


def without_comments(text: str) -> str:
    """The text with comments blanked and line numbers kept; string literals stay."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

    def blank(found: re.Match[str]) -> str:
        word = found.group(0)
        return word if word.startswith('"') else re.sub(r"[^\n]", " ", word)

    return pattern.sub(blank, text)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _opening(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    if len(lines) < 3 or not all(line.startswith("//") and len(line.strip()) > 4 for line in lines[:3]):
        yield 1, "the file begins with three comment lines: what it does, who includes it, what it assumes"
    code = [line.strip() for line in without_comments(text).splitlines() if line.strip()]
    if not code or code[0] != "#pragma once":
        yield 1, "`#pragma once` is the first line of code"


def _includes(text: str, room: str, folder: Path) -> Iterator[tuple[int, str]]:
    code = without_comments(text)
    for found in _INCLUDE.finditer(code):
        bracket, name = found.groups()
        line = _line(code, found.start(2))
        parts = name.split("/")
        if parts[0] == "humming":
            other = parts[1] if len(parts) > 2 else ""
            if bracket != "<":
                yield line, f'"{name}": write <{name}>; NVRTC resolves no relative include'
            if other not in ROOM_RANK:
                yield line, f"<{name}>: includes are written <humming/room/file.cuh>"
            elif other != room and ROOM_RANK[other] >= ROOM_RANK[room]:
                yield (
                    line,
                    (
                        f"<{name}>: room {room} (rank {ROOM_RANK[room]}) includes room {other} "
                        f"(rank {ROOM_RANK[other]}); a header includes lower ranks or its own room"
                    ),
                )
            elif not (folder.parent / name).is_file():
                yield line, f"<{name}>: no such file"
        elif bracket == '"':
            yield line, f'"{name}": write <humming/room/file.cuh>; NVRTC resolves no relative include'
        elif room not in TOOLKIT_ROOMS:
            yield line, f"<{name}>: headers from outside are included in {' and '.join(TOOLKIT_ROOMS)} only; wrap it"
        elif name not in TOOLKIT_HEADERS:
            yield line, f"<{name}>: only {', '.join(TOOLKIT_HEADERS)} may be included; others cost compile time"


def _arch_only(text: str, room: str) -> Iterator[tuple[int, str]]:
    if room == "arch":
        return
    code = without_comments(text)
    for found in re.finditer(r"\b(?:asm|__asm__|__asm|__CUDA_ARCH\w*)\b", code):
        yield _line(code, found.start()), f"`{found.group(0)}` stands in arch/ only; add a function there and call it"


def _namespaces(text: str, inside: Path) -> Iterator[tuple[int, str]]:
    wanted = "::".join(("humming", *inside.parts[:-1]))
    code = without_comments(text)
    names = [(found.group(1), _line(code, found.start(1))) for found in _NAMESPACE.finditer(code)]
    outer = [(name, line) for name, line in names if name.startswith("humming")]
    defines_only = not names and not re.search(r"\b(?:struct|enum|template|constexpr|__device__|using)\b", code)
    if not outer and not defines_only:
        yield 1, f"no namespace {wanted}; namespaces equal folders"
    for name, line in outer:
        if name != wanted:
            yield line, f"namespace {name}; wanted {wanted}: namespaces equal folders"


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Functions of arch/ that hold more than one `asm`, or an `asm` of more than one instruction."""
    code = without_comments(text)
    for start, body in function_bodies(code):
        variants = re.split(r"^[ \t]*#[ \t]*(?:else|elif)\b[^\n]*$", body, flags=re.MULTILINE)
        for variant in variants:
            statements = asm_texts(variant)
            if len(statements) > 1:
                yield (
                    _line(code, start),
                    f"a function with {len(statements)} asm statements; one PTX instruction per function",
                )
            for statement in statements:
                real = instructions(statement)
                if len(real) > 1:
                    yield (
                        _line(code, start),
                        (f"an asm of {len(real)} instructions ({'; '.join(real)}); one PTX instruction per function"),
                    )


def instructions(statement: str) -> list[str]:
    """The PTX instructions of one asm text, without the predicate and label lines that serve them."""
    pieces = re.sub(r"([{}])", r";\1;", re.sub(r"\{([^{};]*)\}", r"<\1>", statement)).split(";")
    cleaned = [piece.replace("<", "{").replace(">", "}").strip() for piece in pieces]
    return [piece for piece in cleaned if piece and not _PLUMBING.match(piece)]


def asm_texts(code: str) -> list[str]:
    """The PTX text of each asm statement: its leading string literals, joined."""
    texts = []
    for found in re.finditer(r"\b(?:asm|__asm__)\b\s*(?:volatile|__volatile__)?\s*\(", code):
        literals = re.match(r'\s*((?:"(?:\\.|[^"\\])*"\s*)+)', code[found.end() :])
        joined = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', literals.group(1))) if literals else ""
        texts.append(re.sub(r"\\[nt]", " ", joined))
    return texts


def function_bodies(code: str) -> Iterator[tuple[int, str]]:
    """Start and text of each outermost function body: a brace block that follows a parameter list."""
    blanked = re.sub(r'"(?:\\.|[^"\\\n])*"', lambda found: '"' + "_" * (len(found.group(0)) - 2) + '"', code)
    position = 0
    while (start := blanked.find("{", position)) != -1:
        position = start + 1
        if not re.search(r"\)\s*(?:const|noexcept|\s)*$", blanked[max(0, start - 200) : start]):
            continue
        depth, end = 1, start + 1
        while end < len(blanked) and depth:
            depth += {"{": 1, "}": -1}.get(blanked[end], 0)
            end += 1
        yield start, code[start:end]
        position = end
