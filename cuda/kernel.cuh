// What every kernel file begins with.  Needs no header of CUDA's, so NVRTC compiles it with nothing installed beside it.
#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr unsigned kWholeWarp = 0xffffffffu;

// The sums and maxima of a warp, known to all of its lanes; always in the same order.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int with = 16; with; with >>= 1) value += __shfl_xor_sync(kWholeWarp, value, with);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int with = 16; with; with >>= 1) value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, with));
  return value;
}

// The same of a block of kWarps warps.  `parts` is shared, kWarps long, and not used for anything else meanwhile.
template <int kWarps>
__device__ __forceinline__ float block_sum(float value, float* parts) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float all = parts[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) all += parts[warp];
  return all;
}

template <int kWarps>
__device__ __forceinline__ float block_max(float value, float* parts) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float all = parts[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) all = fmaxf(all, parts[warp]);
  return all;
}
