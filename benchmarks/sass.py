"""What the assembler made of the hot kernels: matrix multiplies, copies, widths of shared loads, local memory.

Called as `python -m benchmarks.sass [--target sm_90a] [--weight u4g128] [--activation bf16]` and by the tests of
humming-kernels. Assumes NVRTC and nvdisasm (triton's wheel, which torch brings, or nvidia-cuda-nvdisasm); no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from humming_kernels.arch import DeviceFacts, find_arch
from humming_kernels.compose import KernelSource, compose
from humming_kernels.config import ComputeConfig

from tests.support.kernel_cases import MULTIPROCESSORS, choices, layer_of
from tests.support.nvrtc_direct import Built, direct_nvrtc

_LABEL = re.compile(r"^(\.L_\w+):")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)([^;]*)")
_TARGET = re.compile(r"`\((\.L_\w+)\)")

MULTIPLIES = ("HGMMA", "HMMA")
COLUMNS = ("HGMMA", "HMMA", "LDSM", "LDS.128", "LDS.64", "LDS", "LDGSTS", "UBLKCP", "UTMALDG", "LDL", "STL")
"""Counted instructions, all sizes and modifiers; LDS is what is narrower than 64 bits."""


@attrs.frozen(kw_only=True)
class Listing:
    """The instructions of one kernel, and which of them are in its hot loop: (opcode, whether in the loop)."""

    instructions: tuple[tuple[str, bool], ...]

    def count(self, column: str, *, in_loop: bool = False) -> int:
        """How many instructions belong to one of COLUMNS."""
        return sum(column_of(opcode) == column and (inside or not in_loop) for opcode, inside in self.instructions)

    @property
    def loop_length(self) -> int:
        return sum(inside for _, inside in self.instructions)


def column_of(opcode: str) -> str:
    """The column of COLUMNS that an opcode such as "LDS.U.128" or "HMMA.16816.F32" is counted in, or "" for none."""
    name, *modifiers = opcode.split(".")
    if name == "LDS" and modifiers:
        return next((f"LDS.{size}" for size in ("128", "64") if size in modifiers), "LDS")
    return name if name in COLUMNS else ""


def parse(text: str) -> Listing:
    """The listing of nvdisasm's text of one kernel.

    The hot loop is the shortest run of instructions that ends in a branch to its beginning and holds the most matrix
    multiplies.
    """
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(opcodes)
        elif found := _INSTRUCTION.match(line):
            if target := _TARGET.search(found[3]):
                jumps.append((len(opcodes), target[1]))
            opcodes.append(found[2])
    loops = [(labels[label], place) for place, label in jumps if labels.get(label, place + 1) <= place]

    def multiplies(loop: tuple[int, int]) -> tuple[int, int]:
        first, last = loop
        return sum(column_of(opcode) in MULTIPLIES for opcode in opcodes[first : last + 1]), first - last

    first, last = max(loops, key=multiplies, default=(0, -1))
    return Listing(instructions=tuple((opcode, first <= place <= last) for place, opcode in enumerate(opcodes)))


def find_nvdisasm() -> Path | None:
    """nvdisasm on the path, or of the wheels of triton or NVIDIA."""
    on_path = shutil.which("nvdisasm")
    if on_path is not None:
        return Path(on_path)
    for package, folders in (("triton", ("backends/nvidia/bin",)), ("nvidia", ("cu13/bin", "cuda_nvdisasm/bin"))):
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            for folder in folders:
                path = Path(root) / folder / "nvdisasm"
                if path.exists():
                    return path
    return None


def disassemble(cubin: bytes, nvdisasm: Path) -> Listing:
    """The listing of a cubin that holds one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([str(nvdisasm), "-c", str(path)], capture_output=True, text=True, check=True)
    return parse(done.stdout)


def hot_sources(target: str, weight: str, activation: str, n: int = 8192, k: int = 8192) -> list[KernelSource]:
    """The kernels that the heuristic takes for 1 to 8192 tokens of a large layer on the target's largest device."""
    arch = find_arch(target)
    device = DeviceFacts(arch=arch, multiprocessors=max(MULTIPROCESSORS[target]))
    layer, compute = layer_of(weight, n, k), ComputeConfig(activation=activation)
    sources = {}
    for tuning in choices(layer, compute, device):
        source = compose(layer, compute, tuning, arch)
        sources[source.symbol] = source
    return list(sources.values())


def table(rows: Iterable[tuple[str, Built, Listing]]) -> str:
    """One line for each kernel: registers, counts of the whole kernel, multiplies and length of the hot loop."""
    head = ["kernel", "registers", *COLUMNS, "in loop", "loop length"]
    lines = [head]
    for symbol, built, listing in rows:
        counts = [str(listing.count(column)) for column in COLUMNS]
        in_loop = sum(listing.count(column, in_loop=True) for column in MULTIPLIES)
        lines.append([symbol, str(built.registers), *counts, str(in_loop), str(listing.loop_length)])
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in enumerate(columns))
        for columns in (list(zip(line, widths, strict=True)) for line in lines)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What the assembler made of the hot kernels")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--weight", default="u4g128")
    parser.add_argument("--activation", default="bf16")
    options = parser.parse_args(arguments)
    nvrtc, nvdisasm = direct_nvrtc(), find_nvdisasm()
    if nvrtc is None or nvdisasm is None:
        sys.stderr.write("needs NVRTC (cuda-bindings, nvidia-cuda-nvrtc) and nvdisasm (nvidia-cuda-nvdisasm)\n")
        return 1
    rows = []
    for source in hot_sources(options.target, options.weight, options.activation):
        built = nvrtc.build(source.unit_text, source.headers, source.target)
        rows.append((source.symbol, built, disassemble(built.cubin, nvdisasm)))
    sys.stdout.write(table(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
