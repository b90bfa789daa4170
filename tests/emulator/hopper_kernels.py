"""CUDA sources of small Hopper kernels: tensor copies, an mbarrier ring, wgmma, a cluster.
Called by test_emulator_hopper.py and test_emulator_hopper_mutants.py.
Assumes compute_90a; each text is complete, so that a mutant is a plain text edit of it."""
# ruff: noqa: E501  (lines of CUDA and PTX text)

COMMON = r"""
typedef unsigned u32; typedef unsigned long long u64; typedef unsigned short u16;
struct alignas(64) Map { u64 words[16]; };
extern __shared__ __align__(1024) unsigned char dyn[];
__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
__device__ __forceinline__ void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
__device__ __forceinline__ void arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
__device__ __forceinline__ void arrive_remote(u32 bar, u32 rank) {
  asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }"
               ::"r"(bar), "r"(rank) : "memory"); }
__device__ __forceinline__ void wait(u32 bar, u32 parity) {
  asm volatile("{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @done bra READY; bra AGAIN; READY: }"
               ::"r"(bar), "r"(parity) : "memory"); }
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory"); }
__device__ __forceinline__ void copy_tile(u32 to, const void* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory"); }
__device__ __forceinline__ void copy_tile_multicast(u32 to, const void* map, int x, int y, u32 bar, u16 mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask) : "memory"); }
__device__ __forceinline__ void store_tile(const void* map, int x, int y, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y), "r"(from) : "memory"); }
__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_bulk() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
__device__ __forceinline__ u64 descriptor(u32 at, u32 leading, u32 stride, u64 swizzle) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | swizzle << 62; }
__device__ __forceinline__ void wgmma_shared(float (&d)[8], u64 a, u64 b, int keep) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
    "{%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1, 0, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) : "l"(a), "l"(b), "r"(keep)); }
__device__ __forceinline__ void wgmma_registers(float (&d)[8], const u32 (&a)[4], u64 b, int keep) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
    "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)); }
"""

# One producer warp, one consumer warpgroup; W [64, K] and X [16, K] in bf16 through tensor maps with 128-byte swizzle.
RING = (
    COMMON
    + r"""
struct Args { Map w, x; float* out; int m, n, k; };
constexpr int kStages = 3, kBytes = 64 * 128 + 16 * 128;
extern "C" __global__ void __launch_bounds__(160) ring(const __grid_constant__ Args args) {
  const u32 base = address(dyn), bars = base + kStages * kBytes;
  const int warp = threadIdx.x / 32, steps = (args.k + 63) / 64;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) { init(bars + 16 * i, 1); init(bars + 16 * i + 8, 4); }
    fence_init();
  }
  __syncthreads();
  if (warp == 4) {
    if (threadIdx.x == 128) {
      for (int i = 0; i < steps; ++i) {
        const int slot = i % kStages, round = i / kStages;
        const u32 full = bars + 16 * slot, at = base + slot * kBytes;
        if (round > 0) wait(full + 8, (round - 1) & 1);
        expect(full, kBytes);
        copy_tile(at, &args.w, i * 64, blockIdx.x * 64, full);
        copy_tile(at + 64 * 128, &args.x, i * 64, 0, full);
      }
    }
    return;
  }
  float d[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (int i = 0; i < steps; ++i) {
    const int slot = i % kStages, round = i / kStages;
    const u32 full = bars + 16 * slot, at = base + slot * kBytes;
    wait(full, round & 1);
    wgmma_fence();
    for (int j = 0; j < 4; ++j) wgmma_shared(d, descriptor(at + 32 * j, 16, 1024, 1), descriptor(at + 64 * 128 + 32 * j, 16, 1024, 1), 1);
    wgmma_commit();
    wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) arrive(full + 8);
  }
  const int row = blockIdx.x * 64 + warp * 16 + threadIdx.x % 32 / 4;
  for (int i = 0; i < 8; ++i) {
    const int r = row + 8 * (i / 2 % 2), c = 8 * (i / 4) + threadIdx.x % 4 * 2 + i % 2;
    if (r < args.n && c < args.m) args.out[c * args.n + r] = d[i];
  }
}
"""
)

