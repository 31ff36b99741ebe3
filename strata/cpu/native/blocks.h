/* Weights made into floats, 32 neighbours of a row at a time.
 *
 * The numbers are exactly those of the `gguf` library: a code times a scale has fewer bits than a float, so only the sum
 * with a minimum is rounded, once.  `kind` is a constant wherever these are called.
 */
#ifndef STRATA_BLOCKS_H
#define STRATA_BLOCKS_H

#include "lanes.h"
#include "weights.h"

#define BLOCK 32
#define VECTORS (BLOCK / W)

INLINE float half_at(const uint8_t *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)
    return _cvtsh_ss(half);
#else
    /* Exponents are moved by a product, which makes subnormals right too; only infinity and NaN are left over. */
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    memcpy(&bits, &value, sizeof bits);
    bits |= sign | ((half & 0x7c00) == 0x7c00 ? 0x7f800000 : 0);
    memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

/* -- 32 small whole numbers -------------------------------------------------------------------------------------- */

#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)
typedef __m256i codes;

INLINE codes c_load(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE codes c_all(int value) { return _mm256_set1_epi8((char)value); }
INLINE codes c_and(codes a, int mask) { return _mm256_and_si256(a, c_all(mask)); }
INLINE codes c_or(codes a, codes b) { return _mm256_or_si256(a, b); }
INLINE codes c_sub(codes a, int value) { return _mm256_sub_epi8(a, c_all(value)); }
/* Bits of the neighbour come in from above. */
INLINE codes c_right(codes a, int bits) { return _mm256_srl_epi16(a, _mm_cvtsi32_si128(bits)); }
INLINE codes c_left(codes a, int bits) { return _mm256_sll_epi16(a, _mm_cvtsi32_si128(bits)); }
INLINE codes c_nibbles(const uint8_t *at)
{
    __m128i raw = _mm_loadu_si128((const __m128i *)at);
    return c_and(_mm256_set_m128i(_mm_srli_epi16(raw, 4), raw), 15);
}
/* 16 where the element's bit is set. */
INLINE codes c_fifth(const uint8_t *at)
{
    int32_t bits;
    memcpy(&bits, at, sizeof bits);
    const __m256i byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte), bit);
    return c_and(_mm256_cmpeq_epi8(spread, bit), 16);
}
INLINE lanes c_lanes(codes a, int vector)
{
#if defined(KERNELS_AVX512)
    __m128i part = vector ? _mm256_extracti128_si256(a, 1) : _mm256_castsi256_si128(a);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(part));
#else
    __m128i part = vector & 2 ? _mm256_extracti128_si256(a, 1) : _mm256_castsi256_si128(a);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(vector & 1 ? _mm_srli_si128(part, 8) : part));
#endif
}
#else
typedef struct { uint8_t at[BLOCK]; } codes;

#define EACH_CODE(expression) codes out; for (int i = 0; i < BLOCK; i++) out.at[i] = (uint8_t)(expression); return out
INLINE codes c_load(const uint8_t *at) { EACH_CODE(at[i]); }
INLINE codes c_and(codes a, int mask) { EACH_CODE(a.at[i] & mask); }
INLINE codes c_or(codes a, codes b) { EACH_CODE(a.at[i] | b.at[i]); }
INLINE codes c_sub(codes a, int value) { EACH_CODE(a.at[i] - value); }
INLINE codes c_right(codes a, int bits) { EACH_CODE(a.at[i] >> bits); }
INLINE codes c_left(codes a, int bits) { EACH_CODE(a.at[i] << bits); }
INLINE codes c_nibbles(const uint8_t *at) { EACH_CODE(i < 16 ? at[i] & 15 : at[i - 16] >> 4); }
INLINE codes c_fifth(const uint8_t *at) { EACH_CODE((at[i / 8] >> i % 8 & 1) << 4); }
INLINE lanes c_lanes(codes a, int vector)
{
    lanes out;
    for (int i = 0; i < W; i++)
        out.at[i] = (float)(int8_t)a.at[vector * W + i];
    return out;
}
#endif

/* -- the numbers that they stand for ----------------------------------------------------------------------------- */

INLINE void scaled(codes a, float scale, lanes out[VECTORS])
{
    for (int i = 0; i < VECTORS; i++)
        out[i] = v_mul(c_lanes(a, i), v_all(scale));
}

INLINE void scaled_from(codes a, float scale, float least, lanes out[VECTORS])
{
    for (int i = 0; i < VECTORS; i++)
        out[i] = v_fma(c_lanes(a, i), v_all(scale), v_all(least));
}

