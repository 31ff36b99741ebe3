/* Products with weights that lie in blocks of 256, whose eight parts of 32 have scales of their own; see fixed.h.  Compiled
 * for every instruction set; those with wide registers have it, and share it.
 */
#include "fixed.h"

#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)

#include "fixed_eight.h"

#define SUPER 256
#define BLOCKS (SUPER / BLOCK)

/* Where of a block the codes begin, or their low four bits; the bits above those; and the scales.  And all of it. */
INLINE long codes_at(enum kind kind) { return kind == Q4_K ? 16 : kind == Q5_K ? 48 : 0; }
INLINE long uppers_at(enum kind kind) { return kind == Q5_K ? 16 : 128; }
INLINE long scales_at(enum kind kind) { return kind == Q6_K ? 192 : 0; }
INLINE long size_of(enum kind kind) { return kind == Q4_K ? 144 : kind == Q5_K ? 176 : 210; }

/* -- scales ------------------------------------------------------------------------------------------------------ */

/* Of eight rows: scales that all of a block share, and what the others are taken from. */
struct shared {
    __m256 scale, least;
    words packed[4];
};

INLINE __m256 low_halves(words a)
{
    a = _mm256_packus_epi32(_mm256_and_si256(a, _mm256_set1_epi32(0xffff)), _mm256_setzero_si256());
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(a, 0xd8)));
}

/* Q6_K has its one scale behind all else; what would be read with it may be another's. */
INLINE void take_shared(enum kind kind, const uint8_t *row, long step, struct shared *out)
{
    across(row + scales_at(kind), step, out->packed);
    words own = kind == Q6_K ? _mm256_srli_epi32(eight_words(row + 206, step), 16) : out->packed[0];
    out->scale = low_halves(own);
    out->least = low_halves(_mm256_srli_epi32(own, 16));
}

INLINE words bits_of(words a, int from, int mask)
{
    return _mm256_and_si256(_mm256_srl_epi32(a, _mm_cvtsi32_si128(from)), _mm256_set1_epi32(mask));
}

/* Six bits each; `packed_scale` in blocks.h says where. */
INLINE words packed_number(const words packed[4], int block, int least)
{
    if (block < 4)
        return bits_of(packed[1 + least], 8 * block, 63);
    words upper = bits_of(packed[1 + least], 8 * (block - 4) + 6, 3);
    return _mm256_or_si256(bits_of(packed[3], 8 * (block - 4) + 4 * least, 15), _mm256_slli_epi32(upper, 4));
}

INLINE __m256 scale_of(const struct shared *shared, int block)
{
    return _mm256_mul_ps(shared->scale, _mm256_cvtepi32_ps(packed_number(shared->packed, block, 0)));
}

/* Less than zero. */
INLINE __m256 least_of(const struct shared *shared, int block)
{
    __m256 least = _mm256_mul_ps(shared->least, _mm256_cvtepi32_ps(packed_number(shared->packed, block, 1)));
    return _mm256_xor_ps(least, _mm256_set1_ps(-0.0f));
}

/* Of half a block: a byte with a sign. */
INLINE __m256 half_scale(const struct shared *shared, int half)
{
    words byte = _mm256_sll_epi32(shared->packed[half / 4], _mm_cvtsi32_si128(24 - 8 * (half % 4)));
    return _mm256_mul_ps(shared->scale, _mm256_cvtepi32_ps(_mm256_srai_epi32(byte, 24)));
}

/* -- codes ------------------------------------------------------------------------------------------------------- */

/* 32 bytes of each of eight rows, four of them in a word. */
INLINE void across_all(const uint8_t *row, long step, words out[GROUPS])
{
    across(row, step, out);
    across(row + 16, step, out + 4);
}

/* Two blocks lie in the same 32 bytes, one in the lower and one in the upper halves of each.  In this order they are
 * added. */
INLINE int block_at(enum kind kind, int pair, int upper_half)
{
    return kind == Q6_K ? pair / 2 * 4 + pair % 2 + 2 * upper_half : 2 * pair + upper_half;
}

/* The bits of every byte from `from` on, at `to`, where `mask` has them. */
INLINE words moved(words a, int from, int to, int mask)
{
    if (from < to)
        a = _mm256_sll_epi16(a, _mm_cvtsi32_si128(to - from));
    else if (from > to)
        a = _mm256_srl_epi16(a, _mm_cvtsi32_si128(from - to));
    return _mm256_and_si256(a, _mm256_set1_epi8((char)mask));
}

/* Elements 4 * group .. 4 * group + 3 of a block from its low bits and, where there are some, the others. */
INLINE words codes_of(enum kind kind, int block, int upper_half, words low, words upper)
{
    words code = moved(low, upper_half ? 4 : 0, 0, 15);
    if (kind == Q5_K)
        return _mm256_or_si256(code, moved(upper, block, 4, 16));
    return kind == Q6_K ? _mm256_or_si256(code, moved(upper, 2 * (block % 4), 4, 48)) : code;
}

/* -- sums -------------------------------------------------------------------------------------------------------- */

/* A block's sums; of Q6_K those of each half. */
struct sums {
    struct parts of[2];
};

/* In 16 bits fit 16 products of 15 and 128, of 31 and 64, 8 of 31 and 128 or of 63 and 64, or 4 of 63 and 128. */
INLINE void add_codes(enum kind kind, words codes, int group, const struct inputs *x, struct sums *sums)
{
    int half = kind == Q6_K ? group / 4 : 0;
    int part = kind == Q4_K ? 0 : kind == Q5_K ? group / 4 : group % 4 / 2;
    add_group(codes, group, x, part, &sums->of[half]);
    keep(&sums->of[half], part);
}

