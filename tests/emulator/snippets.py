"""Small PTX kernels on given buffers, for the emulator and (record_on_device) for a GPU alike.
Called by test_emulator_*.py and instruction_cases.py.
Assumes one block; buffers' addresses are the kernel's parameters, in order."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from tests.emulator.api import run
from tests.emulator.memory import Memory

WIDTH = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
DTYPE = {"b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "f32": np.float32, "f64": np.float64, "pred": np.uint32}


@dataclass
class MapOf:
    """A buffer of 128 bytes that is to hold the tensor map of another buffer."""

    buffer: str
    sizes: tuple
    strides: tuple
    box: tuple
    element: int
    swizzle: int


@dataclass
class Snippet:
    body: str
    buffers: list = field(default_factory=list)  # (name, array or MapOf, role)
    threads: int = 32
    shared_bytes: int = 0
    target: str = "sm_90a"

    def text(self):
        return module(self.body, self.target, max(8 * len(self.buffers), 8))


def module(body, target="sm_90a", parameters=64):
    """A PTX module with one kernel `snippet` around some statements."""
    version = "8.7" if target.startswith("sm_1") else "8.6"
    return (
        f".version {version}\n.target {target}\n.address_size 64\n"
        ".extern .shared .align 1024 .b8 dyn[];\n"
        f".visible .entry snippet(.param .align 8 .b8 args[{parameters}])\n{{\n{body}\n}}\n"
    )


def emulate(snippet, grid=1, **options):
    """(report, memory) of a run in the emulator."""
    memory = Memory()
    addresses = []
    for name, content, role in snippet.buffers:
        if isinstance(content, MapOf):
            encoded = memory.add_tensor_map(
                memory[content.buffer],
                content.sizes,
                content.strides,
                content.box,
                content.element,
                swizzle=content.swizzle,
            )
            content = np.frombuffer(encoded, np.uint8)
        addresses.append(memory.add(name, content, role).address)
    arguments = b"".join(struct.pack("<Q", a) for a in addresses).ljust(8, b"\0")
    report = run(snippet.text(), "snippet", grid, snippet.threads, snippet.shared_bytes, arguments, memory, **options)
    return report, memory


def threadwise(body, outputs, threads=32, shared_bytes=0, target="sm_90a", **inputs):
    """A snippet that loads one value per thread of each input, runs the text and stores the outputs.

    inputs: name -> array (its dtype gives the register's width). outputs: name -> register type.
    The text may use registers named %<name>, and declare more.
    """
    lines, buffers = [".reg .b64 %pointer, %offset; .reg .b32 %thread; mov.u32 %thread, %tid.x;"], []
    for name, array in inputs.items():
        array = np.ascontiguousarray(np.broadcast_to(np.asarray(array), (threads,)))
        size = array.dtype.itemsize
        kind = WIDTH[size]
        lines.append(f".reg .{'b16' if kind == 'b8' else kind} %{name};")
        lines.append(f"ld.param.u64 %pointer, [args+{8 * len(buffers)}];")
        lines.append(f"mul.wide.u32 %offset, %thread, {size}; add.s64 %pointer, %pointer, %offset;")
        lines.append(f"ld.global.{kind} %{name}, [%pointer];")
        buffers.append((name, array, "input"))
    lines.extend(f".reg .{kind} %{name};" for name, kind in outputs.items())
    lines.append(body)
    for name, kind in outputs.items():
        dtype = np.dtype(DTYPE[kind])
        source = f"%{name}"
        if kind == "pred":
            lines.append(f".reg .b32 %{name}_word; selp.b32 %{name}_word, 1, 0, %{name};")
            source = f"%{name}_word"
        lines.append(f"ld.param.u64 %pointer, [args+{8 * len(buffers)}];")
        lines.append(f"mul.wide.u32 %offset, %thread, {dtype.itemsize}; add.s64 %pointer, %pointer, %offset;")
        lines.append(f"st.global.{WIDTH[dtype.itemsize]} [%pointer], {source};")
        buffers.append((name, np.zeros(threads, dtype), "output"))
    lines.append("ret;")
    return Snippet("\n".join(lines), buffers, threads, shared_bytes, target)


def evaluate(body, outputs, **arguments):
    """Values of the named output registers after the text; see threadwise. One output comes without its name."""
    _, memory = emulate(threadwise(body, outputs, **arguments))
    read = {name: memory[name].read() for name in outputs}
    return next(iter(read.values())) if len(read) == 1 else read


def randoms(count=256, seed=0):
    """32-bit patterns: random ones, and those where something changes."""
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 2**32, count, dtype=np.uint32)
    edges = [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x00800000]
    values[: len(edges)] = np.array(edges, np.uint32)
    return values


def run_text(body, threads=32, grid=1, shared_bytes=0, buffers=(), target="sm_90a", **options):
    """Run raw statements; returns (report, memory)."""
    return emulate(Snippet(body, list(buffers), threads, shared_bytes, target), grid, **options)
