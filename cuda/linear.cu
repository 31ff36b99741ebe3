// Products with weights that are kept as their file holds them, and their rows themselves.
//
// WEIGHTS, given when this is compiled, is one of the formats of formats.cuh.  x: float32 (rows, columns) and out:
// float32 (rows, outputs), rows `x_stride` and `out_stride` elements apart; weights: (outputs, columns) in blocks.
// columns is a multiple of 8, and of the format's elements.
//
//   embed      out = scale times the weights' rows that `tokens` (int32) name.  Grid (rows), block 128
//   linear     out = x weights^T          add_linear   out += x weights^T
//   gated      out = GATE(x gate^T) * (x up^T); GATE is silu where it isn't given when this is compiled, else gelu
//
// of which the last three come in two forms.  In both an output is one sum in an order that the columns alone decide, so
// a row's bits are the same beside any others and at any number of rows; the two forms round differently.
//
//   ..._rows   for few rows.  Grid (ceil(outputs / 4), ceil(rows / 8)), block 128: a warp an output of up to eight rows,
//              so weights are read once for eight; a lane eight columns of each 256, then the sum over the warp
//   ..._tiles  for many.  Grid (ceil(outputs / 64), ceil(rows / 64)), block 256: a block a tile of 64 by 64, a thread
//              four by four of it; 32 columns at a time are made into float32 in shared memory; sums go column by column
//
// All in float32; tensor.cu has the latter of 16 bits.
//
// Tried: these.  Never measured on a card.
#include "kernel.cuh"
#include "product.cuh"

extern "C" __global__ void __launch_bounds__(128)
embed(const unsigned char* weights, const int* tokens, float* out, int out_stride, int columns, float scale) {
  const unsigned char* row = weights_row(weights, tokens[blockIdx.x], columns);
  for (int column = threadIdx.x * 8; column < columns; column += 1024) {
    float some[8];
    Weights::load8(row, column, some);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[(size_t)blockIdx.x * out_stride + column + i] = some[i] * scale;
  }
}

// -- few rows

constexpr int kTogether = 8;

// sums[r] = row r of x times one row of the weights; r < rows <= kTogether.
__device__ __forceinline__ void dot_rows(const float* x, int x_stride, const unsigned char* row, int rows, int columns,
                                         float (&sums)[kTogether]) {
#pragma unroll
  for (int r = 0; r < kTogether; ++r) sums[r] = 0.f;
  for (int column = threadIdx.x % 32 * 8; column < columns; column += 256) {
    float some[8];
    Weights::load8(row, column, some);
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      if (r >= rows) break;
      const float* with = x + (size_t)r * x_stride + column;
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[r] += some[i] * with[i];
    }
  }
#pragma unroll
  for (int r = 0; r < kTogether; ++r)
    if (r < rows) sums[r] = warp_sum(sums[r]);
}

// What a warp of one of the three kernels has before it.
struct Few {
  int output, first, rows;

  __device__ __forceinline__ explicit Few(int all_rows)
      : output(blockIdx.x * 4 + threadIdx.x / 32), first(blockIdx.y * kTogether), rows(min(kTogether, all_rows - first)) {}
};

// Calls `put(output, r)` for each output that this lane is to write; r is its place among the rows.
template <typename Put>
__device__ __forceinline__ void each_row(const Few& few, float* out, int out_stride, Put put) {
#pragma unroll
  for (int r = 0; r < kTogether; ++r)
    if (r < few.rows && threadIdx.x % 32 == 0) put(out[(size_t)(few.first + r) * out_stride + few.output], r);
}

template <typename Put>
__device__ __forceinline__ void product_rows(const float* x, int x_stride, const unsigned char* weights, float* out,
                                             int out_stride, int rows, int outputs, int columns, Put put) {
  const Few few(rows);
  if (few.output >= outputs) return;
  float sums[kTogether];
  const float* from = x + (size_t)few.first * x_stride;
  dot_rows(from, x_stride, weights_row(weights, few.output, columns), few.rows, columns, sums);
  each_row(few, out, out_stride, [&](float& to, int r) { put(to, sums[r]); });
}

extern "C" __global__ void __launch_bounds__(128)
linear_rows(const float* x, int x_stride, const unsigned char* weights, float* out, int out_stride, int rows,
            int outputs, int columns) {
  product_rows(x, x_stride, weights, out, out_stride, rows, outputs, columns, Set());
}

extern "C" __global__ void __launch_bounds__(128)
add_linear_rows(const float* x, int x_stride, const unsigned char* weights, float* out, int out_stride, int rows,
                int outputs, int columns) {
  product_rows(x, x_stride, weights, out, out_stride, rows, outputs, columns, Add());
}

