"""Where the time of a layer's eager call goes on the CPU, piece by piece, with stand-ins for the GPU and the driver.

Run as `python -m tests.support.call_path [--repeats N]`; it prints a table and asserts no time.
Assumes nothing of a GPU: memory is the CPU's and a launch ends where the driver would begin. What a real call adds is
the driver's launch, the CUDA allocator and two short runtime calls.
"""

from __future__ import annotations

import argparse
import struct
import sys
import timeit
from collections.abc import Callable, Sequence

import torch
from humming_compile.module import ArgumentBuffer
from humming_kernels.launch import ARGUMENTS
from humming_torch import Linear, direct

from tests.support.call_stand_ins import STREAM, fake_cuda

_BURST = 20  # calls in one measurement: short, so that some of the many fall into a quiet moment


class SilentFunction:
    """Stands for a loaded kernel; takes the arguments of a launch and lets them go."""

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol

    def launch(
        self, grid: tuple[int, int, int], block: int, shared_bytes: int, stream: int, arguments: ArgumentBuffer
    ) -> None:
        """Nothing."""


def nanoseconds(call: Callable[[], object], repeats: int) -> float:
    """The shortest of many bursts, per call, less what an empty call costs."""

    def nothing() -> None:
        pass

    taken = [min(timeit.repeat(each, number=_BURST, repeat=repeats)) / _BURST * 1e9 for each in (call, nothing)]
    return taken[0] - taken[1]


def pieces(m: int, n: int, k: int) -> dict[str, Callable[[], object]]:
    """What to time: the whole call in its forms, the floors between, and single steps. Only valid in `fake_cuda`."""
    layer = Linear.from_float(torch.randn(n, k), "u4g128:bf16", dtype=torch.bfloat16).prepare(max(m, 64))
    activation, out = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(m, n, dtype=torch.bfloat16)
    batch = activation.view(1, m, k)
    for _ in range(2):
        layer(activation)
    run = layer._direct[torch.bfloat16].run
    plan = layer._plan_of(torch.bfloat16)
    launch = plan.launches[m]
    buffer = ArgumentBuffer(ARGUMENTS.size)
    values = struct.unpack(ARGUMENTS.format, bytes(ARGUMENTS.size))
    held = layer._held
    return {
        "layer(x)": lambda: layer(activation),
        "layer(x, out=y)": lambda: layer(activation, out=out),
        "layer(x) of three dimensions": lambda: layer(batch),
        "  Linear.forward": lambda: layer.forward(activation),
        "  DirectCall.run, allocating": lambda: run(activation, None),
        "  DirectCall.run, out": lambda: run(activation, out),
        "    allocation of the result": lambda: direct.empty((m, n), torch.bfloat16),
        "    argument block": lambda: ARGUMENTS.pack_into(buffer.view, 0, *values),
        "    launch, without the driver": lambda: launch.function.launch(
            launch.grid, launch.threads, launch.shared_bytes, STREAM, buffer
        ),
        "the general way (all checks, the plan)": lambda: layer._general(activation, None),
        "  Plan.run, out": lambda: plan.run(activation, *held, out),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3000)
    parser.add_argument("--m", type=int, default=1)
    parser.add_argument("--shape", type=int, nargs=2, metavar=("N", "K"), default=(1024, 1024))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with torch.no_grad(), fake_cuda() as cuda:
        cuda.session.make_function = SilentFunction
        for name, call in pieces(options.m, *options.shape).items():
            sys.stdout.write(f"{name:42} {nanoseconds(call, options.repeats):8.0f} ns\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