INLINE __m256 add_scaled(__m256 sum, words whole, __m256 scale, const struct inputs *x)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(scale, _mm256_set1_ps(x->step)), sum);
}

INLINE __m256 add_sums(enum kind kind, __m256 sum, const struct sums *sums, const __m256 scales[2], const struct inputs *x)
{
    if (kind != Q6_K) {
        sum = add_scaled(sum, whole_sums(kind == Q5_K, &sums->of[0]), scales[0], x);
        return _mm256_fmadd_ps(scales[1], _mm256_set1_ps(x->sum), sum);
    }
    for (int half = 0; half < 2; half++) {
        words whole = _mm256_add_epi32(whole_sums(1, &sums->of[half]), _mm256_set1_epi32(x->half_begin[half]));
        sum = add_scaled(sum, whole, scales[half], x);
    }
    return sum;
}

/* A block's scale and what its codes of 0 stand for; or the scales of its halves. */
INLINE void block_scales(enum kind kind, const struct shared *shared, int block, __m256 out[2])
{
    out[0] = kind == Q6_K ? half_scale(shared, 2 * block) : scale_of(shared, block);
    out[1] = kind == Q6_K ? half_scale(shared, 2 * block + 1) : least_of(shared, block);
}

/* -- eight outputs ----------------------------------------------------------------------------------------------- */

/* What a pair of blocks is taken from: its low bits; and the upper ones, which several pairs share. */
struct packed {
    words low[GROUPS], upper[GROUPS];
};

INLINE void take_packed(enum kind kind, const uint8_t *row, long step, int pair, struct packed *out)
{
    across_all(row + codes_at(kind) + 32 * pair, step, out->low);
    if (kind == Q5_K && pair == 0)
        across_all(row + uppers_at(kind), step, out->upper);
    if (kind == Q6_K && pair % 2 == 0)
        across_all(row + uppers_at(kind) + 16 * pair, step, out->upper);
}

INLINE __m256 sum_of_lone(enum kind kind, struct eight w, struct fixed x)
{
    __m256 sum = _mm256_setzero_ps();
    for (long at = 0; at < w.columns / SUPER; at++) {
        const uint8_t *row = w.row + at * size_of(kind);
        struct shared shared;
        struct packed packed = {0};
        fetch(w, at * size_of(kind), size_of(kind));
        take_shared(kind, row, w.step, &shared);
#pragma GCC unroll 4
        for (int pair = 0; pair < BLOCKS / 2; pair++) {
            take_packed(kind, row, w.step, pair, &packed);
#pragma GCC unroll 2
            for (int upper = 0; upper < 2; upper++) {
                const int block = block_at(kind, pair, upper);
                const struct inputs *inputs = block_of(x, 0, at * BLOCKS + block);
                struct sums sums = {0};
                __m256 scales[2];
#pragma GCC unroll 8
                for (int group = 0; group < GROUPS; group++) {
                    words codes = codes_of(kind, block, upper, packed.low[group], packed.upper[group]);
                    add_codes(kind, codes, group, inputs, &sums);
                }
                block_scales(kind, &shared, block, scales);
                sum = add_sums(kind, sum, &sums, scales, inputs);
            }
        }
    }
    return sum;
}

/* One block of each row: codes are taken out of their bytes once. */
INLINE void add_block(enum kind kind, const words codes[GROUPS], const __m256 scales[2], struct fixed x, long at,
                      __m256 sum[MOST_ROWS])
{
    for (long r = 0; r < x.rows; r++) {
        const struct inputs *inputs = block_of(x, r, at);
        struct sums sums = {0};
#pragma GCC unroll 8
        for (int group = 0; group < GROUPS; group++)
            add_codes(kind, codes[group], group, inputs, &sums);
        sum[r] = add_sums(kind, sum[r], &sums, scales, inputs);
    }
}

INLINE void sum_several(enum kind kind, struct eight w, struct fixed x, __m256 sum[MOST_ROWS])
{
    for (long at = 0; at < w.columns / SUPER; at++) {
        const uint8_t *row = w.row + at * size_of(kind);
        struct shared shared;
        struct packed packed = {0};
        fetch(w, at * size_of(kind), size_of(kind));
        take_shared(kind, row, w.step, &shared);
        for (int pair = 0; pair < BLOCKS / 2; pair++) {
            take_packed(kind, row, w.step, pair, &packed);
            for (int upper = 0; upper < 2; upper++) {
                const int block = block_at(kind, pair, upper);
                words codes[GROUPS];
                __m256 scales[2];
                for (int group = 0; group < GROUPS; group++)
                    codes[group] = codes_of(kind, block, upper, packed.low[group], packed.upper[group]);
                block_scales(kind, &shared, block, scales);
                add_block(kind, codes, scales, x, at * BLOCKS + block, sum);
            }
        }
    }
}

#include "fixed_outputs.h"

OUTPUTS(Q4_K)
OUTPUTS(Q5_K)
OUTPUTS(Q6_K)

void SET(fixed_super_outputs)(const struct part *part, long first, long count, struct fixed x, float *out, long stride)
{
    switch (part->kind) {
#define CASE(kind) case kind: outputs_of_##kind(part, first, count, x, out, stride); break
    CASE(Q4_K); CASE(Q5_K); CASE(Q6_K);
#undef CASE
    default: break;
    }
}

#else

void SET(fixed_super_outputs)(const struct part *part, long first, long count, struct fixed x, float *out, long stride)
{
    (void)part, (void)first, (void)count, (void)x, (void)out, (void)stride;
}

#endif
