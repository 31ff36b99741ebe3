// Turns each row's queries and keys by its position, and stores its keys and values there.
//
// queries: float32 (rows, heads * head_dim), turned in place; keys, values: float32 (rows, kv_heads * head_dim), which stay
// as they are.  Queries' rows lie `query_stride` elements apart, those of both others `stride`.  Elements 2i and 2i + 1 of a
// head are turned by the i-th angle (https://arxiv.org/abs/2104.09864), the first `turned` of them; the rest stays.
// angles: float32 (positions, turned / 2, 2), cosine and sine; memory, STORED: see pages.cuh.
// Grid (rows, ceil((heads + kv_heads) / 4)), block 128: a warp a head of queries, or of keys and its values.
//
//   turn_and_store        at positions start, start + 1, ... of one sequence; pages: int32, the sequence's in order
//   turn_and_store_rows   each in a sequence of its own; places: see pages.cuh
//
// Tried: turned queries, turned keys and stored rows as three launches, a block a row, which read and wrote keys twice.
// Never measured on a card.
#include "kernel.cuh"
#include "pages.cuh"

struct Rows {
  float* queries;
  int query_stride, heads;
  const float *keys, *values;
  int stride;
};

struct Angles {
  const float* numbers;
  int turned;

  __device__ __forceinline__ const float* of(int position) const { return numbers + (size_t)position * turned; }
};

struct Pair {
  float left, right;
};

// Rounded as is written here, and not as a compiler likes: queries and keys, of chunks and of lone rows, are turned alike.
__device__ __forceinline__ Pair turn(const float* pair, const float* angle) {
  const float cosine = angle[0], sine = angle[1], left = pair[0], right = pair[1];
  return {fmaf(-right, sine, left * cosine), fmaf(right, cosine, left * sine)};
}

__device__ __forceinline__ void turn_query(float* query, const float* angles, int turned) {
  for (int i = threadIdx.x % 32 * 2; i < turned; i += 64) {
    const Pair pair = turn(query + i, angles + i);
    query[i] = pair.left;
    query[i + 1] = pair.right;
  }
}

// One head's, to its place in a page.
__device__ __forceinline__ void store(Stored::Bits* to_keys, Stored::Bits* to_values, const float* key,
                                      const float* value, const float* angles, int turned, int head_dim) {
  for (int i = threadIdx.x % 32 * 2; i < turned; i += 64) {
    const Pair pair = turn(key + i, angles + i);
    Stored::write(to_keys[i], to_values[i], pair.left, value[i]);
    Stored::write(to_keys[i + 1], to_values[i + 1], pair.right, value[i + 1]);
  }
  for (int i = turned + threadIdx.x % 32; i < head_dim; i += 32)
    Stored::write(to_keys[i], to_values[i], key[i], value[i]);
}

__device__ __forceinline__ void of_warp(const Rows& rows, const Angles& angles, const Pages& cache, const int* pages,
                                        int position) {
  const size_t row = blockIdx.x;
  const int head = blockIdx.y * 4 + threadIdx.x / 32, kv_head = head - rows.heads;
  if (head < rows.heads) {
    turn_query(rows.queries + row * rows.query_stride + head * cache.head_dim, angles.of(position), angles.turned);
  } else if (kv_head < cache.kv_heads) {
    const int page = pages[position / cache.page_tokens], inside = position % cache.page_tokens;
    const size_t from = row * rows.stride + kv_head * cache.head_dim;
    store(cache.at(page, 0, kv_head, inside), cache.at(page, 1, kv_head, inside), rows.keys + from, rows.values + from,
          angles.of(position), angles.turned, cache.head_dim);
  }
}

extern "C" __global__ void __launch_bounds__(128)
turn_and_store(float* queries, int query_stride, int heads, const float* keys, const float* values, int stride,
               const float* angles, int turned, Stored::Bits* memory, const int* pages, int start, int layer, int layers,
               int kv_heads, int page_tokens, int head_dim) {
  const Pages cache{memory, layer, layers, kv_heads, page_tokens, head_dim};
  of_warp({queries, query_stride, heads, keys, values, stride}, {angles, turned}, cache, pages, start + blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(128)
turn_and_store_rows(float* queries, int query_stride, int heads, const float* keys, const float* values, int stride,
                    const float* angles, int turned, Stored::Bits* memory, const int* numbers, int width, int layer,
                    int layers, int kv_heads, int page_tokens, int head_dim) {
  const Pages cache{memory, layer, layers, kv_heads, page_tokens, head_dim};
  const Places places{numbers, width};
  of_warp({queries, query_stride, heads, keys, values, stride}, {angles, turned}, cache, places.pages(blockIdx.x),
          places.position(blockIdx.x));
}
