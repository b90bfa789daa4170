"""The machine code of the hot kernels: the multiplies and copies that were meant, wide loads, no local memory.

Run by pytest.
Assumes NVRTC and nvdisasm; skipped with the reason where one of them is missing. `python -m benchmarks.sass` prints the
same counts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from humming_kernels.config import Pipeline
from humming_kernels.launch import LaunchRecipe

from benchmarks.sass import MULTIPLIES, Listing, column_of, disassemble, find_nvdisasm, hot_sources, parse, table
from tests.support.nvrtc_direct import Built, DirectNvrtc

TEXT = """
	.section	.text.kernel,"ax",@progbits
kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDS.U.128 R4, [R2] ;
.L_x_1:
        /*0020*/              @!P0 LDS R8, [R2] ;
        /*0030*/                   HMMA.16816.F32 R4, R4, R8, R12 ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/                   LDS.64 R8, [R2] ;
        /*0060*/                   STL.64 [R1], R4 ;
        /*0070*/               @P2 BRA `(.L_x_0) ;
        /*0080*/                   BRA `(.L_x_2) ;
.L_x_2:
        /*0090*/                   EXIT ;
"""


def test_listings_are_read():
    listing = parse(TEXT)
    assert [opcode for opcode, _ in listing.instructions][:3] == ["LDC", "LDS.U.128", "LDS"]
    counts = {column: listing.count(column) for column in ("LDS.128", "LDS.64", "LDS", "HMMA", "STL", "LDL")}
    assert counts == {"LDS.128": 1, "LDS.64": 1, "LDS": 1, "HMMA": 1, "STL": 1, "LDL": 0}
    # The inner loop holds as many multiplies as the outer one.
    assert listing.loop_length == 3 and listing.count("HMMA", in_loop=True) == 1
    assert listing.count("LDS.128", in_loop=True) == 0


def test_opcodes_and_their_columns():
    opcodes = {
        "HGMMA.64x64x16.F32.BF16": "HGMMA",
        "LDSM.16.M88.4": "LDSM",
        "LDS.U8": "LDS",
        "IMAD.WIDE": "",
        "LDL.LU": "LDL",
    }
    assert {opcode: column_of(opcode) for opcode in opcodes} == opcodes


def test_a_text_without_instructions_has_no_loop():
    assert parse("").loop_length == 0


@pytest.fixture(scope="module")
def nvdisasm() -> Path:
    found = find_nvdisasm()
    if found is None:
        pytest.skip("no nvdisasm: install triton or nvidia-cuda-nvdisasm")
    return found


Row = tuple[str, LaunchRecipe, Built, Listing]


def rows_of(nvrtc: DirectNvrtc, nvdisasm: Path, target: str, activation: str) -> list[Row]:
    rows = []
    for source in hot_sources(target, "u4g128", activation):
        built = nvrtc.build(source.unit_text, source.headers, source.target)
        rows.append((source.symbol, source.recipe, built, disassemble(built.cubin, nvdisasm)))
    return rows


@pytest.mark.parametrize(("target", "activation"), [("sm_75", "f16"), ("sm_80", "bf16"), ("sm_90a", "bf16")])
def test_hot_kernels_are_what_was_meant(nvrtc: DirectNvrtc, nvdisasm: Path, target, activation):
    rows = rows_of(nvrtc, nvdisasm, target, activation)
    assert (
        rows
        and len(table((symbol, built, listing) for symbol, _, built, listing in rows).splitlines()) == len(rows) + 1
    )
    pipelines = {recipe.tuning.pipeline for _, recipe, _, _ in rows}
    assert (Pipeline.WARP_SPECIALIZED in pipelines) == (target == "sm_90a")
    for symbol, recipe, built, listing in rows:
        assert (listing.count("LDL"), listing.count("STL"), built.spill_bytes) == (0, 0, 0), symbol
        assert built.serialised == (), symbol
        # Every multiply is in the hot loop.
        wanted, other = MULTIPLIES if recipe.tuning.pipeline is Pipeline.WARP_SPECIALIZED else reversed(MULTIPLIES)
        assert listing.count(wanted, in_loop=True) == listing.count(wanted) > 0, symbol
        assert listing.count(other) == 0, symbol
        # A lane reads the codes of an atom and 64 k as one run of sixteen bytes.
        atoms = recipe.tuning.block_n // 16 // recipe.tuning.warps_n
        assert listing.count("LDS.128", in_loop=True) >= atoms * recipe.tuning.stage_k // 64, symbol
        asynchronous = {name: listing.count(name) > 0 for name in ("LDGSTS", "UBLKCP", "UTMALDG", "LDSM")}
        specialized = recipe.tuning.pipeline is Pipeline.WARP_SPECIALIZED
        assert asynchronous == {
            "LDGSTS": target != "sm_75" and not specialized,
            "UBLKCP": specialized,
            "UTMALDG": specialized,
            "LDSM": not specialized,
        }, symbol
