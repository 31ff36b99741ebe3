// Draws the next token of each row from its logits.  strata/draws.py says what the numbers of a draw mean, and
// strata/engine/drawing.py what comes of them exactly: the same token as here, bit for bit, since weights are whole numbers,
// whose sums are the same in any order, and what makes them of logits is rounded by itself.
//
// logits: float32 (rows, columns), rows `stride` elements apart; draws: (rows), each 40 bytes; tokens: int32 (rows), -1
// where nothing is drawn or one of the row's logits is not finite.  Grid (rows), block 256.
//
// A cut is found four bits at a time: each thread adds up the weights of its tokens in sixteen bins of its own, so there
// are no atomics; then the bin is known in which the sum, from the likeliest on, reaches the goal, and only its tokens are
// looked at further.  So top_k is cut by count, top_p by weight, and the token itself is found, by id, in one way.  What has
// been left is read again from memory in each round, and little of it is weighed.
//
// Tried: this one.  Never measured on a card.
#include "kernel.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32, kBinBits = 4, kBins = 1 << kBinBits;
constexpr float kMost = 3.402823466e38f;

using Whole = unsigned long long;

constexpr Whole kAll = ~0ull;

struct Draw {
  Whole nucleus, least, seed, position;
  float scale;
  int keep;  // -1: nothing is drawn
};

struct Room {
  Whole bins[kBins][kThreads], totals[kBins];
  float largest[kWarps], bad[kWarps];
};

struct Row {
  const float* logits;
  int columns;
  float largest, scale;

  // Higher is likelier; of equals the lower id is.
  __device__ __forceinline__ Whole order(int column) const {
    const unsigned bits = __float_as_uint(__fadd_rn(logits[column], 0.f));  // one zero for both
    return (Whole)(bits >> 31 ? ~bits : bits | 0x80000000u) << id_bits() | id(column);
  }

  __device__ __forceinline__ Whole id(int column) const { return columns - 1 - column; }
  __device__ __forceinline__ int id_bits() const { return 32 - __clz(columns); }

  __device__ __forceinline__ Whole weight(int column) const {
    const float exponent = fmaxf(__fmul_rn(__fadd_rn(logits[column], -largest), scale), -62.f);
    const float whole = floorf(exponent), rest = __fadd_rn(exponent, -whole);
    float power = 0.0018671302f;
    power = __fadd_rn(__fmul_rn(power, rest), 0.00901703f);
    power = __fadd_rn(__fmul_rn(power, rest), 0.055799913f);
    power = __fadd_rn(__fmul_rn(power, rest), 0.24016444f);
    power = __fadd_rn(__fmul_rn(power, rest), 0.6931513f);
    power = __fadd_rn(__fmul_rn(power, rest), 1.f);
    // A float of this size has 23 bits behind its point.
    return (Whole)__fmul_rn(power, 8388608.f) << (40 - 23) >> (int)-whole;
  }
};

// The first 64 bits of Philox4x64-10, by the key (seed, 0) and the counter (position + 1, 0, 0, 0).
__device__ __forceinline__ Whole random_bits(Whole seed, Whole position) {
  constexpr Whole kLeft = 0xd2e7470ee14c6c93ull, kRight = 0xca5a826395121157ull;
  Whole counter[4] = {position + 1, 0, 0, 0}, key[2] = {seed, 0};
  for (int round = 0; round < 10; ++round) {
    const Whole first = __umul64hi(kRight, counter[2]) ^ counter[1] ^ key[0], second = kRight * counter[2];
    const Whole third = __umul64hi(kLeft, counter[0]) ^ counter[3] ^ key[1], fourth = kLeft * counter[0];
    counter[0] = first, counter[1] = second, counter[2] = third, counter[3] = fourth;
    key[0] += 0x9e3779b97f4a7c15ull, key[1] += 0xbb67ae8584caa73bull;
  }
  return counter[0];
}

// The largest of all, and whether one is not finite; the same for every thread.
__device__ __forceinline__ bool all_finite(const float* logits, int columns, float& largest, Room& room) {
  float bad = 0.f;
  largest = -kMost;
  for (int column = threadIdx.x; column < columns; column += kThreads) {
    const float logit = logits[column];
    if (!(logit >= -kMost && logit <= kMost)) bad = 1.f;
    largest = fmaxf(largest, logit);
  }
  largest = block_max<kWarps>(largest, room.largest);
  return block_max<kWarps>(bad, room.bad) == 0.f;
}

