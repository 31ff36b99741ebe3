// The largest numbers of each row, the largest first, of equals the one with the lowest name first.
//
// numbers: float32 (rows, columns), rows `stride` elements apart; names: int32 (rows, columns), what each number is called,
// or null: its column.  out: float32 (rows, parts, count) and out_names: int32 likewise, where there are fewer filled up
// with minus infinity.  Grid (parts = ceil(columns / 4096), rows), block 256: a block the largest of 4096 columns, a thread
// 16 of them, in registers; `count` rounds, in each of which the largest is found and taken out.  What came of all parts is
// given to it once more, with its names: so a row's bits depend on that row alone, and nothing on its count of columns.
//
// One of the numbers that is not finite makes all that comes of its part NaN, and then of the row.
//
// Tried: this one.  Never measured on a card.
#include "kernel.cuh"

constexpr int kPart = 4096, kThreads = 256, kWarps = kThreads / 32, kEach = kPart / kThreads;
constexpr int kNobody = 0x7fffffff;
constexpr float kMost = 3.402823466e38f;

struct Named {
  float number;
  int name;
};

__device__ __forceinline__ Named larger(Named a, Named b) {
  return b.number > a.number || (b.number == a.number && b.name < a.name) ? b : a;
}

__device__ __forceinline__ Named warp_largest(Named one) {
#pragma unroll
  for (int with = 16; with; with >>= 1)
    one = larger(one, {__shfl_xor_sync(kWholeWarp, one.number, with), __shfl_xor_sync(kWholeWarp, one.name, with)});
  return one;
}

extern "C" __global__ void __launch_bounds__(256)
largest(const float* numbers, int stride, const int* names, int columns, int count, float* out, int* out_names) {
  __shared__ Named found[2][kWarps];  // by turns: who is late still reads the one
  __shared__ float parts[kWarps];
  Named mine[kEach];
  float bad = 0.f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int column = blockIdx.x * kPart + i * kThreads + threadIdx.x;
    mine[i] = {-INFINITY, kNobody};
    if (column >= columns) continue;
    const float number = numbers[(size_t)blockIdx.y * stride + column];
    mine[i] = {number, names ? names[(size_t)blockIdx.y * columns + column] : column};
    // Those with names are ours: minus infinity is a place that was left.
    if (names ? number != number : !(number >= -kMost && number <= kMost)) bad = 1.f;
  }
  bad = block_max<kWarps>(bad, parts);
  const size_t to = ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * count;
  for (int round = 0; round < count; ++round) {
    Named best = mine[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) best = larger(best, mine[i]);
    best = warp_largest(best);
    if (threadIdx.x % 32 == 0) found[round % 2][threadIdx.x / 32] = best;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) best = larger(best, found[round % 2][warp]);
    if (threadIdx.x == 0) {
      out[to + round] = bad ? __int_as_float(0x7fc00000) : best.number;
      out_names[to + round] = best.name;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (mine[i].name == best.name) mine[i] = {-INFINITY, kNobody};
  }
}
