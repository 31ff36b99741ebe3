// Stores rows of keys and values, each at its position of a sequence.
//
// keys, values: float32 (rows, kv_heads * head_dim), rows `stride` elements apart; memory, STORED: see pages.cuh.
// Grid (rows), block 128.
//
//   store        at positions start, start + 1, ... of one sequence; pages: int32, the sequence's in order of position
//   store_rows   each in a sequence of its own; places: see pages.cuh
//
// Tried: rows that come alone by `store`, a launch for each.  Never measured on a card.
#include "kernel.cuh"
#include "pages.cuh"

__device__ __forceinline__ void store_row(const Pages& cache, const float* keys, const float* values, int stride, int page,
                                          int inside) {
  for (int i = threadIdx.x; i < cache.kv_heads * cache.head_dim; i += 128) {
    const int head = i / cache.head_dim, element = i % cache.head_dim;
    const size_t from = (size_t)blockIdx.x * stride + i;
    Stored::write(cache.at(page, 0, head, inside)[element], cache.at(page, 1, head, inside)[element], keys[from],
                  values[from]);
  }
}

extern "C" __global__ void __launch_bounds__(128)
store(const float* keys, const float* values, int stride, Stored::Bits* memory, const int* pages, int start, int layer,
      int layers, int kv_heads, int page_tokens, int head_dim) {
  const Pages cache{memory, layer, layers, kv_heads, page_tokens, head_dim};
  const int position = start + blockIdx.x;
  store_row(cache, keys, values, stride, pages[position / page_tokens], position % page_tokens);
}

extern "C" __global__ void __launch_bounds__(128)
store_rows(const float* keys, const float* values, int stride, Stored::Bits* memory, const int* numbers, int width,
           int layer, int layers, int kv_heads, int page_tokens, int head_dim) {
  const Pages cache{memory, layer, layers, kv_heads, page_tokens, head_dim};
  const Places places{numbers, width};
  const int position = places.position(blockIdx.x);
  store_row(cache, keys, values, stride, places.pages(blockIdx.x)[position / page_tokens], position % page_tokens);
}
