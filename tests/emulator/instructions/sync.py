"""Fences, warp barriers and the like; the block barriers and branches themselves are run by `machine`.
Called through the registry of `decode`.
Assumes a fence of gpu scope orders all of its warp's accesses; values themselves are seen at once."""

from __future__ import annotations

import numpy as np

from tests.emulator.decode import Modifiers, instruction, unknown


@instruction(
    "membar",
    "fence",
    forms=(
        "membar.cta|gl|sys",
        "fence.acq_rel|sc.scope",
        "fence.proxy.async{.space}",
        "fence.mbarrier_init.release.cluster",
        "fence.proxy.tensormap::generic...",
    ),
)
def fence(d, ins):
    m = Modifiers(ins)
    if m.flag("proxy"):
        kind = m.take("async", "alias", "async::generic", "tensormap::generic")
        m.ignore("global", "shared::cta", "shared::cluster", "shared", "acquire", "release", "cluster", "gpu", "cta",
                 "sys", "sync_restrict::shared::cta", "sync_restrict::shared::cluster")  # fmt: skip
        m.done()
        if kind == "async":
            return lambda c: c.proxy_fence()
        return lambda c: None
    if m.flag("mbarrier_init"):
        m.ignore("release", "cluster")
        m.done()
        return lambda c: c.clocks.fence_init(c.active_warps())
    wide = m.take("cluster", "gpu", "sys", "gl")
    m.ignore("cta", "acq_rel", "sc", "acquire", "release",
             "sync_restrict::shared::cta", "sync_restrict::shared::cluster")  # fmt: skip
    m.done()
    return (lambda c: c.fence()) if wide else (lambda c: None)


def warp_barrier(d, ins, mask_operand):
    read = d.read(mask_operand, "u32", ins)

    def run(c):
        c.require_converged(read(c))
        c.clocks.tick(c.active_warps())

    return run


@instruction("nanosleep", "pmevent", "griddepcontrol", "setmaxnreg")
def nothing(d, ins):
    if ins.opcode == "nanosleep":
        return lambda c: c.polled()
    if ins.opcode == "setmaxnreg":
        m = Modifiers(ins)
        direction = m.take("inc", "dec")
        m.ignore("sync", "aligned", "u32")
        m.done()
        count = int(d.immediate(ins.operands[0], "u32"))
        if count % 8 or not 24 <= count <= 256:
            raise unknown(ins, "the register count must be a multiple of 8 from 24 to 256")
        return lambda c: c.set_registers(direction, count)
    if ins.opcode == "griddepcontrol":
        return lambda c: c.grid_dependency(ins.modifiers)
    return lambda c: None


@instruction("activemask")
def activemask(d, ins):
    write = d.write(ins.operands[0], ins)

    def run(c):
        bits = (c.active_mask().reshape(-1, 32) << np.arange(32, dtype=np.uint64)).sum(axis=1)
        write(c, np.repeat(bits.astype(np.uint32), 32))

    return run
