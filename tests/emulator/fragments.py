"""Where the elements of a tensor-core operand lie: (row, column) of a lane, register and element, in mma.sync, wgmma.
Called by the mma and wgmma rooms and by tests; the drawings are those of the PTX ISA, section on mma fragments.
Assumes a warp of 32 lanes; `bits` is the width of one element of A and B; accumulators are 32-bit or packed f16.

One drawing covers all: rows of A go by group = lane / 4, columns by pairs, quads or octets at (lane % 4) *
per_register; registers step first over row + 8, then over the second half of the columns:

        columns    0 .. half-1      half .. k-1
    rows 0..7      register 0       register 2
    rows 8..15     register 1       register 3
"""

from __future__ import annotations

import functools

import numpy as np


def operand_a(lane, register, element, bits, k):
    """(row, column) in the 16 x k matrix A; `element` counts from the low bits of the register."""
    per_register = 32 // bits
    group, position = lane // 4, lane % 4
    row = group + 8 * (register % 2)
    column = position * per_register + element + (register // 2) * (4 * per_register)
    if column >= k:
        raise ValueError(f"register {register} of a {bits}-bit A holds no column below {k}")
    return row, column


def operand_b(lane, register, element, bits, k):
    """(row, column) in the k x 8 matrix B."""
    per_register = 32 // bits
    row = (lane % 4) * per_register + element + register * (4 * per_register)
    if row >= k:
        raise ValueError(f"register {register} of a {bits}-bit B holds no row below {k}")
    return row, lane // 4


def accumulator(lane, index):
    """(row, column) in the 16 x 8 matrix C or D; index counts 32-bit elements (or halves of packed f16)."""
    return lane // 4 + 8 * (index // 2), 2 * (lane % 4) + index % 2


def wgmma_accumulator(thread, index):
    """(row, column) of element `index` of thread 0..127 in the 64 x N accumulator."""
    warp, lane = thread // 32, thread % 32
    return 16 * warp + lane // 4 + 8 * (index // 2 % 2), 8 * (index // 4) + 2 * (lane % 4) + index % 2


def wgmma_operand_a(thread, register, element, bits):
    """(row, column) in the 64 x k matrix A from registers: each warp holds the mma.sync fragment of its 16 rows."""
    row, column = operand_a(thread % 32, register, element, bits, 256 // bits)
    return 16 * (thread // 32) + row, column


# --- index tables for numpy ---------------------------------------------------------------------------


@functools.cache
def a_index(bits, k):
    """(rows, columns) int arrays [32, registers, per_register]."""
    per, registers = 32 // bits, 16 * k * bits // 32 // 32
    table = [[[operand_a(t, r, e, bits, k) for e in range(per)] for r in range(registers)] for t in range(32)]
    table = np.array(table)
    return table[..., 0], table[..., 1]


@functools.cache
def b_index(bits, k):
    per, registers = 32 // bits, 8 * k * bits // 32 // 32
    table = [[[operand_b(t, r, e, bits, k) for e in range(per)] for r in range(registers)] for t in range(32)]
    table = np.array(table)
    return table[..., 0], table[..., 1]


@functools.cache
def accumulator_index():
    table = np.array([[accumulator(t, i) for i in range(4)] for t in range(32)])
    return table[..., 0], table[..., 1]
