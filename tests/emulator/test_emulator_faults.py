"""Every checker: a kernel with one mistake is stopped with a message that names the place.
Run by pytest.
Assumes that the same kernel without the mistake runs, which each test shows first."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator import Fault
from tests.emulator.snippets import run_text

HEAD = """.reg .b64 %p, %q, %o; .reg .b32 %t, %v, %s, %w, %lane, %warp, %four; .reg .pred %c; .reg .b16 %h;
  mov.u32 %t, %tid.x; and.b32 %lane, %t, 31; shr.u32 %warp, %t, 5; ld.param.u64 %p, [args]; mul.wide.u32 %o, %t, 4;
  mov.u64 %q, dyn; cvt.u32.u64 %s, %q; shl.b32 %four, %t, 2;"""


def fails(text, kind, *parts, **options):
    options.setdefault("threads", 64)
    options.setdefault("shared_bytes", 1024)
    with pytest.raises(Fault) as caught:
        run_text(HEAD + text, **options)
    message = str(caught.value)
    assert caught.value.kind == kind, message
    for part in ("kernel snippet", "block (0, 0, 0)", "PTX line", *parts):
        assert part in message, message
    return message


def passes(text, **options):
    options.setdefault("threads", 64)
    options.setdefault("shared_bytes", 1024)
    return run_text(HEAD + text, **options)


def buffer(count=64, role="input", dtype=np.uint32):
    return [("data", np.arange(count, dtype=dtype), role)]


def test_global_out_of_bounds():
    text = "add.s64 %p, %p, %o; ld.global.u32 %v, [%p];"
    passes(text, buffers=buffer(64))
    message = fails(
        text, "out of bounds", "4 bytes", "0 bytes past the end of data", "warp 1 lane 31", buffers=buffer(63)
    )
    assert "ld.global.u32 %v, [%p]" in message
    fails("ld.global.u32 %v, [%p+-4];", "out of bounds", "4 bytes before the start of data", buffers=buffer(64))
    fails("mov.u64 %p, 0; ld.global.u32 %v, [%p];", "out of bounds", "0x0 lies in no registered buffer")


def test_misalignment():
    fails("add.s64 %p, %p, 2; ld.global.u32 %v, [%p];", "misaligned", "multiple of 4", buffers=buffer())
    fails(
        ".reg .b32 %a, %b, %d, %e; add.s64 %p, %p, 8; ld.global.v4.u32 {%a, %b, %d, %e}, [%p];",
        "misaligned",
        "multiple of 16",
        buffers=buffer(),
    )
    fails("add.u32 %s, %s, 1; st.shared.u32 [%s], %t;", "misaligned", "shared store")


def test_write_to_an_input_and_outside_the_allowed_part():
    text = "add.s64 %p, %p, %o; st.global.u32 [%p], %t;"
    passes(text, buffers=buffer(64, "output"))
    fails(text, "write outside output", "read-only", buffers=buffer(64, "input"))


def test_uninitialised_global():
    text = "add.s64 %p, %p, %o; ld.global.u32 %v, [%p];"
    fails(text, "uninitialised global", "nothing has written", buffers=buffer(64, "output"))
    passes("add.s64 %p, %p, %o; st.global.u32 [%p], %t; ld.global.u32 %v, [%p];", buffers=buffer(64, "output"))


def test_two_threads_store_different_values():
    fails("st.global.u32 [%p], %t;", "global race", "different values", buffers=buffer(1, "output"))
    passes("st.global.u32 [%p], 5;", buffers=buffer(1, "output"))


MESSAGE = """.reg .b64 %f; .reg .b32 %old; ld.param.u64 %f, [args+8]; mov.u32 %v, %ctaid.x; setp.eq.u32 %c, %v, 1; @%c bra READER;
  add.s64 %q, %p, %o; st.global.u32 [%q], %t; {before} bar.sync 0; setp.eq.u32 %c, %t, 0; {between}
  @%c {write} bra DONE;
  READER: setp.ne.u32 %c, %t, 0; @%c bra TOGETHER; SPIN: {read} setp.eq.u32 %c, %old, 0; @%c bra SPIN;
  TOGETHER: {after} bar.sync 0; {last} add.s64 %q, %p, %o; ld.global.u32 %v, [%q];
  DONE: ret;"""


def test_messages_between_blocks_need_release_and_acquire():
    def message(**parts):
        empty = dict.fromkeys(("before", "between", "after", "last"), "")
        return MESSAGE.format(**{**empty, **parts})

    def buffers():
        return [("data", np.zeros(64, np.uint32), "output"), ("flag", np.zeros(1, np.uint32), "inout")]

    release, acquire = "st.release.gpu.global.u32 [%f], 1;", "ld.acquire.gpu.global.u32 %old, [%f];"
    relaxed, plain = "red.relaxed.gpu.global.add.u32 [%f], 1;", "ld.relaxed.gpu.global.u32 %old, [%f];"
    for order in ("sequence", "interleaved"):
        passes(message(write=release, read=acquire), grid=2, buffers=buffers(), order=order)
        passes(
            message(write=relaxed, between="fence.acq_rel.gpu;", read=plain, after="membar.gl;"),
            grid=2,
            buffers=buffers(),
            order=order,
        )
        for parts in (
            {"write": relaxed, "read": acquire},
            {"write": release, "read": plain},
            {"write": relaxed, "between": "fence.acq_rel.cta;", "read": acquire},
            {"write": relaxed, "before": "membar.gl;", "read": acquire},  # fences of other warps do not help
            {"write": release, "read": plain, "last": "membar.gl;"},
        ):
            fails_between(message(**parts), buffers(), order)


def fails_between(text, buffers, order):
    with pytest.raises(
        Fault, match=r"global race: global load of 4 bytes: byte \d+ of data was written by block \(0, 0, 0\) warp"
    ):
        passes(text, grid=2, buffers=buffers, order=order)


def test_two_blocks_write_the_same_output():
    text = "add.s64 %p, %p, %o; st.global.u32 [%p], %t;"
    passes(text, buffers=buffer(64, "output"))
    with pytest.raises(Fault, match=r"global race: global store(.|\n)*was written by block \(0, 0, 0\) warp 0"):
        passes(text, grid=2, buffers=buffer(64, "output"))


def test_warps_of_a_block_race_in_global_memory():
    text = """add.s64 %q, %p, %o; st.global.u32 [%q], %t; {barrier} xor.b32 %v, %t, 32; mul.wide.u32 %o, %v, 4;
      add.s64 %q, %p, %o; ld.global.u32 %v, [%q];"""
    passes(text.replace("{barrier}", "bar.sync 0;"), buffers=buffer(64, "output"))
    fails(text.replace("{barrier}", ""), "global race", "no barrier between", buffers=buffer(64, "output"))


def test_shared_bounds_and_limit():
    text = "add.u32 %s, %s, %four; st.shared.u32 [%s], %t;"
    passes(text, shared_bytes=256)
    fails(text, "out of bounds", "4 past the end", "warp 1 lane 31", shared_bytes=252)
    with pytest.raises(Fault, match=r"sm_80 allows 166912"):
        run_text(HEAD, shared_bytes=163 * 1024 + 16, target="sm_80")
    with pytest.raises(Fault, match=r"sm_75 allows 65536"):
        run_text(HEAD, shared_bytes=65 * 1024, target="sm_75")


def test_uninitialised_shared():
    fails("add.u32 %s, %s, %four; ld.shared.u32 %v, [%s];", "uninitialised shared", "never written")


EXCHANGE = """add.u32 %w, %s, %four; st.shared.u32 [%w], %t; {barrier}
  xor.b32 %v, %t, {other}; shl.b32 %v, %v, 2; add.u32 %w, %s, %v; ld.shared.u32 %v, [%w];"""


def test_race_between_warps():
    passes(EXCHANGE.format(barrier="bar.sync 0;", other=32))
    fails(EXCHANGE.format(barrier="", other=32), "shared race", "no barrier between")
    setup = "add.u32 %w, %s, %four; st.shared.u32 [%w], 0; bar.sync 0;"
    fails(setup + EXCHANGE.format(barrier="", other=32), "shared race", "no barrier between", "was written by warp")
    fails(setup + EXCHANGE.format(barrier="bar.warp.sync -1;", other=32), "shared race", "no barrier between")


def test_race_within_a_warp():
    passes(EXCHANGE.format(barrier="bar.warp.sync -1;", other=1))
    fails(EXCHANGE.format(barrier="", other=1), "shared race", "no bar.warp.sync")
    passes(EXCHANGE.format(barrier="", other=0))  # its own value


def test_write_after_read_between_warps():
    text = """add.u32 %w, %s, %four; st.shared.u32 [%w], %t; bar.sync 0;
      xor.b32 %v, %t, 32; shl.b32 %v, %v, 2; add.u32 %v, %s, %v; ld.shared.u32 %h2, [%v]; {barrier} st.shared.u32 [%w], 7;"""
    text = ".reg .b32 %h2;" + text
    passes(text.replace("{barrier}", "bar.sync 0;"))
    fails(
        text.replace("{barrier}", ""), "shared race", "was read by warp", "no barrier between that read and this write"
    )


def test_named_barrier_orders_only_its_warps():
    text = """add.u32 %w, %s, %four; st.shared.u32 [%w], %t; setp.lt.u32 %c, %t, 64;
      @%c bar.sync 1, 64; @!%c bar.sync 2, 64; xor.b32 %v, %t, {other}; shl.b32 %v, %v, 2; add.u32 %w, %s, %v; ld.shared.u32 %v, [%w];"""
    passes(text.replace("{other}", "32"), threads=128)
    fails(
        "add.u32 %w, %s, %four; st.shared.u32 [%w], 0; bar.sync 0;" + text.replace("{other}", "64"),
        "shared race",
        threads=128,
    )


COPY = """add.u32 %w, %s, %four; add.s64 %p, %p, %o; cp.async.ca.shared.global [%w], [%p], 4; cp.async.commit_group; {wait} {barrier}
  xor.b32 %v, %t, {other}; shl.b32 %v, %v, 2; add.u32 %w, %s, %v; ld.shared.u32 %v, [%w];"""


def test_cp_async_needs_its_wait_and_a_barrier():
    def text(wait="cp.async.wait_group 0;", barrier="bar.sync 0;", other=32):
        return COPY.format(wait=wait, barrier=barrier, other=other)

    passes(text(), buffers=buffer())
    passes(text(wait="cp.async.wait_all;"), buffers=buffer())
    passes(text(barrier="", other=0), buffers=buffer())  # own bytes need only the wait
    fails(text(wait=""), "missing wait", "has not completed", "cp.async.ca.shared.global", buffers=buffer())
    fails(text(wait="cp.async.wait_group 1;"), "missing wait", buffers=buffer())
    fails(text(barrier="", other=1), "shared race", "no bar.warp.sync", buffers=buffer())
    fails(text(wait="bar.sync 0;", barrier="cp.async.wait_group 0;"), "shared race", buffers=buffer())


def test_cp_async_zero_fill_and_partial_source():
    text = """add.u32 %w, %s, %four; add.s64 %p, %p, %o; setp.lt.u32 %c, %t, 10; selp.u32 %v, 4, 0, %c; mov.u32 %lane, 2;
      setp.eq.u32 %c, %t, 3; selp.u32 %v, 2, %v, %c;
      cp.async.ca.shared.global [%w], [%p], 4, %v; cp.async.wait_all; ld.shared.u32 %v, [%w]; ld.param.u64 %q, [args+8];
      add.s64 %q, %q, %o; st.global.u32 [%q], %v;"""
    data = np.full(10, 0x11223344, np.uint32)  # lanes 10.. point past the end but copy nothing
    _, memory = passes(text, buffers=[("data", data, "input"), ("out", np.zeros(64, np.uint32), "output")])
    wanted = [0x11223344] * 10 + [0] * 54
    wanted[3] = 0x3344
    assert memory["out"].read().tolist() == wanted


def test_cp_async_over_bytes_still_in_flight():
    text = """add.u32 %w, %s, %four; cp.async.ca.shared.global [%w], [%p], 4; cp.async.commit_group;
      cp.async.ca.shared.global [%w], [%p], 4;"""
    fails(text, "missing wait", "cp.async", buffers=buffer())


def test_undefined_registers():
    fails("st.global.u32 [%p], %v;", "undefined register", "%v", buffers=buffer(64, "output"))
    fails(
        "add.u32 %w, %v, 1; and.b32 %w, %w, 12; st.global.u32 [%p], %w;",
        "undefined register",
        "%w",
        buffers=buffer(64, "output"),
    )
    fails("@%c add.u32 %v, %t, 1;", "undefined register", "%c")
    fails(
        "cvt.u64.u32 %q, %v; add.s64 %p, %p, %q; ld.global.u32 %w, [%p];", "undefined register", "%p", buffers=buffer()
    )
    guarded = "setp.lt.u32 %c, %t, {bound}; @%c mov.u32 %v, %t; setp.lt.u32 %c, %t, 40; add.s64 %p, %p, %o; @%c st.global.u32 [%p], %v;"
    passes(guarded.format(bound=40), buffers=buffer(64, "output"))
    fails(guarded.format(bound=39), "undefined register", "warp 1 lane 7", buffers=buffer(64, "output"))
    # computing with an undefined value is no fault as long as nobody looks at it
    passes("add.u32 %w, %v, 1; xor.b32 %w, %w, %t;")


def test_parameters_have_a_size():
    fails("ld.param.u64 %p, [args+8];", "out of bounds", "parameter load", buffers=buffer())


def test_local_memory():
    text = ".local .align 4 .b8 stack[16]; mov.u64 %q, stack; {store} ld.local.u32 %v, [%q+{at}];"
    passes(text.format(store="st.local.u32 [%q+4], %t;", at=4))
    fails(text.format(store="st.local.u32 [%q+4], %t;", at=8), "uninitialised local")
    fails(text.format(store="", at=16), "out of bounds", "stack frame")


def test_divergent_collective_without_its_lanes():
    text = (
        "setp.lt.u32 %c, %lane, 16; @%c bra HALF; bra DONE; HALF: shfl.sync.idx.b32 %v, %t, 0, 31, 0xffff; DONE: ret;"
    )
    passes(text)
    with pytest.raises(Fault, match=r"bad member mask"):
        passes(text.replace("0xffff", "0xff"))
    # a full mask that half of the warp never reaches: the others have exited, which counts as converged
    passes(text.replace("0xffff", "-1"))
    waits = "setp.lt.u32 %c, %lane, 16; @%c bra HALF; bar.sync 1, 96; bra DONE; HALF: shfl.sync.idx.b32 %v, %t, 0, 31, -1; DONE: ret;"
    with pytest.raises(Fault, match=r"deadlock(.|\n)*wait for the other lanes of their warp(.|\n)*shfl"):
        passes(waits)


def test_trap_is_reported():
    fails("setp.eq.u32 %c, %t, 37; @%c trap;", "trap", "warp 1 lane 5")


def test_report_counts_bytes_widths_and_bank_conflicts():
    text = """.reg .b32 %a, %b, %d, %e; mul.wide.u32 %o, %t, 16; add.s64 %p, %p, %o; ld.global.v4.u32 {%a, %b, %d, %e}, [%p];
      shl.b32 %w, %t, {shift}; add.u32 %w, %s, %w; st.shared.u32 [%w], %a;"""
    report, _ = passes(text.replace("{shift}", "2"), buffers=buffer(256), shared_bytes=8192)
    assert report.bytes["global load"] == 1024 and report.widths["global load", 16] == 64
    assert report.wide_fraction() == 1.0 and report.opcode("ld.global") == 2 and report.replays("st.shared") == 0
    report, _ = passes(text.replace("{shift}", "7"), buffers=buffer(256), shared_bytes=8192)
    assert report.replays("st.shared") == 62  # all 32 lanes of each warp on one bank
    report, _ = passes(text.replace("{shift}", "3"), buffers=buffer(256), shared_bytes=8192)
    assert report.replays("st.shared") == 2
    assert "bank conflicts: 2 replays" in str(report)


def test_buffers_of_the_kernel_before_wait_for_it():
    text = "setp.lt.u32 %c, %t, {who}; @%c griddepcontrol.wait; {barrier} add.s64 %p, %p, %o; ld.global.u32 %v, [%p];"
    passes(text.format(who=0, barrier=""), buffers=buffer())
    passes(text.format(who=64, barrier=""), buffers=buffer(), dependent=("data",))
    passes(text.format(who=32, barrier="bar.sync 0;"), buffers=buffer(), dependent=("data",))
    fails(text.format(who=0, barrier=""), "missing wait", "griddepcontrol.wait", buffers=buffer(), dependent=("data",))
    fails(text.format(who=32, barrier=""), "missing wait", "warp 1 lane 0", buffers=buffer(), dependent=("data",))


def test_setmaxnreg_deals_out_what_the_launch_has():
    text = """setp.lt.u32 %c, %t, 128; @%c bra COPY; setmaxnreg.inc.sync.aligned.u32 {more}; ret;
      COPY: setmaxnreg.dec.sync.aligned.u32 {less}; ret;"""
    passes(text.format(more=232, less=40), threads=384)
    with pytest.raises(Fault, match=r"register pool: setmaxnreg leaves(.|\n)*wait for ever"):
        passes(text.format(more=240, less=40), threads=384)
