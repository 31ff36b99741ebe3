/* Weights made into floats, 32 at a time, in the order in which that is quickest; `block` (blocks.h) has them in order.
 *
 * Narrow codes are shifted out of 32-bit lanes where they lie, so the lanes of a vector are not neighbours; a row of
 * inputs is brought into the same order once (`arrange`), and then meets all outputs.  The numbers are the same.
 */
#ifndef STRATA_ARRANGED_H
#define STRATA_ARRANGED_H

#include "blocks.h"

/* BYTES: 32 bytes, each a code or part of one. */
enum order { NATURAL, BYTES, ORDERS };

#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)

INLINE enum order order_of(enum kind kind)
{
    switch (kind) {
    case Q4_K: case Q5_K: case Q6_K: return BYTES;
    default: return NATURAL;
    }
}

/* The element of 32 that stands at place `at`. */
INLINE int element_at(enum order order, int at) { return order == BYTES ? 4 * (at % 8) + at / 8 : at; }

/* -- 32-bit lanes ------------------------------------------------------------------------------------------------ */

#if defined(KERNELS_AVX512)
typedef __m512i words;
INLINE words w_all(int a) { return _mm512_set1_epi32(a); }
INLINE words w_load(const int32_t *at) { return _mm512_loadu_si512(at); }
INLINE words w_eight(const uint8_t *at) { return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)at)); }
INLINE words w_right(words a, words bits) { return _mm512_srlv_epi32(a, bits); }
INLINE words w_right_all(words a, int bits) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits)); }
INLINE words w_left_all(words a, int bits) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits)); }
INLINE words w_and(words a, words b) { return _mm512_and_si512(a, b); }
INLINE words w_or(words a, words b) { return _mm512_or_si512(a, b); }
INLINE lanes w_lanes(words a) { return _mm512_cvtepi32_ps(a); }
INLINE words w_bytes(const uint8_t *at) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)); }
INLINE lanes v_spread(__m128 a) { return _mm512_broadcastss_ps(a); }
INLINE lanes v_quarters(__m128 a, __m128 b)
{
    __m256 both = _mm256_set_m128(_mm_broadcastss_ps(b), _mm_broadcastss_ps(a));
    return _mm512_broadcast_f32x8(both);
}
#else
typedef __m256i words;
INLINE words w_all(int a) { return _mm256_set1_epi32(a); }
INLINE words w_load(const int32_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE words w_eight(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE words w_right(words a, words bits) { return _mm256_srlv_epi32(a, bits); }
INLINE words w_right_all(words a, int bits) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(bits)); }
INLINE words w_left_all(words a, int bits) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(bits)); }
INLINE words w_and(words a, words b) { return _mm256_and_si256(a, b); }
INLINE words w_or(words a, words b) { return _mm256_or_si256(a, b); }
INLINE lanes w_lanes(words a) { return _mm256_cvtepi32_ps(a); }
INLINE words w_bytes(const uint8_t *at) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)); }
INLINE lanes v_spread(__m128 a) { return _mm256_broadcastss_ps(a); }
INLINE lanes v_quarters(__m128 a, __m128 b) { return _mm256_set_m128(_mm_broadcastss_ps(b), _mm_broadcastss_ps(a)); }
#endif

/* By vector: where the code of each lane begins, in bits of its lane. */
static const int32_t byte_bits[BLOCK] = {0,  0,  0,  0,  0,  0,  0,  0,  8,  8,  8,  8,  8,  8,  8,  8,
                                         16, 16, 16, 16, 16, 16, 16, 16, 24, 24, 24, 24, 24, 24, 24, 24};

/* Two halves that lie together, as floats in the first two lanes. */
INLINE __m128 two_halves(const uint8_t *at)
{
    int32_t both;
    memcpy(&both, at, sizeof both);
    return _mm_cvtph_ps(_mm_cvtsi32_si128(both));
}

INLINE void arranged_k45(const uint8_t *super, int at, int five, lanes out[VECTORS])
{
    int scale, minimum;
    packed_scale(super + 4, at, &scale, &minimum);
    __m128 both = _mm_mul_ps(two_halves(super), _mm_cvtepi32_ps(_mm_set_epi32(0, 0, -minimum, scale)));
    words raw = w_right_all(w_eight(super + (five ? 48 : 16) + at / 2 * 32), at & 1 ? 4 : 0), fifth = raw;
    if (five)
        fifth = w_right_all(w_eight(super + 16), at);
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) {
        words place = w_load(byte_bits + W * i), code = w_and(w_right(raw, place), w_all(15));
        if (five)
            code = w_or(code, w_left_all(w_and(w_right(fifth, place), w_all(1)), 4));
        out[i] = v_fma(w_lanes(code), v_spread(both), v_spread(_mm_movehdup_ps(both)));
    }
}

INLINE void arranged_k6(const uint8_t *super, int at, lanes out[VECTORS])
{
    int side = at / 4, quarter = at % 4;
    words low = w_right_all(w_eight(super + side * 64 + (quarter & 1) * 32), quarter & 2 ? 4 : 0);
    words high = w_right_all(w_eight(super + 128 + side * 32), 2 * quarter);
    const int8_t *scales = (const int8_t *)super + 192 + 2 * at;
    float whole = half_at(super + 208);
    lanes scale = v_quarters(_mm_set_ss(whole * (float)scales[0]), _mm_set_ss(whole * (float)scales[1]));
    lanes least = v_mul(scale, v_all(-32.0f));
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++) {
        words place = w_load(byte_bits + W * i);
        words code = w_or(w_and(w_right(low, place), w_all(15)), w_left_all(w_and(w_right(high, place), w_all(3)), 4));
        out[i] = v_fma(w_lanes(code), scale, least);
    }
}

INLINE void arranged_block(enum kind kind, const uint8_t *row, long at, lanes out[VECTORS])
{
    switch (kind) {
    case Q8_0: {
        row += 34 * at;
        lanes scale = v_spread(two_halves(row));
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++)
            out[i] = v_mul(w_lanes(w_bytes(row + 2 + W * i)), scale);
        break;
    }
    case Q4_K: arranged_k45(row + at / 8 * 144, (int)(at % 8), 0, out); break;
    case Q5_K: arranged_k45(row + at / 8 * 176, (int)(at % 8), 1, out); break;
    case Q6_K: arranged_k6(row + at / 8 * 210, (int)(at % 8), out); break;
    default: block(kind, row, at, out);
    }
}

#else

INLINE enum order order_of(enum kind kind) { (void)kind; return NATURAL; }
INLINE int element_at(enum order order, int at) { (void)order; return at; }
INLINE void arranged_block(enum kind kind, const uint8_t *row, long at, lanes out[VECTORS]) { block(kind, row, at, out); }

#endif

/* Bytes of 32 elements, nearly so where they are part of a larger block. */
INLINE long block_bytes(enum kind kind)
{
    switch (kind) {
    case F32: return 128;
    case F16: case BF16: return 64;
    case Q4_0: case Q4_K: return 18;
    case Q4_1: return 20;
    case Q5_0: case Q5_K: return 22;
    case Q5_1: return 24;
    case Q6_K: return 26;
    default: return 34;
    }
}

/* `columns` inputs, whole blocks where `order` isn't NATURAL. */
static void arrange(enum order order, const float *row, long columns, float *out)
{
    int from[BLOCK];
    for (int at = 0; at < BLOCK; at++)
        from[at] = element_at(order, at);
    for (long first = 0; first < columns; first += BLOCK)
        for (int at = 0; at < BLOCK; at++)
            out[first + at] = row[first + from[at]];
}

#endif
