// Where keys and values lie: float32 (pages, layers, keys and values, kv_heads, page_tokens, head_dim), C order.
//
// A page is one piece of memory over all layers, so it is moved by one copy, without a kernel that gathers it.
#pragma once

// The first key that a row at `position` sees: the last `window` there are, its own among them; 0: all.
__device__ __forceinline__ int first_key(int position, int window) {
  return window && position >= window ? position + 1 - window : 0;
}

struct Pages {
  float* memory;
  int layer, layers, kv_heads, page_tokens, head_dim;

  // The head_dim elements of one head at one place of a page; `which`: 0 for keys, 1 for values.
  __device__ __forceinline__ float* at(int page, int which, int head, int inside) const {
    const size_t block = (((size_t)page * layers + layer) * 2 + which) * kv_heads + head;
    return memory + (block * page_tokens + inside) * head_dim;
  }
};

// Rows that come alone, each of another sequence: int32 (rows, 1 + width), a row's position and then its pages in order.
struct Places {
  const int* numbers;
  int width;

  __device__ __forceinline__ int position(int row) const { return numbers[(size_t)row * (1 + width)]; }
  __device__ __forceinline__ const int* pages(int row) const { return numbers + (size_t)row * (1 + width) + 1; }
};
