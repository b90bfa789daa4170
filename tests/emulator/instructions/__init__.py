"""The instruction rooms; importing this package registers every rule.
Imported by `machine`; each room calls `decode.instruction`.
Assumes rooms do not depend on each other's order."""

from tests.emulator.instructions import (  # noqa: F401
    access,
    async_copy,
    atomic,
    bits,
    bulk,
    compare,
    convert,
    float,
    half,
    integer,
    mbarrier,
    mma,
    move,
    sync,
    warp,
    wgmma,
)