/* The six-bit scale and minimum of the `at`-th 32 of 256, packed in 12 bytes. */
INLINE void packed_scale(const uint8_t *packed, int at, int *scale, int *minimum)
{
    if (at < 4) {
        *scale = packed[at] & 63;
        *minimum = packed[at + 4] & 63;
    } else {
        *scale = (packed[at + 4] & 15) | (packed[at - 4] >> 6 << 4);
        *minimum = packed[at + 4] >> 4 | (packed[at] >> 6 << 4);
    }
}

/* f16 scale, f16 scale of minima, 12 bytes of scales; Q5_K: 32 bytes of fifth bits; 128 bytes of nibbles. */
INLINE void block_k45(const uint8_t *super, int at, int five, lanes out[VECTORS])
{
    int scale, minimum;
    packed_scale(super + 4, at, &scale, &minimum);
    codes raw = c_load(super + (five ? 48 : 16) + at / 2 * 32);
    codes code = c_and(at & 1 ? c_right(raw, 4) : raw, 15);
    if (five)
        code = c_or(code, c_left(c_and(c_right(c_load(super + 16), at), 1), 4));
    scaled_from(code, half_at(super) * (float)scale, -(half_at(super + 2) * (float)minimum), out);
}

/* 128 bytes of low nibbles, 64 of upper pairs, 16 signed scales, f16 scale.  (value - 32) * scale, one for 16. */
INLINE void block_k6(const uint8_t *super, int at, lanes out[VECTORS])
{
    int side = at / 4, quarter = at % 4;
    codes raw = c_load(super + side * 64 + (quarter & 1) * 32);
    codes low = c_and(quarter & 2 ? c_right(raw, 4) : raw, 15);
    codes high = c_and(c_right(c_load(super + 128 + side * 32), 2 * quarter), 3);
    codes code = c_sub(c_or(low, c_left(high, 4)), 32);
    float whole = half_at(super + 208);
    for (int i = 0; i < VECTORS; i++)
        out[i] = v_mul(c_lanes(code, i), v_all(whole * (float)(int8_t)super[192 + 2 * at + i * W / 16]));
}

INLINE void floats_f16(const uint8_t *at, lanes out[VECTORS])
{
    for (int i = 0; i < VECTORS; i++) {
#if defined(KERNELS_AVX512)
        out[i] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(at + 2 * W * i)));
#elif defined(KERNELS_AVX2)
        out[i] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at + 2 * W * i)));
#else
        for (int lane = 0; lane < W; lane++)
            out[i].at[lane] = half_at(at + 2 * (W * i + lane));
#endif
    }
}

INLINE void floats_bf16(const uint8_t *at, lanes out[VECTORS])
{
    uint32_t wide[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        wide[i] = (uint32_t)at[2 * i] << 16 | (uint32_t)at[2 * i + 1] << 24;
    float all[BLOCK];
    memcpy(all, wide, sizeof all);
    for (int i = 0; i < VECTORS; i++)
        out[i] = v_load(all + W * i);
}

/* Elements 32 * at .. 32 * at + 31 of a row. */
INLINE void block(enum kind kind, const uint8_t *row, long at, lanes out[VECTORS])
{
    switch (kind) {
    case F32:
        for (int i = 0; i < VECTORS; i++)
            out[i] = v_load((const float *)row + BLOCK * at + W * i);
        break;
    case F16: floats_f16(row + 64 * at, out); break;
    case BF16: floats_bf16(row + 64 * at, out); break;
    case Q4_0: row += 18 * at; scaled(c_sub(c_nibbles(row + 2), 8), half_at(row), out); break;
    case Q4_1: row += 20 * at; scaled_from(c_nibbles(row + 4), half_at(row), half_at(row + 2), out); break;
    case Q5_0:
        row += 22 * at;
        scaled(c_sub(c_or(c_nibbles(row + 6), c_fifth(row + 2)), 16), half_at(row), out);
        break;
    case Q5_1:
        row += 24 * at;
        scaled_from(c_or(c_nibbles(row + 8), c_fifth(row + 4)), half_at(row), half_at(row + 2), out);
        break;
    case Q8_0: row += 34 * at; scaled(c_load(row + 2), half_at(row), out); break;
    case Q4_K: block_k45(row + at / 8 * 144, (int)(at % 8), 0, out); break;
    case Q5_K: block_k45(row + at / 8 * 176, (int)(at % 8), 1, out); break;
    case Q6_K: block_k6(row + at / 8 * 210, (int)(at % 8), out); break;
    case KINDS: break;
    }
}

#endif
