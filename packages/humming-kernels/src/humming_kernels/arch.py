"""The table of GPU targets: limits and instruction families.
Called by the rules, the heuristics and whoever maps a device to a target.
Assumes the figures of the CUDA programming guide's table of compute capabilities."""

from __future__ import annotations

import attrs

from .errors import UnknownArchError


@attrs.frozen(kw_only=True)
class Arch:
    """One NVRTC target. `shared_memory` is what one block may use, in bytes; families name component rooms."""

    name: str
    capability: tuple[int, int]
    shared_memory: int
    shared_memory_per_multiprocessor: int
    families: frozenset[str]

    @property
    def number(self) -> int:
        """10 x major + minor, as TargetConfig.arch in the CUDA code."""
        return 10 * self.capability[0] + self.capability[1]

    def has(self, family: str) -> bool:
        """Whether the target has an instruction family, for example "mma_sync_bf16" or "cp_async"."""
        return family in self.families


@attrs.frozen(kw_only=True)
class DeviceFacts:
    """What a heuristic may know of a device."""

    arch: Arch
    multiprocessors: int


_TURING = frozenset({"mma_sync_f16", "mma_sync_int8", "mma_sync_int4", "ldmatrix"})
_AMPERE = _TURING | {"mma_sync_bf16", "cp_async", "cache_hint"}
_ADA = _AMPERE | {"mma_sync_fp8"}
_HOPPER = _ADA | {"wgmma", "bulk_copy", "tensor_map", "mbarrier", "cluster", "setmaxnreg"}
_BLACKWELL = (_ADA - {"mma_sync_int4"}) | {"bulk_copy", "tensor_map", "mbarrier", "cluster", "setmaxnreg"}
_BLACKWELL_DATA_CENTRE = _BLACKWELL | {"tcgen05"}
_BLACKWELL_WORKSTATION = _BLACKWELL | {"mma_block_scale"}


def _arch(name: str, major: int, minor: int, shared_kib: int, total_kib: int, families: frozenset[str]) -> Arch:
    return Arch(
        name=name,
        capability=(major, minor),
        shared_memory=shared_kib * 1024,
        shared_memory_per_multiprocessor=total_kib * 1024,
        families=families,
    )


ARCHS: tuple[Arch, ...] = (
    _arch("sm_75", 7, 5, 64, 64, _TURING),
    _arch("sm_80", 8, 0, 163, 164, _AMPERE),
    _arch("sm_86", 8, 6, 99, 100, _AMPERE),
    _arch("sm_87", 8, 7, 163, 164, _AMPERE),
    _arch("sm_89", 8, 9, 99, 100, _ADA),
    _arch("sm_90a", 9, 0, 227, 228, _HOPPER),
    _arch("sm_100a", 10, 0, 227, 228, _BLACKWELL_DATA_CENTRE),
    _arch("sm_103a", 10, 3, 227, 228, _BLACKWELL_DATA_CENTRE),
    _arch("sm_120a", 12, 0, 99, 100, _BLACKWELL_WORKSTATION),
    _arch("sm_121a", 12, 1, 99, 100, _BLACKWELL_WORKSTATION),
)
"""Every target, oldest first."""


def find_arch(name: str) -> Arch:
    """The target with this name, for example "sm_90a"; raises UnknownArchError that lists what there is."""
    for arch in ARCHS:
        if arch.name == name:
            return arch
    known = ", ".join(arch.name for arch in ARCHS)
    raise UnknownArchError(f"unknown GPU target; got {name!r}, wanted one of {known}")


def arch_of_capability(major: int, minor: int) -> Arch:
    """The target for a device of this compute capability; raises UnknownArchError."""
    for arch in ARCHS:
        if arch.capability == (major, minor):
            return arch
    known = ", ".join("{}.{}".format(*arch.capability) for arch in ARCHS)
    raise UnknownArchError(f"no target for a GPU of compute capability {major}.{minor}; supported are {known}")
