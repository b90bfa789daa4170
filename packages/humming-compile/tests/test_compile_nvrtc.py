"""Real compiles with the NVRTC of this environment: every target, determinism, time, the worker's surroundings.

Run by pytest.
Assumes NVRTC; needs no GPU and no driver.
"""

from __future__ import annotations

import time

import attrs
import pytest
from humming_compile import CompileError, CompileRequest, CompileService, UnknownTargetError
from humming_compile.toolkit import Toolkit

HEADERS = {"humming/scale.cuh": "namespace humming { constexpr float kScale = 2.0f; }\n"}
UNIT = """#include <humming/scale.cuh>
extern "C" __global__ void scale(float* data) { data[threadIdx.x] *= humming::kScale; }
"""
REQUEST = CompileRequest(unit_text=UNIT, headers=HEADERS, target="sm_90a", name="scale")


def test_every_target_that_this_nvrtc_knows(real_service: CompileService) -> None:
    """sm_75 to sm_121, with no GPU and no driver, side by side."""
    targets = real_service.known_targets()
    assert {"sm_75", "sm_80", "sm_90", "sm_100", "sm_120"} <= set(targets)
    special = [f"{name}a" for name in ("sm_90", "sm_100", "sm_103", "sm_120", "sm_121") if name in targets]
    requests = [
        attrs.evolve(REQUEST, target=target) for target in (*targets, *special) if int(target.strip("sma_")) >= 75
    ]
    artifacts = real_service.compile_many(requests)
    assert all(artifact.data.startswith(b"\x7fELF") and b"scale" in artifact.data for artifact in artifacts)
    assert len({artifact.key for artifact in artifacts}) == len(requests)


def test_ptx_is_text_for_the_target(real_service: CompileService) -> None:
    text = real_service.compile(attrs.evolve(REQUEST, output="ptx")).data.decode()
    assert ".target sm_90a" in text and ".entry scale(" in text and text.endswith("}\n\n") and "\0" not in text


def test_the_bytes_depend_on_the_key_only(real_service: CompileService) -> None:
    again = attrs.evolve(REQUEST, name="quite another name")
    with_lines = attrs.evolve(REQUEST, options=("-lineinfo",))
    assert real_service.compile_fresh(REQUEST).data == real_service.compile_fresh(again).data
    assert (
        real_service.compile_fresh(with_lines).data
        == real_service.compile_fresh(attrs.evolve(with_lines, name="x")).data
    )
    assert b"debug_line" in real_service.compile(with_lines).data
    assert b"debug_line" not in real_service.compile(REQUEST).data


def test_errors_carry_the_log(real_service: CompileService) -> None:
    with pytest.raises(CompileError, match='identifier "undefined_name" is undefined') as caught:
        real_service.compile(attrs.evolve(REQUEST, unit_text=UNIT + "int x = undefined_name;\n"))
    assert caught.value.log and caught.value.name == "scale" and caught.value.target == "sm_90a"


@pytest.mark.parametrize("target", ["sm_75a", "sm_199", "sm_70f"])
def test_a_target_that_nvrtc_lacks(real_service: CompileService, target: str) -> None:
    with pytest.raises(UnknownTargetError, match="install a newer nvidia-cuda-nvrtc") as caught:
        real_service.compile(attrs.evolve(REQUEST, target=target))
    assert "sm_90" in caught.value.known and "\n" not in str(caught.value)


def test_warnings_are_kept_in_the_log(real_service: CompileService) -> None:
    request = attrs.evolve(REQUEST, unit_text='#warning "look here"\n' + UNIT)
    assert "look here" in real_service.compile(request).log
    fresh = CompileService(real_service.settings, toolkit=real_service.toolkit)
    assert (fresh.compile(request).origin, "look here" in fresh.compile(request).log) == ("disk", True)


def test_a_warm_start_is_fast(real_service: CompileService) -> None:
    """A service of a second process: the key, the read and the check of one entry, well under 20 ms."""
    real_service.compile(REQUEST)
    service = CompileService(real_service.settings, toolkit=real_service.toolkit)
    started = time.perf_counter()
    assert service.compile(REQUEST).origin == "disk"
    assert time.perf_counter() - started < 0.02


def test_workers_hold_no_torch_and_no_driver(real_service: CompileService) -> None:
    real_service.compile_fresh(REQUEST)
    for worker in real_service.pool.worker_ids():
        with open(f"/proc/{worker}/maps") as maps:
            text = maps.read()
        assert "libnvrtc" in text and "libtorch" not in text and "libcuda.so" not in text


def test_the_worker_does_not_import_from_the_users_folder(run_script, tmp_path, real_toolkit: Toolkit) -> None:
    """A file of the user's called like a module of ours is not picked up."""
    (tmp_path / "attrs.py").write_text("raise SystemExit('the wrong attrs')\n")
    script = f"""
        import sys
        sys.path = [entry for entry in sys.path if entry]
        from humming_compile import CompileRequest, CompileService, Settings
        with CompileService(Settings(cache_folder={str(tmp_path / "cache")!r}, workers=1)) as service:
            print(service.compile(CompileRequest(unit_text={UNIT!r}, headers={HEADERS!r}, target="sm_80")).origin)
    """
    assert run_script(script).stdout == "compiled\n"
