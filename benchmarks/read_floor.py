"""The read floor: how long a kernel takes that does nothing but read the same bytes.

Called by benchmarks.dense.
Assumes CUDA; compiled through humming_compile like every kernel here, so no other compiler is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import torch
from humming_compile.module import ArgumentBuffer, load_function
from humming_compile.request import CompileRequest
from humming_compile.service import default_service

THREADS = 512
LOADS_IN_FLIGHT = 8
# One and two blocks on every multiprocessor of an H200; the better of them is the floor.
BLOCKS_PER_MULTIPROCESSOR = (1, 2)
SYMBOL = "read_floor"

# Plain 16-byte loads that leave L1 alone. Every block walks one contiguous share, all its threads side by side; the
# sum is stored only if it has a value that the buffer's contents cannot give, so that no load can be dropped.
UNIT = """
struct Arguments { const uint4* begin; long long vectors; unsigned* sink; };

__device__ __forceinline__ uint4 load(const uint4* address) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS) read_floor(const Arguments a) {
  const long long share = (a.vectors + gridDim.x - 1) / gridDim.x;
  const long long first = share * blockIdx.x;
  const long long last = first + share < a.vectors ? first + share : a.vectors;
  unsigned sum = 0;
  long long i = first + threadIdx.x;
  for (; i + (LOADS - 1) * THREADS < last; i += LOADS * THREADS) {
    uint4 v[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; ++j) v[j] = load(a.begin + i + j * THREADS);
#pragma unroll
    for (int j = 0; j < LOADS; ++j) sum |= v[j].x | v[j].y | v[j].z | v[j].w;
  }
  for (; i < last; i += THREADS) {
    const uint4 v = load(a.begin + i);
    sum |= v.x | v.y | v.z | v.w;
  }
  if (sum == 0xffffffffu) *a.sink = sum;
}
"""


def readers(byte_count: float) -> dict[str, Callable[[], object]]:
    """Calls that read `byte_count` bytes once, one for each grid; the fastest one's median is the floor."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    request = CompileRequest(
        unit_text=UNIT,
        target="sm_90a" if properties.major == 9 else f"sm_{properties.major}{properties.minor}",
        options=(f"-DTHREADS={THREADS}", f"-DLOADS={LOADS_IN_FLIGHT}"),
        name=SYMBOL,
    )
    function = load_function(default_service().compile(request).data, SYMBOL, torch.cuda.current_device())
    vectors = -(-int(byte_count) // 16)
    # The top bit stays clear, so that the OR of all words is never what the kernel stores on.
    buffer = torch.randint(0, 1 << 31, (vectors * 4,), dtype=torch.int32, device="cuda")
    sink = torch.zeros(4, dtype=torch.int32, device="cuda")
    arguments = ArgumentBuffer.from_bytes(struct.pack("<QqQ", buffer.data_ptr(), vectors, sink.data_ptr()))

    def reader(blocks: int) -> Callable[[], object]:
        # The tensors are bound to the call, so that they live as long as it does.
        def call(kept: tuple[torch.Tensor, torch.Tensor] = (buffer, sink)) -> None:
            function.launch((blocks, 1, 1), THREADS, 0, torch.cuda.current_stream().cuda_stream, arguments)

        return call

    return {
        f"read floor {blocks}": reader(blocks)
        for blocks in (count * properties.multi_processor_count for count in BLOCKS_PER_MULTIPROCESSOR)
    }
