/* Eight outputs of a row of inputs: what products with codes of every kind have in common.  See fixed.h.
 *
 * Each output is a lane of 32 bits: four of its codes, which are neighbours, and what becomes of them.  So the codes of
 * eight blocks are turned across once, and no sums are.
 */
#ifndef STRATA_FIXED_EIGHT_H
#define STRATA_FIXED_EIGHT_H

#include "fixed_inputs.h"

#define EIGHT 8
#define GROUPS (BLOCK / 4)
#define MOST_ROWS 16

typedef __m256i words;

/* Compilers put off what can wait until there are no registers left. */
#define NOW(a) __asm__("" : "+x"(a))

/* Eight rows of weights, `step` bytes apart. */
struct eight {
    const uint8_t *row;
    long step, columns;
};

/* Asks early for what eight rows of weights will need for `bytes` of each, from `at` on. */
INLINE void fetch(struct eight w, long at, long bytes)
{
    const uint8_t *ahead = w.row + 16 * w.step + at * 8;
    for (long line = 0; line < 8 * bytes; line += 64)
        __builtin_prefetch(ahead + line);
}

/* -- across eight rows ------------------------------------------------------------------------------------------- */

INLINE words two(const uint8_t *first, const uint8_t *second)
{
    words low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first));
    return _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)second), 1);
}

/* Sixteen bytes of each of eight rows, four of them in a word, by rows. */
INLINE void across(const uint8_t *row, long step, words out[4])
{
    words a = two(row, row + 4 * step), b = two(row + step, row + 5 * step);
    words c = two(row + 2 * step, row + 6 * step), d = two(row + 3 * step, row + 7 * step);
    words ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab, cd);
    out[1] = _mm256_unpackhi_epi64(ab, cd);
    ab = _mm256_unpackhi_epi32(a, b), cd = _mm256_unpackhi_epi32(c, d);
    out[2] = _mm256_unpacklo_epi64(ab, cd);
    out[3] = _mm256_unpackhi_epi64(ab, cd);
}

INLINE __m128i word_at(const uint8_t *at)
{
    int32_t word;
    memcpy(&word, at, sizeof word);
    return _mm_cvtsi32_si128(word);
}

/* A word of each of four rows: the first, the second, the fifth and the sixth from `row`. */
INLINE __m128i four_words(const uint8_t *row, long step)
{
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(word_at(row), word_at(row + step)),
                              _mm_unpacklo_epi32(word_at(row + 4 * step), word_at(row + 5 * step)));
}

INLINE words eight_words(const uint8_t *row, long step)
{
    __m128i a = four_words(row, step), b = four_words(row + 2 * step, step);
    return _mm256_set_m128i(_mm_unpackhi_epi64(a, b), _mm_unpacklo_epi64(a, b));
}

/* -- sums of a block --------------------------------------------------------------------------------------------- */

INLINE words four(const int8_t *at)
{
    int32_t all;
    memcpy(&all, at, sizeof all);
    return _mm256_set1_epi32(all);
}

/* Sums of 16 bits with each part of the inputs.  Of codes of more than 4 bits those with `low` are two, to fit. */
struct parts {
    words high, middle, low[2];
};

INLINE void add_product(words codes, const int8_t *x, words *sum)
{
    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(codes, four(x)));
}

/* Adds products of elements 4 * group .. 4 * group + 3 of a block; `part` of the two where they are two. */
INLINE void add_group(words codes, int group, const struct inputs *x, int part, struct parts *sums)
{
    add_product(codes, x->high + 4 * group, &sums->high);
    add_product(codes, x->middle + 4 * group, &sums->middle);
    add_product(codes, x->low + 4 * group, &sums->low[part]);
}

INLINE void keep(struct parts *sums, int part)
{
    NOW(sums->high);
    NOW(sums->middle);
    NOW(sums->low[part]);
}

INLINE words times(words sums, int factor) { return _mm256_madd_epi16(sums, _mm256_set1_epi16((short)factor)); }

INLINE words whole_sums(int two, const struct parts *sums)
{
    words out = _mm256_add_epi32(times(sums->high, -(1 << HIGH_AT)), times(sums->middle, 1 << MIDDLE_AT));
    out = _mm256_add_epi32(out, times(sums->low[0], 1));
    return two ? _mm256_add_epi32(out, times(sums->low[1], 1)) : out;
}

#endif