# A from registers, B written by ordinary stores: needs the proxy fence.
REGISTERS = (
    COMMON
    + r"""
struct Args { const u16* w; const u16* x; float* out; };
extern "C" __global__ void __launch_bounds__(128) registers(const Args args) {
  const u32 base = address(dyn);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // X [16, 32]: rows of 64 bytes, 64-byte swizzle
  for (int i = threadIdx.x; i < 64; i += 128) {
    const int row = i / 4, chunk = i % 4;
    const uint4 v = *(const uint4*)(args.x + row * 32 + chunk * 8);
    const u32 at = base + row * 64 + ((chunk ^ (row / 2 % 4)) << 4);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
  }
  fence_async();
  __syncthreads();
  float d[8];
  u32 a[2][4];
  for (int j = 0; j < 2; ++j) for (int r = 0; r < 4; ++r)
    a[j][r] = *(const u32*)(args.w + (warp * 16 + lane / 4 + 8 * (r % 2)) * 32 + j * 16 + lane % 4 * 2 + 8 * (r / 2));
  wgmma_fence();
  for (int j = 0; j < 2; ++j) wgmma_registers(d, a[j], descriptor(base + 32 * j, 16, 512, 2), j);
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < 8; ++i)
    args.out[(8 * (i / 4) + lane % 4 * 2 + i % 2) * 64 + warp * 16 + lane / 4 + 8 * (i / 2 % 2)] = d[i];
}
"""
)

# A cluster of two: rank 0 multicasts, each block adds its rank and sends half to the other by st.async; tensor store at the end.
CLUSTER = (
    COMMON
    + r"""
struct Args { Map in, out; int* sums; };
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(64) pair(const __grid_constant__ Args args) {
  const u32 base = address(dyn), tile = base, box = base + 1024, bar = base + 2048;
  u32 rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const int t = threadIdx.x;
  if (t == 0) { init(bar, 1); init(bar + 8, 1); fence_init(); }
  cluster_arrive(); cluster_wait();
  if (t == 0) {
    expect(bar, 1024);
    expect(bar + 8, 256);
    if (rank == 0) copy_tile_multicast(tile, &args.in, 0, (int)(blockIdx.x / 2) * 8, bar, 3);
  }
  wait(bar, 0);
  u32 v; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(tile + t * 4) : "memory");
  v += rank;
  asm volatile("{ .reg .b32 a, b; mapa.shared::cluster.u32 a, %0, %2; mapa.shared::cluster.u32 b, %1, %2;"
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [a], %3, [b]; }" ::"r"(box + t * 4), "r"(bar + 8), "r"(rank ^ 1), "r"(v) : "memory");
  wait(bar + 8, 0);
  u32 w; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(box + t * 4) : "memory");
  args.sums[blockIdx.x * 64 + t] = w;
  __syncthreads();
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(tile + t * 4), "r"(w * 2) : "memory");
  fence_async();
  __syncthreads();
  if (t == 0) { store_tile(&args.out, 0, blockIdx.x * 2, tile); commit_bulk(); wait_bulk(); }
  cluster_arrive(); cluster_wait();
}
"""
)

# Plain bulk copies into a ring that several warps read, stores by bulk copy.
BULK = (
    COMMON
    + r"""
struct Args { const int* in; int* out; int count; };
extern "C" __global__ void __launch_bounds__(96) bulk(const Args args) {
  const u32 base = address(dyn), bars = base + 2 * 1024;
  const int t = threadIdx.x;
  if (t == 0) { for (int i = 0; i < 2; ++i) { init(bars + 16 * i, 1); init(bars + 16 * i + 8, 64); } fence_init(); }
  __syncthreads();
  if (t >= 64) {
    if (t == 64) for (int i = 0; i < args.count; ++i) {
      const u32 bar = bars + 16 * (i % 2);
      if (i >= 2) wait(bar + 8, (i / 2 - 1) & 1);
      expect(bar, 1024);
      copy_bulk(base + 1024 * (i % 2), args.in + 256 * i, 1024, bar);
    }
  } else {
    int sum[4] = {0, 0, 0, 0};
    for (int i = 0; i < args.count; ++i) {
      const u32 bar = bars + 16 * (i % 2);
      wait(bar, i / 2 & 1);
      for (int j = 0; j < 4; ++j) {
        int v; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(base + 1024 * (i % 2) + (t + 64 * j) * 4) : "memory");
        sum[j] += v;
      }
      arrive(bar + 8);
    }
    for (int j = 0; j < 4; ++j) args.out[t + 64 * j] = sum[j];
  }
}
"""
)