// The sum of each bin, over all threads.
__device__ __forceinline__ void add_up(Room& room) {
  __syncthreads();
  for (int bin = threadIdx.x / 32; bin < kBins; bin += kWarps) {
    Whole sum = 0;
    for (int thread = threadIdx.x % 32; thread < kThreads; thread += 32) sum += room.bins[bin][thread];
#pragma unroll
    for (int with = 16; with; with >>= 1) sum += __shfl_xor_sync(kWholeWarp, sum, with);
    if (threadIdx.x % 32 == 0) room.totals[bin] = sum;
  }
  __syncthreads();
}

// From the highest key on, the key at which the weights' sum is what `goal` makes of the whole sum, at least 1 and at most
// the whole; or, unless it is to be exact, a lower one with no other between.  Keys have so many bits.
template <bool kExact, typename Key, typename Weight, typename Goal>
__device__ __forceinline__ Whole reach(int columns, int bits, Room& room, Key key, Weight weight, Goal goal) {
  Whole prefix = 0, missing = 0;
  for (int shift = (bits - 1) / kBinBits * kBinBits; shift >= 0; shift -= kBinBits) {
    for (int bin = 0; bin < kBins; ++bin) room.bins[bin][threadIdx.x] = 0;
    for (int column = threadIdx.x; column < columns; column += kThreads) {
      const Whole digits = key(column) >> shift;
      if (digits >> kBinBits == prefix) room.bins[digits % kBins][threadIdx.x] += weight(column);
    }
    add_up(room);
    if (!missing) {
      Whole sum = 0;
      for (int bin = 0; bin < kBins; ++bin) sum += room.totals[bin];
      missing = goal(sum);
    }
    int bin = kBins - 1;
    for (; room.totals[bin] < missing; --bin) missing -= room.totals[bin];
    prefix = prefix << kBinBits | bin;
    if (!kExact && room.totals[bin] == missing) return prefix << shift;
  }
  return prefix;
}

extern "C" __global__ void __launch_bounds__(256)
draw(const float* logits, int stride, int columns, const Draw* draws, int* tokens) {
  __shared__ Room room;
  const Draw draw = draws[blockIdx.x];
  Row row{logits + (size_t)blockIdx.x * stride, columns, 0.f, draw.scale};
  if (draw.keep < 0 || !all_finite(row.logits, columns, row.largest, room)) {
    if (threadIdx.x == 0) tokens[blockIdx.x] = -1;
    return;
  }
  const int id_bits = row.id_bits(), order_bits = 32 + id_bits;
  const auto order = [&](int column) { return row.order(column); };
  const auto id = [&](int column) { return row.id(column); };
  Whole cut = 0;
  const auto kept = [&](int column) { return row.order(column) >= cut ? row.weight(column) : 0; };
  if (draw.keep > 1 && draw.keep < columns) {
    const Whole keep = draw.keep;
    cut = reach<false>(columns, order_bits, room, order, [](int) { return 1; }, [&](Whole) { return keep; });
  }
  if (draw.keep != 1 && draw.nucleus != kAll) {
    const auto part = [&](Whole sum) {
      const Whole goal = __umul64hi(sum, draw.nucleus) + (sum * draw.nucleus != 0);
      return goal ? goal : 1;
    };
    cut = max(cut, reach<false>(columns, order_bits, room, order, kept, part));
  }
  const auto heavy = [&](int column) {
    const Whole weight = kept(column);
    return weight >= draw.least ? weight : 0;
  };
  const auto largest = [&](int column) { return (Whole)(row.logits[column] == row.largest); };
  const auto place = [&](Whole sum) { return __umul64hi(sum, random_bits(draw.seed, draw.position)) + 1; };
  const Whole found = draw.keep == 1 ? reach<true>(columns, id_bits, room, id, largest, [](Whole) { return 1; })
                                     : reach<true>(columns, id_bits, room, id, heavy, place);
  if (threadIdx.x == 0) tokens[blockIdx.x] = columns - 1 - (int)found;
}
