// Causal attention of a chunk's rows over paged keys and values: one sequence, positions first, first + 1, ...
//
// queries, out: float32 (rows, heads * HEAD_DIM), rows `stride` and `out_stride` elements apart; memory: see pages.cuh;
// pages: int32.  HEAD_DIM is given when this is compiled, at most 128.
// Grid (ceil(rows / 16), heads), block 128: a warp four queries; in a span a lane is a key, and then an element.
//
// Keys are summed in spans of 32 counted from position 0, with the softmax carried from span to span
// (https://arxiv.org/abs/1805.02867, section 3).  A span that a query doesn't see yet, or whose keys all lie before its
// window, leaves it as it was, bit for bit: so a row doesn't depend on the rows beside it, on where the chunk was cut, or
// on what comes after.  A query sees `window` keys, its own the last of them; 0: all.
//
// Tried: this one; shuffles instead of shared memory for the weights took four times as long emulated.  Never measured on
// a card.
#include "kernel.cuh"
#include "pages.cuh"

constexpr float kLeast = -3.402823466e38f;
constexpr int kQueries = 16, kEach = 4, kSpan = 32, kPieces = (HEAD_DIM + 31) / 32;

extern "C" __global__ void __launch_bounds__(128)
attend_chunk(const float* queries, int stride, float* memory, const int* pages, float* out, int out_stride, int rows,
             int first, int layer, int layers, int kv_heads, int page_tokens, float scale, int window) {
  __shared__ float asked[kQueries][HEAD_DIM], keys[kSpan][HEAD_DIM + 1], values[kSpan][HEAD_DIM];
  __shared__ float weights[kQueries][kSpan];
  const Pages cache{memory, layer, layers, kv_heads, page_tokens, HEAD_DIM};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.y, kv_head = head / (gridDim.y / kv_heads), top = blockIdx.x * kQueries;
  for (int i = threadIdx.x; i < kQueries * HEAD_DIM; i += 128) {
    const int row = top + i / HEAD_DIM, element = i % HEAD_DIM;
    asked[i / HEAD_DIM][element] = row < rows ? queries[(size_t)row * stride + head * HEAD_DIM + element] * scale : 0.f;
  }
  float largest[kEach], total[kEach], sums[kEach][kPieces];
#pragma unroll
  for (int q = 0; q < kEach; ++q) {
    largest[q] = kLeast;  // not minus infinity: of a span without a key that it sees that would make no number
    total[q] = 0.f;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) sums[q][piece] = 0.f;
  }
  const int last = first + min(top + kQueries, rows) - 1;  // the last position that any query here sees
  const int begin = first_key(first + top, window);
  for (int start = begin - begin % kSpan; start <= last; start += kSpan) {
    __syncthreads();
    for (int i = threadIdx.x; i < kSpan * HEAD_DIM; i += 128) {
      const int key = i / HEAD_DIM, element = i % HEAD_DIM, position = start + key;
      const bool there = position <= last;
      const int page = there ? pages[position / page_tokens] : 0, inside = position % page_tokens;
      keys[key][element] = there ? cache.at(page, 0, kv_head, inside)[element] : 0.f;
      values[key][element] = there ? cache.at(page, 1, kv_head, inside)[element] : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < kEach; ++q) {
      const int query = warp * kEach + q;
      float score = 0.f;
#pragma unroll 16
      for (int i = 0; i < HEAD_DIM; ++i) score += asked[query][i] * keys[lane][i];
      const int position = first + top + query;
      if (start + lane > position || start + lane < first_key(position, window)) score = -INFINITY;
      const float grown = fmaxf(largest[q], warp_max(score));
      const float weight = expf(score - grown), kept = expf(largest[q] - grown);
      weights[query][lane] = weight;
      total[q] = total[q] * kept + warp_sum(weight);
      largest[q] = grown;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) sums[q][piece] *= kept;
    }
    __syncwarp();
#pragma unroll
    for (int q = 0; q < kEach; ++q)
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int element = piece * 32 + lane;
        if (element >= HEAD_DIM) continue;
        float sum = 0.f;
        // Not one key further: what a later row stored, infinite or not a number, must not even be met by a zero.
        const int position = first + top + warp * kEach + q, seen = min(kSpan, position - start + 1);
        for (int key = max(0, first_key(position, window) - start); key < seen; ++key) sum += weights[warp * kEach + q][key] * values[key][element];
        sums[q][piece] += sum;
      }
  }
#pragma unroll
  for (int q = 0; q < kEach; ++q) {
    const int row = top + warp * kEach + q;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int element = piece * 32 + lane;
      if (row < rows && element < HEAD_DIM)
        out[(size_t)row * out_stride + head * HEAD_DIM + element] = sums[q][piece] / total[q];
    }
  }
}
