"""Entry points: run PTX text on arrays, run a composed kernel, compile a small CUDA source.
Called by tests, re-exported by the package.
Assumes NVRTC through cuda.bindings for `compile_ptx`; nothing else here needs CUDA."""

from __future__ import annotations

import functools
import hashlib

from tests.emulator.errors import EmulatorError
from tests.emulator.launch import Launch
from tests.emulator.loader import Program
from tests.emulator.memory import Memory
from tests.emulator.parser import parse

_PROGRAMS = {}


def program(ptx, symbol):
    """Decoded kernel, cached by the text's hash."""
    key = (hashlib.sha256(ptx.encode()).hexdigest(), symbol)
    if key not in _PROGRAMS:
        kernels = parse(ptx)
        if symbol is None and len(kernels) == 1:
            symbol = next(iter(kernels))
        if symbol not in kernels:
            raise EmulatorError(f"no kernel {symbol!r} in the module; it has {', '.join(kernels) or 'none'}")
        _PROGRAMS[key] = Program(kernels[symbol])
    return _PROGRAMS[key]


def run(ptx, symbol, grid, block, shared_bytes, arguments, memory, **options):
    """Run one grid of a kernel and return its Report; faults raise `errors.Fault`.

    ptx: text of the module. symbol: kernel name, None if there is only one. grid, block: int or tuple.
    shared_bytes: dynamic. arguments: bytes of the parameter block. memory: Memory with the buffers.
    options: order ("sequence", "reverse", "interleaved"), cluster, check_races, profile, multiprocessors, timeline (for
    pictures.timeline), dependent (names of buffers that must not be touched before griddepcontrol.wait).
    """
    grid = (grid,) if isinstance(grid, int) else tuple(grid)
    block = (block,) if isinstance(block, int) else tuple(block)
    if isinstance(memory, Memory) is False:
        raise EmulatorError(f"memory must be a Memory, got {type(memory).__name__}")
    return Launch(program(ptx, symbol), grid, block, shared_bytes, bytes(arguments), memory, options).execute()


@functools.lru_cache(maxsize=256)
def compile_ptx(source, target="compute_80", options=(), headers=()):
    """PTX of a CUDA C++ source by NVRTC. headers: ((name, text), ...)."""
    from cuda.bindings import nvrtc

    names = [name.encode() for name, _ in headers]
    texts = [text.encode() for _, text in headers]
    _, handle = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", len(names), texts, names)
    flags = [b"-std=c++20", f"--gpu-architecture={target}".encode(), *[o.encode() for o in options]]
    (status,) = nvrtc.nvrtcCompileProgram(handle, len(flags), flags)
    _, size = nvrtc.nvrtcGetProgramLogSize(handle)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(handle, log)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise EmulatorError("NVRTC: " + log.decode().rstrip("\0 \n"))
    _, size = nvrtc.nvrtcGetPTXSize(handle)
    text = b" " * size
    nvrtc.nvrtcGetPTX(handle, text)
    nvrtc.nvrtcDestroyProgram(handle)
    return text.decode().rstrip("\0 ")
