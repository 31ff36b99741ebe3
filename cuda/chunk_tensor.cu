// Causal attention of a chunk's rows over paged keys and values, on tensor cores: one sequence, positions first, ...
//
// queries, out: float32 (rows, heads * HEAD_DIM), rows `stride` and `out_stride` elements apart; memory: see pages.cuh,
// STORED is Half or Brain; pages: int32.  HEAD_DIM is given when this is compiled, at most 256.
// Grid (ceil(rows / 64), heads), of heads wider than 128 (ceil(rows / 32), heads), block 128: a warp 16 queries, which are
// the rows of a tile, and of wide heads two warps the same ones; lanes as mma.cuh says.
//
// As in chunk.cu keys are summed in spans of 32 counted from position 0, with the softmax carried from span to span
// (https://arxiv.org/abs/1805.02867, section 3), and a query sees `window` keys, its own the last of them; 0: all.
// Queries, times `scale`, and weights are rounded to STORED before they are multiplied.  Products are exact and all sums
// float32; weights are divided by the sum of what they were rounded to.
//
// A row doesn't depend on the rows of its tile, on where the chunk was cut, or on what comes after:
//   - A score is the sum of one query with one key, and what a row doesn't see is replaced, whatever it came to.
//   - Values are added up in steps of 16 keys, called cells, two to a span and from zero in each span.  A row takes what the
//     cells before its own came to.  In its own there may be values of later rows, or none yet: those that it sees are added
//     one by one.  Weights of zero would not do, since how tensor cores round a sum may depend on what is beside a zero.
//   - A span that begins behind a row, or ends before its window, leaves it as it was, bit for bit.
// Before a window weights are zeros, and the values are the same however the chunk was cut, and finite (pages.cuh).
//
// Shared memory holds the queries, a span's keys and then its values, and weights: 31 KB a block for heads of 128, 39 KB for
// 256.  Rows there are 16 bytes longer than they need be, so the eight that ldmatrix reads lie in different banks.
//
// Tried: all of a wide head's sums in one warp, and weights that stay in registers, both of which NVRTC compiled to spilled
// ones.  Not tried: queries that stay in registers, copies that run ahead (cp.async), wgmma.  Never measured on a card.
#include "kernel.cuh"
#include "mma.cuh"
#include "pages.cuh"

using Number = STORED;

constexpr float kLeast = -3.402823466e38f;
constexpr int kWarps = 4, kOfWarp = 16, kSpan = 32, kCell = 16;

// Warps that share 16 queries: each of them adds up a part of the elements, as many as its lanes have registers for.
constexpr int kSharing = HEAD_DIM > 128 ? 2 : 1, kQueries = kWarps / kSharing * kOfWarp;

// A head as it lies in shared memory, with zeros at its end, and a warp's part of it.
constexpr int kPart = (HEAD_DIM + 16 * kSharing - 1) / (16 * kSharing) * 16, kWide = kPart * kSharing;

// Elements that are copied at once: as many as are sure to lie at a multiple of their bytes.
constexpr int kCopied = HEAD_DIM % 8 == 0 ? 8 : HEAD_DIM % 2 == 0 ? 2 : 1;
template <int kCount>
struct alignas(2 * kCount) Run {
  unsigned words[kCount / 2];
};
template <>
struct Run<1> {
  unsigned short element;
};

// By row, two neighbouring elements to a word.
template <int kRows, int kColumns>
struct Tile {
  alignas(16) unsigned words[kRows][kColumns / 2 + 4];
};
using Asked = Tile<kQueries, kWide>;
using Stretch = Tile<kSpan, kWide>;
using Weights = Tile<kWarps * kOfWarp, kSpan>;

// What a lane has of a tile of 16 rows by 8 columns: see mma.cuh.  Its numbers i belong to the row lane / 4 + i / 2 * 8.
using Sums = float[4];

// Of a lane's two rows: the largest score so far, the sum of weights, and what both are worth after another span.
struct Carried {
  float largest[2] = {kLeast, kLeast}, total[2] = {}, kept[2] = {};
};

// Of the four lanes that share a row.
__device__ __forceinline__ float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 1));
  return fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 2));
}

__device__ __forceinline__ float row_sum(float value) {
  value += __shfl_xor_sync(kWholeWarp, value, 1);
  return value + __shfl_xor_sync(kWholeWarp, value, 2);
}

__device__ __forceinline__ int warp() { return threadIdx.x / 32; }

