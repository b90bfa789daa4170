"""Device facts for work ahead of time: of a named target, or of the GPU at hand.

Called by the commands of cli.py and by quickstart.py.
Assumes for a target without a given number of multiprocessors that of a common GPU with it.
"""

from __future__ import annotations

import torch
from humming_kernels.arch import DeviceFacts, find_arch

from humming_torch.errors import UnsupportedError
from humming_torch.session import session_of

DEFAULT_TARGET = "sm_90a"

MULTIPROCESSORS: dict[str, int] = {
    "sm_75": 40,
    "sm_80": 108,
    "sm_86": 84,
    "sm_87": 16,
    "sm_89": 142,
    "sm_90a": 132,
    "sm_100a": 148,
    "sm_103a": 160,
    "sm_120a": 188,
    "sm_121a": 48,
}
"""Multiprocessors of a common GPU of each target, for choosing kernels where the GPU itself is not there."""


def facts_of(target: str | None = None, multiprocessors: int | None = None) -> DeviceFacts:
    """Facts of `target`; without one, of this machine's GPU, or of sm_90a where there is none.

    Raises UnsupportedError for multiprocessors without a device to have them, KernelError for an unknown target.
    """
    if target is None and torch.cuda.is_available():
        if multiprocessors is not None:
            raise UnsupportedError(
                "the GPU of this machine has its own number of multiprocessors", hint="Give --target with it."
            )
        return session_of(torch.device("cuda")).facts
    arch = find_arch(target or DEFAULT_TARGET)
    count = MULTIPROCESSORS[arch.name] if multiprocessors is None else multiprocessors
    return DeviceFacts(arch=arch, multiprocessors=count)
