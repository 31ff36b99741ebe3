// What stands around a product that is not made here (strata/gpu/whole_tiles.py): rows and weights as numbers of 16 bits
// before it, and gates after it.
//
// WEIGHTS and GATE, given when this is compiled: see product.cuh; NUMBER is Half or Brain (mma.cuh).  `to`: NUMBER (rows,
// columns), row behind row.  columns is a multiple of 8, and of the format's elements.
//
//   round_rows      to = x: float32 (rows, columns), rows `x_stride` elements apart
//   round_weights   to = the weights' rows from `first` on; weights: (outputs, columns) in blocks
//   open_gates      out = GATE(gates) * out: both float32 (rows, columns), rows so many elements apart
//
// All is rounded to the nearest, as in tensor.cu: so the numbers that are multiplied are the same there and here.
// Grid (rows), block 128: a block a row, of which a thread makes eight neighbours and writes them at once.
//
// Tried: this one.  Never measured on a card.
#include "kernel.cuh"
#include "mma.cuh"
#include "product.cuh"

struct alignas(16) Eight {
  unsigned words[4];
};

// Calls `load(column, out)` for each eight neighbours of a row.
template <typename Load>
__device__ __forceinline__ void round_row(unsigned* to, int columns, Load load) {
  Eight* row = reinterpret_cast<Eight*>(to + (size_t)blockIdx.x * (columns / 2));
  for (int at = threadIdx.x; at < columns / 8; at += 128) {
    float some[8];
    load(at * 8, some);
    Eight made;
#pragma unroll
    for (int i = 0; i < 4; ++i) made.words[i] = pack<NUMBER>(some[2 * i], some[2 * i + 1]);
    row[at] = made;
  }
}

extern "C" __global__ void __launch_bounds__(128)
round_rows(const float* x, int x_stride, unsigned* to, int columns) {
  const float* row = x + (size_t)blockIdx.x * x_stride;
  round_row(to, columns, [&](int column, float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = row[column + i];
  });
}

extern "C" __global__ void __launch_bounds__(128)
round_weights(const unsigned char* weights, int first, unsigned* to, int columns) {
  const unsigned char* row = weights_row(weights, first + blockIdx.x, columns);
  round_row(to, columns, [&](int column, float (&out)[8]) { Weights::load8(row, column, out); });
}

extern "C" __global__ void __launch_bounds__(128)
open_gates(const float* gates, int gates_stride, float* out, int out_stride, int columns) {
  const float* gate = gates + (size_t)blockIdx.x * gates_stride;
  float* row = out + (size_t)blockIdx.x * out_stride;
  for (int column = threadIdx.x; column < columns; column += 128) row[column] *= GATE(gate[column]);
}
