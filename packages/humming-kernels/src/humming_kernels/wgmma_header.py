"""The header of one wgmma shape: a function of up to 133 registers is text that a program writes better than a person.
Called by humming_kernels.headers for names of the form humming/arch/sm90/wgmma_m64n<tokens>k16_<number>.cuh.
Assumes A (weights) in registers, B (tokens) K-major in shared memory, f32 sums; PTX ISA, wgmma.mma_async."""

from __future__ import annotations

import re

_NAME = re.compile(r"humming/arch/sm90/wgmma_m64n(\d+)k16_(f16|bf16)\.cuh")


def wgmma_header_name(tokens: int, number: str) -> str:
    """The name that a unit includes for tiles of this many tokens (a multiple of 8 up to 256), "f16" or "bf16"."""
    return f"humming/arch/sm90/wgmma_m64n{tokens}k16_{number}.cuh"


def wgmma_header_text(name: str) -> str | None:
    """The text of the header with this name, None if it is not the name of a wgmma shape."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    tokens, number = int(match[1]), match[2]
    if not 8 <= tokens <= 256 or tokens % 8:
        return None
    sums = tokens // 2
    registers = [f"%{index}" for index in range(sums)]
    rows = [", ".join(registers[first : first + 8]) for first in range(0, sums, 8)]
    sum_text = ', "\n      "'.join(rows)
    operands = [f'"+f"(d[{tile}][{index}])' for tile in range(tokens // 8) for index in range(4)]
    operand_text = ",\n        ".join(", ".join(operands[first : first + 4]) for first in range(0, sums, 4))
    return f"""// d[64 x {tokens}] += a[64 x 16] . tokens[16 x {tokens}] of one warpgroup, {number} operands, f32 sums.
// Called by kernels/dense_wgmma; written by humming_kernels.wgmma_header.
// Assumes a wgmma_fence before and a wgmma_commit after; d and a stay untouched until the wait.
#pragma once

#include <humming/base/types.cuh>

namespace humming::arch::sm90 {{

__device__ __forceinline__ void wgmma_k16(float (&d)[{tokens // 8}][4], const base::u32 (&a)[4], base::u64 tokens) {{
  asm volatile(
      "{{\\n"
      ".reg .pred accumulate;\\n"
      "setp.eq.u32 accumulate, 1, 1;\\n"
      "wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.{number}.{number} "
      "{{{sum_text}}}, "
      "{{%{sums}, %{sums + 1}, %{sums + 2}, %{sums + 3}}}, %{sums + 4}, accumulate, 1, 1, 0;\\n"
      "}}\\n"
      : {operand_text}
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tokens));
}}

// Waits for all products. The sums pass through, so that no copy of them can be made before they are there.
__device__ __forceinline__ void wgmma_wait_sums(float (&d)[{tokens // 8}][4]) {{
  asm volatile("wgmma.wait_group.sync.aligned 0;"
      : {operand_text}
      :
      : "memory");
}}

}}  // namespace humming::arch::sm90
"""