// The first of the warp's 16 rows of the block's, and the first word of its part of a head.
__device__ __forceinline__ int warp_row() { return warp() / kSharing * kOfWarp; }
__device__ __forceinline__ int warp_word() { return warp() % kSharing * (kPart / 2); }

__device__ __forceinline__ float lower(unsigned word) { return unpack<Number>(word & 0xffffu); }
__device__ __forceinline__ float upper(unsigned word) { return unpack<Number>(word >> 16); }

// A block's queries of one head, and zeros where there are none.
__device__ __forceinline__ void ask(Asked& asked, const float* queries, int stride, int rows, float scale) {
  for (int i = threadIdx.x; i < kQueries * (kWide / 2); i += 128) {
    const int row = i / (kWide / 2), element = i % (kWide / 2) * 2;
    const float* from = queries + (size_t)row * stride + element;
    const float left = row < rows && element < HEAD_DIM ? from[0] * scale : 0.f;
    const float right = row < rows && element + 1 < HEAD_DIM ? from[1] * scale : 0.f;
    asked.words[row][element / 2] = pack<Number>(left, right);
  }
}

// A span's keys or values; zeros from behind the `last` position on.  After all have done with what was there, and before
// any goes on.
__device__ __forceinline__ void fill(Stretch& stretch, const Pages& cache, const int* pages, int which, int kv_head,
                                     int start, int last) {
  constexpr int kRuns = kWide / kCopied;
  __syncthreads();
  for (int i = threadIdx.x; i < kSpan * kRuns; i += 128) {
    const int key = i / kRuns, element = i % kRuns * kCopied, position = start + key;
    Run<kCopied> run = {};
    if (position <= last && element < HEAD_DIM)
      run = *reinterpret_cast<const Run<kCopied>*>(
          cache.at(pages[position / cache.page_tokens], which, kv_head, position % cache.page_tokens) + element);
    *reinterpret_cast<Run<kCopied>*>(reinterpret_cast<unsigned short*>(stretch.words[key]) + element) = run;
  }
  __syncthreads();
}

// The scores of the warp's queries, of 8 keys a tile.
__device__ __forceinline__ void score(Sums (&scores)[kSpan / 8], const Asked& asked, const Stretch& keys) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int word = 0; word < kWide / 2; word += 8) {
    unsigned a[4], b[4];
    load_matrices(a, &asked.words[warp_row() + lane % 16][word + lane / 16 * 4]);
#pragma unroll
    for (int key = 0; key < kSpan; key += 16) {
      load_matrices(b, &keys.words[key + lane / 16 * 8 + lane % 8][word + lane / 8 % 2 * 4]);
      multiply_add<Number>(scores[key / 8], a, &b[0]);
      multiply_add<Number>(scores[key / 8 + 1], a, &b[2]);
    }
  }
}

// Scores to weights; `position` is that of the lane's first row.
__device__ __forceinline__ void weigh(Weights& weights, Carried& carried, Sums (&scores)[kSpan / 8], int start,
                                      int position, int window) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int row = 0; row < 2; ++row, position += 8) {
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kSpan / 4; ++i) {
      const int key = start + i / 2 * 8 + lane % 4 * 2 + i % 2;
      float& one = scores[i / 2][row * 2 + i % 2];
      if (key > position || key < first_key(position, window)) one = -INFINITY;
      most = fmaxf(most, one);
    }
    const float grown = fmaxf(carried.largest[row], row_max(most));
    float all = 0.f;
#pragma unroll
    for (int j = 0; j < kSpan / 8; ++j) {
      const unsigned both = pack<Number>(expf(scores[j][row * 2] - grown), expf(scores[j][row * 2 + 1] - grown));
      weights.words[warp() * kOfWarp + lane / 4 + row * 8][j * 4 + lane % 4] = both;
      all += lower(both) + upper(both);
    }
    carried.kept[row] = expf(carried.largest[row] - grown);
    carried.total[row] = fmaf(carried.total[row], carried.kept[row], row_sum(all));
    carried.largest[row] = grown;
  }
}

