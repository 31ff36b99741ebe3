// Products of many rows on tensor cores, with weights that are kept as their file holds them.
//
// WEIGHTS and GATE, given when this is compiled: see product.cuh; NUMBER is Half or Brain (mma.cuh).  x: float32 (rows,
// columns) and out: float32 (rows, outputs), rows `x_stride` and `out_stride` elements apart; weights: (outputs, columns) in
// blocks.  columns is a multiple of 8, and of the format's elements.
//
//   linear_tensor   out = x weights^T          add_linear_tensor   out += x weights^T
//   gated_tensor    out = GATE(x gate^T) * (x up^T)
//
// x and the weights are rounded to NUMBER as they come to shared memory, 32 columns at a time; their products are exact,
// and summed in float32.  Grid (ceil(outputs / 64), ceil(rows / 128)), block 256: a block a tile of 128 by 64, a warp 32 by 32
// of it.  What lies outside is zero, and the order of a sum is decided by the columns alone: so a row's bits are the same
// beside any others and at any number of rows.
//
// Rows of a tile in shared memory are 80 bytes apart, so the eight that ldmatrix reads at once lie in different banks.
//
// Tried: this one.  Not tried: copies that run ahead (cp.async), wgmma.  Never measured on a card.
#include "kernel.cuh"
#include "mma.cuh"
#include "product.cuh"

constexpr int kRows = 128, kOutputs = 64, kDeep = 32, kWords = kDeep / 2;

// By row, two neighbouring columns to a word.
template <int kCount>
struct Tile {
  alignas(16) unsigned words[kCount][kWords + 4];
};
using Left = Tile<kRows>;
using Right = Tile<kOutputs>;

// A thread's sums: 2 tiles of 16 rows by 4 of 8 outputs, and of each what mma.cuh says.
using Sums = float[2][4][4];

// From row `first` on.
__device__ __forceinline__ void fill_rows(Left& tile, const float* x, int x_stride, int first, int rows, int start,
                                          int columns) {
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kWords; i += 256) {
    const int row = i / kWords, word = i % kWords, column = start + 2 * word;
    const bool there = first + row < rows && column < columns;
    const float* from = x + (size_t)(first + row) * x_stride + column;
    tile.words[row][word] = there ? pack<NUMBER>(from[0], from[1]) : 0;
  }
}

// From output `first` on; a thread eight neighbours.
__device__ __forceinline__ void fill_weights(Right& tile, const unsigned char* weights, int first, int outputs, int start,
                                             int columns) {
  const int output = threadIdx.x / 4, word = threadIdx.x % 4 * 4, column = start + 2 * word;
  float some[8] = {};
  if (first + output < outputs && column < columns)
    Weights::load8(weights_row(weights, first + output, columns), column, some);
#pragma unroll
  for (int i = 0; i < 4; ++i) tile.words[output][word + i] = pack<NUMBER>(some[2 * i], some[2 * i + 1]);
}

__device__ __forceinline__ int warp_row() { return threadIdx.x / 32 % 4 * 32; }
__device__ __forceinline__ int warp_output() { return threadIdx.x / 128 * 32; }

__device__ __forceinline__ void multiply(const Left& left, const Right& right, Sums& sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int word = 0; word < kWords; word += 8) {
    unsigned a[2][4], b[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_matrices(a[i], &left.words[warp_row() + i * 16 + lane % 16][word + lane / 16 * 4]);
      load_matrices(b[i], &right.words[warp_output() + i * 16 + lane / 16 * 8 + lane % 8][word + lane / 8 % 2 * 4]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply_add<NUMBER>(sums[i][j], a[i], &b[j / 2][j % 2 * 2]);
  }
}

// Calls `put(number, i, j, k)` for each of the thread's outputs that there is; i, j and k are its place in `sums`.
template <typename Put>
__device__ __forceinline__ void each(float* out, int out_stride, int rows, int outputs, Put put) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = blockIdx.y * kRows + warp_row() + i * 16 + lane / 4 + k / 2 * 8;
        const int output = blockIdx.x * kOutputs + warp_output() + j * 8 + lane % 4 * 2 + k % 2;
        if (row < rows && output < outputs) put(out[(size_t)row * out_stride + output], i, j, k);
      }
}

template <typename Put>
__device__ __forceinline__ void product(const float* x, int x_stride, const unsigned char* weights, float* out,
                                        int out_stride, int rows, int outputs, int columns, Put put) {
  __shared__ Left left;
  __shared__ Right right;
  Sums sums = {};
  for (int start = 0; start < columns; start += kDeep) {
    fill_rows(left, x, x_stride, blockIdx.y * kRows, rows, start, columns);
    fill_weights(right, weights, blockIdx.x * kOutputs, outputs, start, columns);
    __syncthreads();
    multiply(left, right, sums);
    __syncthreads();
  }
  each(out, out_stride, rows, outputs, [&](float& to, int i, int j, int k) { put(to, sums[i][j][k]); });
}

extern "C" __global__ void __launch_bounds__(256, 2)
linear_tensor(const float* x, int x_stride, const unsigned char* weights, float* out, int out_stride, int rows,
              int outputs, int columns) {
  product(x, x_stride, weights, out, out_stride, rows, outputs, columns, Set());
}

extern "C" __global__ void __launch_bounds__(256, 2)
add_linear_tensor(const float* x, int x_stride, const unsigned char* weights, float* out, int out_stride, int rows,
                  int outputs, int columns) {
  product(x, x_stride, weights, out, out_stride, rows, outputs, columns, Add());
}

extern "C" __global__ void __launch_bounds__(256)
gated_tensor(const float* x, int x_stride, const unsigned char* gate, const unsigned char* up, float* out,
             int out_stride, int rows, int outputs, int columns) {
  __shared__ Left left;
  __shared__ Right right, other;
  Sums gates = {}, ups = {};
  for (int start = 0; start < columns; start += kDeep) {
    fill_rows(left, x, x_stride, blockIdx.y * kRows, rows, start, columns);
    fill_weights(right, gate, blockIdx.x * kOutputs, outputs, start, columns);
    fill_weights(other, up, blockIdx.x * kOutputs, outputs, start, columns);
    __syncthreads();
    multiply(left, right, gates);
    multiply(left, other, ups);
    __syncthreads();
  }
  each(out, out_stride, rows, outputs,
       [&](float& to, int i, int j, int k) { to = GATE(gates[i][j][k]) * ups[i][j][k]; });
}
