// out = x / sqrt(mean(x^2) + eps) * weight, over each row (https://arxiv.org/abs/1910.07467).
//
// x, out: float32 (rows, columns), rows `x_stride` and `out_stride` elements apart; weight: float32 (columns).
// Grid (rows), block 128: a block a row, so a row's bits depend on that row alone.  out may be x.
//
// The addition to the residual rows is done by the product before (linear.cu), and so no row is read twice; but for models
// that norm what they add (add_norm).
//
// Tried: this one.  Never measured on a card.
#include "kernel.cuh"

// The root of a row's mean square, by a block of 128; `parts` is shared by its four warps.
__device__ inline float length_of(const float* row, int columns, float eps, float* parts) {
  float squares = 0.f;
  for (int i = threadIdx.x; i < columns; i += 128) squares += row[i] * row[i];
  return sqrtf(block_sum<4>(squares, parts) / columns + eps);
}

extern "C" __global__ void __launch_bounds__(128)
rms_norm(const float* x, int x_stride, const float* weight, float* out, int out_stride, int columns, float eps) {
  __shared__ float parts[4];
  const float* row = x + (size_t)blockIdx.x * x_stride;
  const float length = length_of(row, columns, eps, parts);
  float* to = out + (size_t)blockIdx.x * out_stride;
  for (int i = threadIdx.x; i < columns; i += 128) to[i] = row[i] / length * weight[i];
}

// out += the same.
extern "C" __global__ void __launch_bounds__(128)
add_norm(const float* x, int x_stride, const float* weight, float* out, int out_stride, int columns, float eps) {
  __shared__ float parts[4];
  const float* row = x + (size_t)blockIdx.x * x_stride;
  const float length = length_of(row, columns, eps, parts);
  float* to = out + (size_t)blockIdx.x * out_stride;
  for (int i = threadIdx.x; i < columns; i += 128) to[i] += row[i] / length * weight[i];
}

// rms_norm of each head of each row, in place: a head is as long as the weight.
// x: float32 (rows, heads * head_dim), rows `stride` elements apart.  Grid (rows, heads), block 32.
extern "C" __global__ void __launch_bounds__(32)
norm_heads(float* x, int stride, const float* weight, int head_dim, float eps) {
  float* head = x + (size_t)blockIdx.x * stride + blockIdx.y * head_dim;
  float squares = 0.f;
  for (int i = threadIdx.x; i < head_dim; i += 32) squares += head[i] * head[i];
  const float length = sqrtf(warp_sum(squares) / head_dim + eps);
  for (int i = threadIdx.x; i < head_dim; i += 32) head[i] = head[i] / length * weight[i];
}
