"""Which of several toolkits compiles for a target, what is said about it, and that each keeps its own workers.

Run by pytest.
Assumes nothing of the machine, except where a test compares the table with the NVRTC that is installed.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import attrs
import pytest
from humming_compile import CompileRequest
from humming_compile.choice import choose_toolkit, knows_target
from humming_compile.service import CompileService
from humming_compile.toolkit import Toolkit

from .conftest import STUB_WORKER


def toolkit(version: str, origin: str = "wheels", headers: bool = True) -> Toolkit:
    major, minor = map(int, version.split("."))
    return Toolkit(
        library=Path(f"/{origin}/libnvrtc.so.{major}"),
        version=(major, minor),
        build=version,
        origin=origin,
        header_version=version if headers else "",
    )


OLD, MIDDLE, NEW = toolkit("12.4", "CUDA_HOME"), toolkit("12.9", "CONDA_PREFIX"), toolkit("13.0")


@pytest.mark.parametrize(
    ("version", "known", "unknown"),
    [
        ((11, 8), ("sm_80", "sm_90", "sm_70"), ("sm_90a", "sm_100", "sm_88")),
        ((12, 4), ("sm_75", "sm_90a", "sm_61"), ("sm_100a", "sm_120", "sm_90f")),
        ((12, 8), ("sm_100a", "sm_120a", "sm_101"), ("sm_103a", "sm_100f", "sm_121")),
        ((12, 9), ("sm_103a", "sm_121a", "sm_100f", "sm_70"), ("sm_110", "sm_88")),
        ((13, 0), ("sm_75", "sm_88", "sm_110a", "sm_120f"), ("sm_70", "sm_101", "sm_130a")),
        ((13, 9), ("sm_75", "sm_130a"), ("sm_61",)),
    ],
)
def test_which_release_knows_which_target(version, known, unknown) -> None:
    assert all(knows_target(version, target) for target in known)
    assert not any(knows_target(version, target) for target in unknown)
    assert not knows_target(version, "compute_90")


@pytest.mark.nvrtc
def test_the_table_is_what_this_nvrtc_says(real_service: CompileService) -> None:
    told = set(real_service.known_targets())
    stated = {f"sm_{n}" for n in range(40, 130) if knows_target(real_service.toolkit.version, f"sm_{n}")}
    assert stated == told


def test_the_first_that_knows_the_target() -> None:
    found = [OLD, MIDDLE, NEW]
    assert choose_toolkit(found, "sm_90a").toolkit is OLD
    choice = choose_toolkit(found, "sm_120a")
    assert (choice.toolkit, choice.reason) == (MIDDLE, "12.4 from CUDA_HOME does not know sm_120a")
    choice = choose_toolkit(found, "sm_110")
    assert choice.toolkit is NEW and choice.reason.count("does not know sm_110") == 2
    assert choose_toolkit([NEW, OLD], "sm_70").toolkit is OLD, "newer ones forget old GPUs"
    assert choose_toolkit([NEW], "sm_90a").reason == "the only one"
    assert choose_toolkit(found, "sm_90a").reason == "the first that was found"


def test_none_that_knows_the_target() -> None:
    choice = choose_toolkit([OLD, NEW, MIDDLE], "sm_199a")
    assert choice.toolkit is NEW and choice.reason.startswith("none that was found is known to have sm_199a")


def test_headers_are_preferred_where_they_are_needed() -> None:
    bare = toolkit("13.0", headers=False)
    assert choose_toolkit([bare, MIDDLE], "sm_90a").toolkit is bare
    choice = choose_toolkit([bare, MIDDLE], "sm_90a", needs_headers=True)
    assert (choice.toolkit, choice.reason) == (MIDDLE, "13.0 from wheels has no headers")
    assert choose_toolkit([bare, OLD], "sm_120a", needs_headers=True).toolkit is bare, "headers alone are no use"


def test_each_target_goes_to_a_worker_of_its_compiler(stub, caplog: pytest.LogCaptureFixture) -> None:
    """The stub first says that it is NVRTC 12.4, which the pool of 13.0 would refuse."""
    service = stub.service(version="12.4")
    service._found = (OLD, NEW)
    with caplog.at_level(logging.INFO, logger="humming_compile"):
        old = service.compile(CompileRequest(unit_text="int x;", target="sm_90a"))
        assert caplog.records == []
        service._command = (sys.executable, str(STUB_WORKER), str(stub.count_file), "13.0")
        new = service.compile(CompileRequest(unit_text="int x;", target="sm_120a"))
        service.compile(CompileRequest(unit_text="int y;", target="sm_120a"))
    assert (old.origin, new.origin, len(service._pools)) == ("compiled", "compiled", 2)
    assert [record.getMessage() for record in caplog.records] == [
        "NVRTC 13.0 from wheels compiles for sm_120a: 12.4 from CUDA_HOME does not know sm_120a"
    ]
    workers = [worker for pool in service._pools.values() for worker in pool.worker_ids()]
    assert len(workers) == 2
    service.close()
    assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)


def test_include_folders_are_those_of_the_compiler_that_is_used(stub) -> None:
    """The stub's answer is a digest of all options, so another folder gives other data."""
    unit = CompileRequest(unit_text="#include <cuda_fp16.h>\n", target="sm_120a")
    answers = []
    for new_folder, old_folder in (("/new", "/old"), ("/new", "/elsewhere"), ("/moved", "/old")):
        service = stub.service()
        service._found = (
            attrs.evolve(OLD, include_folders=(Path(old_folder),)),
            attrs.evolve(NEW, include_folders=(Path(new_folder),)),
        )
        answers.append(service.compile_fresh(unit).data)
    assert answers[0] == answers[1] != answers[2]
