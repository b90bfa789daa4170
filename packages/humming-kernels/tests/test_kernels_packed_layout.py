"""The stored order against an independent restatement of the PTX ISA's fragments, in Python and in the CUDA code.

Run by pytest.
Assumes the tables "Matrix fragments for mma.m16n8k16 with floating point type" of the PTX ISA, restated in fragment_a
and fragment_c below.
"""

import inspect

import attrs
import pytest
from humming_kernels.arch import ARCHS
from humming_kernels.errors import KernelError
from humming_kernels.headers import reached_headers
from humming_kernels.packed_layout import BRICK_K, BRICK_ROWS, PackedLayout, scale_row_order

from tests.support.nvrtc_direct import DirectNvrtc, NvrtcRefusedError

ATOMS, LANES = 4, 32


def fragment_a(lane: int, element: int) -> tuple[int, int]:
    """(row, column) of element a_i, i = 0..7, in words of the PTX ISA: registers hold a0 a1 | a2 a3 | a4 a5 | a6 a7."""
    group_id, thread_in_group = lane >> 2, lane % 4
    row = group_id if 0 <= element < 2 or 4 <= element < 6 else group_id + 8
    column = thread_in_group * 2 + (element & 1) if element < 4 else thread_in_group * 2 + (element & 1) + 8
    return row, column


def fragment_c(lane: int, element: int) -> tuple[int, int]:
    """(row, column) of accumulator c_i, i = 0..3, in words of the PTX ISA."""
    group_id, thread_in_group = lane >> 2, lane % 4
    return (group_id if element < 2 else group_id + 8), thread_in_group * 2 + (element & 1)


# (row, column) of a 16 x 16 atom -> (lane, element).
FRAGMENT_A = {fragment_a(lane, element): (lane, element) for lane in range(LANES) for element in range(8)}


def test_the_restated_fragment_is_one_to_one():
    assert sorted(FRAGMENT_A) == [(row, column) for row in range(16) for column in range(16)]


def expected_place(bits: int, row: int, k: int) -> tuple[int, int]:
    """Word and bit of a code: register r = element / 2 at bits * r of a half word, the odd element 16 above."""
    atom, step = row // 16, k // 16
    lane, element = FRAGMENT_A[row % 16, k % 16]
    register, odd = element // 2, element % 2
    if bits == 4:
        return 4 * (32 * atom + lane) + step, 4 * register + 16 * odd
    word_of_lane = 2 * (step % 2) + register // 2
    return 4 * (32 * (2 * atom + step // 2) + lane) + word_of_lane, 8 * (register % 2) + 16 * odd


@pytest.mark.parametrize("bits", [4, 8])
def test_place_is_the_fragment(bits):
    layout = PackedLayout(bits)
    for row in range(BRICK_ROWS):
        for k in range(BRICK_K):
            assert layout.place(row, k) == expected_place(bits, row, k), (row, k)


@pytest.mark.parametrize("bits", [4, 8])
def test_every_bit_of_a_brick_is_used_once(bits):
    layout = PackedLayout(bits)
    used = [
        (word, shift + bit)
        for row in range(BRICK_ROWS)
        for k in range(BRICK_K)
        for word, shift in [layout.place(row, k)]
        for bit in range(bits)
    ]
    assert layout.words_per_brick == 128 * bits
    assert sorted(used) == [(word, bit) for word in range(layout.words_per_brick) for bit in range(32)]


@pytest.mark.parametrize("bits", [4, 8])
def test_fields_are_the_inverse_of_place(bits):
    layout = PackedLayout(bits)
    fields = layout.fields()
    assert len(fields) == layout.words_per_brick
    for word, in_word in enumerate(fields):
        assert [field.shift for field in in_word] == list(range(0, 32, bits))
        for field in in_word:
            assert (field.code_shift, field.width) == (0, bits)
            assert layout.place(field.row, field.k) == (word, field.shift)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_lane_reads_sixteen_bytes_and_a_warp_without_bank_conflicts(bits):
    """Each run of four words belongs to one lane, and 32 runs of 32 lanes follow each other: 512 bytes, all banks."""
    fields = PackedLayout(bits).fields()
    for run in range(len(fields) // 4):
        owners = {
            FRAGMENT_A[field.row % 16, field.k % 16][0] for word in fields[4 * run : 4 * run + 4] for field in word
        }
        assert owners == {run % LANES}


def test_scales_of_a_lane_stand_together():
    """A lane needs rows g and g + 8 of each atom: eight values in a row, at 8 g + 2 atom + half."""
    order = scale_row_order()
    assert sorted(order) == list(range(BRICK_ROWS))
    for group_id in range(8):
        rows = tuple(16 * atom + fragment_a(4 * group_id, element)[0] for atom in range(ATOMS) for element in (0, 2))
        assert order[8 * group_id : 8 * group_id + 8] == rows


def test_the_order_depends_on_the_widths_alone():
    """No tile, chip or compiler: the arguments of the layout are all that it can see."""
    assert [field.name for field in attrs.fields(PackedLayout)] == ["bits", "operand_bits"]
    assert list(inspect.signature(scale_row_order).parameters) == []


@pytest.mark.parametrize(("bits", "operand_bits"), [(3, 16), (16, 16), (0, 16), (4, 8), (8, 4)])
def test_widths_without_an_order_are_refused(bits, operand_bits):
    with pytest.raises(KernelError, match=f"codes of {bits} bits with {operand_bits}-bit operands"):
        PackedLayout(bits, operand_bits)


def coordinate_unit(target: int, *, shifted: int = 0) -> str:
    """Asserts that coordinate() of the mma room is fragment_c for every lane and accumulator."""
    lines = ["#include <humming/mma/mma_sync_tile.cuh>", "using namespace humming;"]
    for number in ("kF16", "kBf16"):
        tile = f"mma::MmaSyncTile<base::Number::{number}, base::TargetConfig{{.arch = {target}}}>"
        lines.append(f"using {number}Tile = {tile};")
        for lane in range(LANES):
            for element in range(4):
                row, column = fragment_c(lane, element)
                place = f"{number}Tile::coordinate({lane}, {element})"
                lines.append(f"static_assert({place}.row == {row + shifted} && {place}.column == {column});")
        shape = " && ".join(f"{number}Tile::kShape{axis} == {size}" for axis, size in (("M", 16), ("N", 8), ("K", 16)))
        lines.append(f"static_assert({shape});")
    return "\n".join(lines)


def test_coordinate_of_the_mma_room_is_the_fragment(nvrtc: DirectNvrtc):
    for arch in ARCHS[:2]:
        unit = coordinate_unit(arch.number)
        nvrtc.build(unit, reached_headers(unit), arch.name)


def test_a_wrong_coordinate_would_be_found(nvrtc: DirectNvrtc):
    unit = coordinate_unit(80, shifted=1)
    with pytest.raises(NvrtcRefusedError, match="static assertion failed"):
        nvrtc.build(unit, reached_headers(unit), "sm_80")
