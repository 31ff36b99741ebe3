// Where keys and values lie, and as what: (pages, layers, keys and values, kv_heads, page_tokens, head_dim), C order.
//
// STORED, given when this is compiled, says what their numbers are: Single for float32, Half or Brain for 16 bits (mma.cuh).
//
// A page is one piece of memory over all layers, so it is moved by one copy, without a kernel that gathers it.
#pragma once
#include "mma.cuh"

struct Single {};

// How an element of a key, and that of its value, are written and read: rounded to 16 bits.
//
// Where one of the two isn't finite, or becomes infinite by that, the key's is not a number, and the value's is zero.  So
// each row that sees the key is not a number either, and one that doesn't see it can be multiplied with the value all
// the same, by a weight of zero.
template <typename Number>
struct Kept {
  using Bits = unsigned short;

  static __device__ __forceinline__ float read(Bits bits) { return unpack<Number>(bits); }

  static __device__ __forceinline__ void write(Bits& key, Bits& value, float of_key, float of_value) {
    const unsigned both = pack<Number>(of_key, of_value);
    const bool finite = is_finite(both & 0xffffu) && is_finite(both >> 16);
    key = finite ? both & 0xffffu : 0x7fffu;
    value = finite ? both >> 16 : 0u;
  }

  static __device__ __forceinline__ bool is_finite(unsigned bits) {
    constexpr unsigned kExponent = Number::brain ? 0x7f80u : 0x7c00u;
    return (bits & kExponent) != kExponent;
  }
};

// As they are.
template <>
struct Kept<Single> {
  using Bits = float;

  static __device__ __forceinline__ float read(float number) { return number; }

  static __device__ __forceinline__ void write(float& key, float& value, float of_key, float of_value) {
    key = of_key;
    value = of_value;
  }
};

using Stored = Kept<STORED>;

// The first key that a row at `position` sees: the last `window` there are, its own among them; 0: all.
__device__ __forceinline__ int first_key(int position, int window) {
  return window && position >= window ? position + 1 - window : 0;
}

struct Pages {
  Stored::Bits* memory;
  int layer, layers, kv_heads, page_tokens, head_dim;

  // The head_dim elements of one head at one place of a page; `which`: 0 for keys, 1 for values.
  __device__ __forceinline__ Stored::Bits* at(int page, int which, int head, int inside) const {
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