// Adds the values of the cells that lie before a row's own.
__device__ __forceinline__ void add_cells(Sums (&sums)[kPart / 8], const Weights& weights, const Carried& carried,
                                          const Stretch& values, int start, int position) {
  const int lane = threadIdx.x % 32;
  unsigned a[2][4], b[4];
#pragma unroll
  for (int cell = 0; cell < 2; ++cell)
    load_matrices(a[cell], &weights.words[warp() * kOfWarp + lane % 16][cell * kCell / 2 + lane / 16 * 4]);
#pragma unroll
  for (int tile = 0; tile < kPart / 8; tile += 2) {
    Sums after[2][2] = {};  // one cell, and two
#pragma unroll
    for (int cell = 0; cell < 2; ++cell) {
      load_transposed(b, &values.words[cell * kCell + lane % 16][warp_word() + tile * 4 + lane / 16 * 4]);
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        multiply_add<Number>(after[cell][side], a[cell], &b[side * 2]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (cell == 0) after[1][side][i] = after[0][side][i];
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = i % 4 / 2, own = position + row * 8, cells = (own - start) / kCell;
      const float some = cells > 1 ? after[1][i / 4][i % 4] : cells > 0 ? after[0][i / 4][i % 4] : 0.f;
      float& sum = sums[tile + i / 4][i % 4];
      if (start <= own) sum = fmaf(sum, carried.kept[row], some);
    }
  }
}

// Adds those of a row's own cell, as far as it sees; the warp's rows are at `first` to `last`.
__device__ __forceinline__ void add_own(Sums (&sums)[kPart / 8], const Weights& weights, const Stretch& values,
                                        int start, int position, int first, int last) {
  const int lane = threadIdx.x % 32, end = min(start + kSpan - 1, last);
#pragma unroll 1
  for (int key = max(start, first - first % kCell); key <= end; ++key) {
    float mine[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const unsigned both = weights.words[warp() * kOfWarp + lane / 4 + row * 8][(key - start) / 2];
      mine[row] = key % 2 ? upper(both) : lower(both);
    }
#pragma unroll
    for (int tile = 0; tile < kPart / 8; ++tile) {
      const unsigned word = values.words[key - start][warp_word() + tile * 4 + lane % 4];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int own = position + row * 8;
        if (key > own || key < own - own % kCell) continue;
        sums[tile][row * 2] = fmaf(mine[row], lower(word), sums[tile][row * 2]);
        sums[tile][row * 2 + 1] = fmaf(mine[row], upper(word), sums[tile][row * 2 + 1]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(128, 2)
attend_chunk_tensor(const float* queries, int stride, Stored::Bits* memory, const int* pages, float* out, int out_stride,
                    int rows, int first, int layer, int layers, int kv_heads, int page_tokens, float scale, int window) {
  __shared__ Asked asked;
  __shared__ Stretch stretch;
  __shared__ Weights weights;
  const Pages cache{memory, layer, layers, kv_heads, page_tokens, HEAD_DIM};
  const int head = blockIdx.y, kv_head = head / (gridDim.y / kv_heads), top = blockIdx.x * kQueries;
  const int lane = threadIdx.x % 32, row = top + warp_row();
  ask(asked, queries + (size_t)top * stride + head * HEAD_DIM, stride, rows - top, scale);
  Carried carried;
  Sums sums[kPart / 8] = {};
  const int last = first + min(top + kQueries, rows) - 1;  // the last position that any query here sees
  const int of_warp = first + row, end = min(of_warp + kOfWarp - 1, last), position = of_warp + lane / 4;
  const int begin = first_key(first + top, window);
  for (int start = begin - begin % kSpan; start <= last; start += kSpan) {
    const bool seen = row < rows && start <= end && start + kSpan > first_key(of_warp, window);
    fill(stretch, cache, pages, 0, kv_head, start, last);
    if (seen) {
      Sums scores[kSpan / 8] = {};
      score(scores, asked, stretch);
      weigh(weights, carried, scores, start, position, window);
    }
    // And the barriers in `fill`: all weights are there.
    fill(stretch, cache, pages, 1, kv_head, start, last);
    if (seen) {
      add_cells(sums, weights, carried, stretch, start, position);
      if (start + kSpan > of_warp - of_warp % kCell) add_own(sums, weights, stretch, start, position, of_warp, end);
    }
  }
#pragma unroll
  for (int i = 0; i < kPart / 2; ++i) {
    const int to = row + lane / 4 + i % 4 / 2 * 8, element = warp_word() * 2 + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (to < rows && element < HEAD_DIM)
      out[(size_t)to * out_stride + head * HEAD_DIM + element] = sums[i / 4][i % 4] / carried.total[i % 4 / 2];
  }
}
