// Turns each row's heads by its position, in place: elements 2i and 2i + 1 of a head by the i-th angle
// (https://arxiv.org/abs/2104.09864).
//
// x: float32 (rows, heads * head_dim), rows `stride` elements apart; angles: float32 (positions, turned / 2, 2), cosine
// and sine; positions: int32, a row's `apart` numbers behind that of the row before.  The first `turned` elements of a head
// turn, the rest stays.
// Grid (rows), block 128.
//
// Tried: this one.  Never measured on a card.
#include "kernel.cuh"

extern "C" __global__ void __launch_bounds__(128)
rotate(float* x, int stride, const float* angles, const int* positions, int apart, int heads, int head_dim,
       int turned) {
  const int pairs = turned / 2;
  const float* mine = angles + (size_t)positions[(size_t)blockIdx.x * apart] * turned;
  float* row = x + (size_t)blockIdx.x * stride;
  for (int i = threadIdx.x; i < heads * pairs; i += 128) {
    const int pair = i % pairs;
    float* at = row + i / pairs * head_dim + 2 * pair;
    const float cosine = mine[2 * pair], sine = mine[2 * pair + 1], left = at[0], right = at[1];
    at[0] = left * cosine - right * sine;
    at[1] = left * sine + right * cosine;
  }
}
