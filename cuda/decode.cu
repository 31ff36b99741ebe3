// Causal attention of rows that come alone, each of another sequence, over paged keys and values.
//
// queries, out: float32 (rows, heads * HEAD_DIM), rows `stride` and `out_stride` elements apart; memory, STORED and places:
// see pages.cuh; parts: float32 (rows, heads, spans, HEAD_DIM + 2), the weighted sum of the values, the largest
// score and the sum of the weights.  HEAD_DIM is given when this is compiled.
//
// A row sees `window` keys, its own the last of them; 0: all.
//
// attend_spans: grid (spans, heads, rows), block 128: a block 256 keys of one head, counted from position 0; blocks beyond a
// row's position, and those before its window, do nothing.  There may be more of them than any row needs.
// join_spans: grid (heads, rows), block 128: joins them in their order.
// So a row's bits depend on its own position alone, and a long row keeps more than one multiprocessor busy.
//
// Tried: this one.  Never measured on a card.
#include "kernel.cuh"
#include "pages.cuh"

constexpr int kSpan = 256, kPart = HEAD_DIM + 2;

extern "C" __global__ void __launch_bounds__(128)
attend_spans(const float* queries, int stride, Stored::Bits* memory, const int* numbers, int width, float* parts,
             int layer, int layers, int kv_heads, int page_tokens, float scale, int window) {
  __shared__ float asked[HEAD_DIM], weights[kSpan], largest_parts[4], total_parts[4];
  const Pages cache{memory, layer, layers, kv_heads, page_tokens, HEAD_DIM};
  const Places places{numbers, width};
  const int* pages = places.pages(blockIdx.z);
  const int position = places.position(blockIdx.z), span = blockIdx.x * kSpan, head = blockIdx.y;
  const int start = max(span, first_key(position, window)), end = min(span + kSpan, position + 1);
  if (start >= end) return;
  const int kv_head = head / (gridDim.y / kv_heads), keys = end - start;
  for (int i = threadIdx.x; i < HEAD_DIM; i += 128)
    asked[i] = queries[(size_t)blockIdx.z * stride + head * HEAD_DIM + i] * scale;
  __syncthreads();
  float largest = -INFINITY;
  for (int key = threadIdx.x / 32; key < keys; key += 4) {
    const int at = start + key;
    const Stored::Bits* stored = cache.at(pages[at / page_tokens], 0, kv_head, at % page_tokens);
    float score = 0.f;
    for (int i = threadIdx.x % 32; i < HEAD_DIM; i += 32) score += asked[i] * Stored::read(stored[i]);
    score = warp_sum(score);
    largest = fmaxf(largest, score);
    if (threadIdx.x % 32 == 0) weights[key] = score;
  }
  largest = block_max<4>(largest, largest_parts);  // and a barrier: all scores are there
  float total = 0.f;
  for (int key = threadIdx.x; key < keys; key += 128) {
    weights[key] = expf(weights[key] - largest);
    total += weights[key];
  }
  total = block_sum<4>(total, total_parts);  // and a barrier: all weights are there
  float* part = parts + (((size_t)blockIdx.z * gridDim.y + head) * gridDim.x + blockIdx.x) * kPart;
  for (int i = threadIdx.x; i < HEAD_DIM; i += 128) {
    float sum = 0.f;
    for (int key = 0; key < keys; ++key) {
      const int at = start + key;
      sum += weights[key] * Stored::read(cache.at(pages[at / page_tokens], 1, kv_head, at % page_tokens)[i]);
    }
    part[i] = sum;
  }
  if (threadIdx.x == 0) {
    part[HEAD_DIM] = largest;
    part[HEAD_DIM + 1] = total;
  }
}

extern "C" __global__ void __launch_bounds__(128)
join_spans(const float* parts, const int* numbers, int width, int spans, float* out, int out_stride, int window) {
  const int head = blockIdx.x, row = blockIdx.y;
  const int position = Places{numbers, width}.position(row), first = first_key(position, window) / kSpan;
  const int count = position / kSpan + 1;
  const float* mine = parts + ((size_t)row * gridDim.x + head) * spans * kPart;
  float largest = -INFINITY;
  for (int span = first; span < count; ++span) largest = fmaxf(largest, mine[span * kPart + HEAD_DIM]);
  for (int i = threadIdx.x; i < HEAD_DIM; i += 128) {
    float sum = 0.f, total = 0.f;
    for (int span = first; span < count; ++span) {
      const float kept = expf(mine[span * kPart + HEAD_DIM] - largest);
      sum += mine[span * kPart + i] * kept;
      total += mine[span * kPart + HEAD_DIM + 1] * kept;
    }
    out[(size_t)row * out_stride + head * HEAD_DIM + i] = sum / total;
  }
}
