// Stores rows of keys and values at positions start, start + 1, ... of one sequence.
//
// keys, values: float32 (rows, kv_heads * head_dim), rows `stride` elements apart; memory: see pages.cuh; pages: int32,
// the sequence's pages in order of position.  Grid (rows), block 128.
//
// Tried: this one.  Never measured on a card.
#include "kernel.cuh"
#include "pages.cuh"

extern "C" __global__ void __launch_bounds__(128)
store(const float* keys, const float* values, int stride, float* memory, const int* pages, int start, int layer,
      int layers, int kv_heads, int page_tokens, int head_dim) {
  const Pages cache{memory, layer, layers, kv_heads, page_tokens, head_dim};
  const int position = start + blockIdx.x;
  const int page = pages[position / page_tokens];
  for (int i = threadIdx.x; i < kv_heads * head_dim; i += 128) {
    const int head = i / head_dim, element = i % head_dim;
    const size_t from = (size_t)blockIdx.x * stride + i;
    cache.at(page, 0, head, position % page_tokens)[element] = keys[from];
    cache.at(page, 1, head, position % page_tokens)[element] = values[from];
  }
}
