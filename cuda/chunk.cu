// Causal attention of a chunk's rows over paged keys and values: one sequence, positions first, first + 1, ...
//
// queries, out: float32 (rows, heads * HEAD_DIM), rows `stride` and `out_stride` elements apart; memory, STORED: see
// pages.cuh; pages: int32.  HEAD_DIM is given when this is compiled, at most 256.
// Grid (ceil(rows / 16), heads), block 128: a warp four queries; in a span a lane is a key, and then an element.
//
// Keys are summed in spans of 32 counted from position 0, with the softmax carried from span to span
// (https://arxiv.org/abs/1805.02867, section 3).  A span that a query doesn't see yet, or whose keys all lie before its
// window, leaves it as it was, bit for bit: so a row doesn't depend on the rows beside it, on where the chunk was cut, or
// on what comes after.  A query sees `window` keys, its own the last of them; 0: all.
//
// Shared memory holds a slab of a span's keys, and then of its values: all of 32 heads of 256 would not fit twice.
//
// Tried: keys and values of a span side by side, two barriers a span, at most 128 elements and 43 KB a block, where this
// takes 27 KB for 128 elements and 35 KB for 256; the sum of each 32 elements by itself, which NVRTC compiled for three
// times as long; shuffles instead of shared memory for the weights took four times as long emulated.  Never measured on a
// card.
#include "kernel.cuh"
#include "pages.cuh"

constexpr float kLeast = -3.402823466e38f;
constexpr int kQueries = 16, kEach = 4, kSpan = 32, kSlab = HEAD_DIM < 128 ? HEAD_DIM : 128;
constexpr int kSlabs = (HEAD_DIM + kSlab - 1) / kSlab, kPieces = (kSlab + 31) / 32;

using Slab = float[kSpan][kSlab + 1];  // a lane a key: no two in one bank

// Elements from `begin` on of a span's keys or values; zeros from behind the `last` position on.  After all have done
// with what was there, and before any goes on.
__device__ __forceinline__ void fill(Slab& slab, const Pages& cache, const int* pages, int which, int kv_head, int start,
                                     int last, int begin) {
  __syncthreads();
  for (int i = threadIdx.x; i < kSpan * kSlab; i += 128) {
    const int key = i / kSlab, element = begin + i % kSlab, position = start + key;
    const bool there = position <= last && element < HEAD_DIM;
    const int page = there ? pages[position / cache.page_tokens] : 0;
    slab[key][i % kSlab] =
        there ? Stored::read(cache.at(page, which, kv_head, position % cache.page_tokens)[element]) : 0.f;
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(128)
attend_chunk(const float* queries, int stride, Stored::Bits* memory, const int* pages, float* out, int out_stride,
             int rows, int first, int layer, int layers, int kv_heads, int page_tokens, float scale, int window) {
  __shared__ float asked[kQueries][HEAD_DIM], weights[kQueries][kSpan];
  __shared__ Slab slab;
  const Pages cache{memory, layer, layers, kv_heads, page_tokens, HEAD_DIM};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.y, kv_head = head / (gridDim.y / kv_heads), top = blockIdx.x * kQueries;
  for (int i = threadIdx.x; i < kQueries * HEAD_DIM; i += 128) {
    const int row = top + i / HEAD_DIM, element = i % HEAD_DIM;
    asked[i / HEAD_DIM][element] = row < rows ? queries[(size_t)row * stride + head * HEAD_DIM + element] * scale : 0.f;
  }
  float largest[kEach], total[kEach], sums[kEach][kSlabs * kPieces];
#pragma unroll
  for (int q = 0; q < kEach; ++q) {
    largest[q] = kLeast;  // not minus infinity: of a span without a key that it sees that would make no number
    total[q] = 0.f;
#pragma unroll
    for (int piece = 0; piece < kSlabs * kPieces; ++piece) sums[q][piece] = 0.f;
  }
  const int last = first + min(top + kQueries, rows) - 1;  // the last position that any query here sees
  const int begin = first_key(first + top, window);
  for (int start = begin - begin % kSpan; start <= last; start += kSpan) {
    float scores[kEach] = {};
#pragma unroll
    for (int at = 0; at < kSlabs; ++at) {
      fill(slab, cache, pages, 0, kv_head, start, last, at * kSlab);
#pragma unroll
      for (int q = 0; q < kEach; ++q)
#pragma unroll 16
        for (int i = 0; i < min(kSlab, HEAD_DIM - at * kSlab); ++i)
          scores[q] += asked[warp * kEach + q][at * kSlab + i] * slab[lane][i];
    }
#pragma unroll
    for (int q = 0; q < kEach; ++q) {
      const int position = first + top + warp * kEach + q;
      float score = scores[q];
      if (start + lane > position || start + lane < first_key(position, window)) score = -INFINITY;
      const float grown = fmaxf(largest[q], warp_max(score));
      const float weight = expf(score - grown), kept = expf(largest[q] - grown);
      weights[warp * kEach + q][lane] = weight;
      total[q] = total[q] * kept + warp_sum(weight);
      largest[q] = grown;
#pragma unroll
      for (int piece = 0; piece < kSlabs * kPieces; ++piece) sums[q][piece] *= kept;
    }
    // And the barriers in `fill`: all weights are there.
#pragma unroll
    for (int at = 0; at < kSlabs; ++at) {
      fill(slab, cache, pages, 1, kv_head, start, last, at * kSlab);
#pragma unroll
      for (int q = 0; q < kEach; ++q) {
        const int position = first + top + warp * kEach + q;
        float some[kPieces] = {};
        // Not one key further: what a later row stored, infinite or not a number, must not even be met by a zero.
        const int seen = min(kSpan, position - start + 1);
        for (int key = max(0, first_key(position, window) - start); key < seen; ++key) {
          const float weight = weights[warp * kEach + q][key];
#pragma unroll
          for (int piece = 0; piece < kPieces; ++piece)
            if (piece * 32 + lane < kSlab) some[piece] += weight * slab[key][piece * 32 + lane];
        }
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) sums[q][at * kPieces + piece] += some[piece];
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kEach; ++q) {
    const int row = top + warp * kEach + q;
#pragma unroll
    for (int piece = 0; piece < kSlabs * kPieces; ++piece) {
      const int inside = piece % kPieces * 32 + lane, element = piece / kPieces * kSlab + inside;
      if (row < rows && inside < kSlab && element < HEAD_DIM)
        out[(size_t)row * out_stride + head * HEAD_DIM + element] = sums[q][piece] / total[q];
    }
  }
}