extern "C" __global__ void __launch_bounds__(128)
gated_rows(const float* x, int x_stride, const unsigned char* gate, const unsigned char* up, float* out, int out_stride,
           int rows, int outputs, int columns) {
  const Few few(rows);
  if (few.output >= outputs) return;
  float gates[kTogether], ups[kTogether];
  const float* from = x + (size_t)few.first * x_stride;
  dot_rows(from, x_stride, weights_row(gate, few.output, columns), few.rows, columns, gates);
  dot_rows(from, x_stride, weights_row(up, few.output, columns), few.rows, columns, ups);
  each_row(few, out, out_stride, [&](float& to, int r) { to = GATE(gates[r]) * ups[r]; });
}

// -- many rows

constexpr int kTile = 64, kDeep = 32, kPadded = kTile + 4;

struct Tile {
  float numbers[kDeep][kPadded];  // by column: a thread reads four neighbours at once
};

// 64 rows of x, from `first` on; what lies outside is zero.
__device__ __forceinline__ void fill_rows(Tile& tile, const float* x, int x_stride, int first, int rows, int start,
                                          int columns) {
  for (int i = threadIdx.x; i < kTile * kDeep; i += 256) {
    const int row = i / kDeep, column = i % kDeep;
    const bool there = first + row < rows && start + column < columns;
    tile.numbers[column][row] = there ? x[(size_t)(first + row) * x_stride + start + column] : 0.f;
  }
}

// 64 rows of the weights; a thread eight neighbours.
__device__ __forceinline__ void fill_weights(Tile& tile, const unsigned char* weights, int first, int outputs, int start,
                                             int columns) {
  const int output = threadIdx.x / 4, column = threadIdx.x % 4 * 8;
  float some[8] = {};
  if (first + output < outputs && start + column < columns)
    Weights::load8(weights_row(weights, first + output, columns), start + column, some);
#pragma unroll
  for (int i = 0; i < 8; ++i) tile.numbers[column + i][output] = some[i];
}

// A thread has four neighbouring rows and four neighbouring outputs.
__device__ __forceinline__ void multiply(const Tile& left, const Tile& right, float (&sums)[4][4]) {
  const int row = threadIdx.x / 16 * 4, output = threadIdx.x % 16 * 4;
#pragma unroll 8
  for (int column = 0; column < kDeep; ++column) {
    float a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = left.numbers[column][row + i];
      b[i] = right.numbers[column][output + i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] += a[i] * b[j];
  }
}

// Calls `put(number, i, j)` for each of the thread's outputs that there is; i and j are its place in `sums`.
template <typename Put>
__device__ __forceinline__ void each(float* out, int out_stride, int rows, int outputs, Put put) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = blockIdx.y * kTile + threadIdx.x / 16 * 4 + i;
      const int output = blockIdx.x * kTile + threadIdx.x % 16 * 4 + j;
      if (row < rows && output < outputs) put(out[(size_t)row * out_stride + output], i, j);
    }
}

template <typename Put>
__device__ __forceinline__ void product_tiles(const float* x, int x_stride, const unsigned char* weights, float* out,
                                              int out_stride, int rows, int outputs, int columns, Put put) {
  __shared__ Tile left, right;
  float sums[4][4] = {};
  for (int start = 0; start < columns; start += kDeep) {
    fill_rows(left, x, x_stride, blockIdx.y * kTile, rows, start, columns);
    fill_weights(right, weights, blockIdx.x * kTile, outputs, start, columns);
    __syncthreads();
    multiply(left, right, sums);
    __syncthreads();
  }
  each(out, out_stride, rows, outputs, [&](float& to, int i, int j) { put(to, sums[i][j]); });
}

extern "C" __global__ void __launch_bounds__(256)
linear_tiles(const float* x, int x_stride, const unsigned char* weights, float* out, int out_stride, int rows,
             int outputs, int columns) {
  product_tiles(x, x_stride, weights, out, out_stride, rows, outputs, columns, Set());
}

extern "C" __global__ void __launch_bounds__(256)
add_linear_tiles(const float* x, int x_stride, const unsigned char* weights, float* out, int out_stride, int rows,
                 int outputs, int columns) {
  product_tiles(x, x_stride, weights, out, out_stride, rows, outputs, columns, Add());
}

// Two blocks a multiprocessor: left to itself the compiler aims at more of them and spills.
extern "C" __global__ void __launch_bounds__(256, 2)
gated_tiles(const float* x, int x_stride, const unsigned char* gate, const unsigned char* up, float* out, int out_stride,
            int rows, int outputs, int columns) {
  __shared__ Tile left, right, other;
  float gates[4][4] = {}, ups[4][4] = {};
  for (int start = 0; start < columns; start += kDeep) {
    fill_rows(left, x, x_stride, blockIdx.y * kTile, rows, start, columns);
    fill_weights(right, gate, blockIdx.x * kTile, outputs, start, columns);
    fill_weights(other, up, blockIdx.x * kTile, outputs, start, columns);
    __syncthreads();
    multiply(left, right, gates);
    multiply(left, other, ups);
    __syncthreads();
  }
  each(out, out_stride, rows, outputs, [&](float& to, int i, int j) { to = GATE(gates[i][j]) * ups[i][j]; });
}
