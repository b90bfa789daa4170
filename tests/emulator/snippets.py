"""Run a few PTX instructions on given inputs, one value per thread: the workbench of the per-instruction tests.
Called by test_emulator_*.py.
Assumes 32 threads or a multiple; inputs and outputs go through global memory by thread index."""

from __future__ import annotations

import struct

import numpy as np

from tests.emulator.api import run
from tests.emulator.memory import Memory

WIDTH = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
DTYPE = {"b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "f32": np.float32, "f64": np.float64, "pred": np.uint32}


def module(body, target="sm_90a", parameters=64, shared=0, directives=""):
    """A PTX module with one kernel `snippet` around some text."""
    return (
        f".version 8.7\n.target {target}\n.address_size 64\n"
        ".extern .shared .align 1024 .b8 dyn[];\n"
        f".visible .entry snippet(.param .align 8 .b8 args[{parameters}])\n{directives}{{\n{body}\n}}\n"
    )


def evaluate(body, outputs, threads=32, shared_bytes=0, **inputs):
    """Values of the named output registers after the text.

    inputs: name -> array (its dtype gives the register's width). outputs: name -> register type.
    The text may use registers named %<name>, and declare more.
    """
    memory = Memory()
    lines, addresses = [".reg .b64 %pointer, %offset; .reg .b32 %thread; mov.u32 %thread, %tid.x;"], []
    for name, array in inputs.items():
        array = np.ascontiguousarray(np.broadcast_to(np.asarray(array), (threads,)))
        size = array.dtype.itemsize
        kind = WIDTH[size]
        register = "b16" if kind == "b8" else kind
        lines.append(f".reg .{register} %{name};")
        lines.append(f"ld.param.u64 %pointer, [args+{8 * len(addresses)}];")
        lines.append(f"mul.wide.u32 %offset, %thread, {size}; add.s64 %pointer, %pointer, %offset;")
        lines.append(f"ld.global.{kind} %{name}, [%pointer];")
        addresses.append(memory.add(name, array).address)
    for name, kind in outputs.items():
        lines.append(f".reg .{kind} %{name};")
    lines.append(body)
    results = {}
    for name, kind in outputs.items():
        dtype = np.dtype(DTYPE[kind])
        results[name] = memory.add(name, np.zeros(threads, dtype), "output")
        source = f"%{name}"
        if kind == "pred":
            lines.append(f".reg .b32 %{name}_word; selp.b32 %{name}_word, 1, 0, %{name};")
            source = f"%{name}_word"
        lines.append(f"ld.param.u64 %pointer, [args+{8 * len(addresses)}];")
        lines.append(f"mul.wide.u32 %offset, %thread, {dtype.itemsize}; add.s64 %pointer, %pointer, %offset;")
        lines.append(f"st.global.{WIDTH[dtype.itemsize]} [%pointer], {source};")
        addresses.append(results[name].address)
    lines.append("ret;")
    arguments = b"".join(struct.pack("<Q", a) for a in addresses)
    text = module("\n".join(lines), parameters=max(len(arguments), 8))
    run(text, "snippet", 1, threads, shared_bytes, arguments.ljust(8, b"\0"), memory)
    read = {name: allocation.read() for name, allocation in results.items()}
    return next(iter(read.values())) if len(read) == 1 else read


def randoms(count=256, seed=0):
    """32-bit patterns: random ones, and those where something changes."""
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 2**32, count, dtype=np.uint32)
    edges = np.array([0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x00800000], np.uint32)
    values[: len(edges)] = edges
    return values


def run_text(body, threads=32, grid=1, shared_bytes=0, buffers=(), target="sm_90a", **options):
    """Run raw statements; the buffers' addresses are the parameters in order. Returns (report, memory)."""
    memory = Memory()
    addresses = [memory.add(name, array, role).address for name, array, role in buffers]
    arguments = b"".join(struct.pack("<Q", a) for a in addresses).ljust(8, b"\0")
    text = module(body, target, parameters=len(arguments))
    return run(text, "snippet", grid, threads, shared_bytes, arguments, memory, **options), memory
