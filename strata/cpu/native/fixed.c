/* Products with weights that lie in blocks of 32; see fixed.h.  Compiled for every instruction set; those with wide
 * registers have it, and share it: 256 bits are enough to keep up with memory.
 */
#include "fixed.h"

#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)

#include "fixed_eight.h"

enum form SET(form_of)(enum kind kind)
{
    switch (kind) {
    case Q4_0: case Q4_1: case Q4_K: return FOUR_BITS;
    case Q5_0: case Q5_1: case Q5_K: case Q6_K: return FIVE_BITS;
    case Q8_0: return EIGHT_BITS;
    default: return UNFIXED;
    }
}

/* Where the fifth bits of a block begin, and its codes; and all of it. */
INLINE long fifths_at(enum kind kind) { return kind == Q5_0 ? 2 : 4; }
INLINE long codes_at(enum kind kind) { return kind == Q4_1 ? 4 : kind == Q5_0 ? 6 : kind == Q5_1 ? 8 : 2; }
INLINE long size_of(enum kind kind) { return codes_at(kind) + (kind == Q8_0 ? 32 : 16); }
INLINE int has_fifths(enum kind kind) { return kind == Q5_0 || kind == Q5_1; }
INLINE int has_least(enum kind kind) { return kind == Q4_1 || kind == Q5_1; }

/* Scales, and what codes of 0 stand for. */
struct scales {
    __m256 scale, least;
};

INLINE struct scales take_scales(enum kind kind, const uint8_t *row, long step)
{
    __m256 a = _mm256_cvtph_ps(four_words(row, step)), b = _mm256_cvtph_ps(four_words(row + 2 * step, step));
    __m256 scale = _mm256_shuffle_ps(a, b, 0x88);
    if (has_least(kind))
        return (struct scales){scale, _mm256_shuffle_ps(a, b, 0xdd)};
    return (struct scales){scale, _mm256_mul_ps(scale, _mm256_set1_ps(has_fifths(kind) ? -16.0f : -8.0f))};
}

/* -- codes ------------------------------------------------------------------------------------------------------- */

/* 16 where the element's bit is set, of elements 4 * group .. 4 * group + 3. */
INLINE words fifths_of(words bits, int group)
{
    const words first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8,
                                         8, 8, 12, 12, 12, 12);
    const words bit = _mm256_set1_epi32(group & 1 ? (int)0x80402010 : 0x08040201);
    words spread = _mm256_shuffle_epi8(bits, _mm256_add_epi8(first, _mm256_set1_epi8((char)(group / 2))));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit), _mm256_set1_epi8(16));
}

/* A block of eight rows before its codes are taken out. */
struct packed {
    words raw[4], fifths;
};

INLINE void take_packed(enum kind kind, const uint8_t *row, long step, struct packed *out)
{
    across(row + codes_at(kind), step, out->raw);
    out->fifths = has_fifths(kind) ? eight_words(row + fifths_at(kind), step) : _mm256_setzero_si256();
}

/* Of elements 4 * group .. 4 * group + 3, and of those 16 further on. */
INLINE void take_codes(enum kind kind, const struct packed *packed, int group, words *first, words *second)
{
    const words nibble = _mm256_set1_epi8(15);
    *first = _mm256_and_si256(packed->raw[group], nibble);
    *second = _mm256_and_si256(_mm256_srli_epi16(packed->raw[group], 4), nibble);
    if (has_fifths(kind)) {
        *first = _mm256_or_si256(*first, fifths_of(packed->fifths, group));
        *second = _mm256_or_si256(*second, fifths_of(packed->fifths, group + 4));
    }
}

/* In 16 bits fit 16 products of 15 and 128, of 31 and 64, or 8 of 31 and 128. */
INLINE int part_of(enum kind kind, int group) { return has_fifths(kind) ? group / 2 : 0; }

INLINE __m256 add_sums(__m256 sum, words whole, struct scales scales, const struct inputs *x)
{
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(scales.scale, _mm256_set1_ps(x->step)), sum);
    return _mm256_fmadd_ps(scales.least, _mm256_set1_ps(x->sum), sum);
}

/* -- sums of a block of wide codes ------------------------------------------------------------------------------- */

/* Codes with 128 added, which makes them bytes without a sign; in 32 bits. */
struct wide {
    words high, rest;
};

/* In 16 bits fit two products of 255 and 64. */
INLINE void add_wide(words codes, int group, const struct inputs *x, struct wide *sums)
{
    words high = _mm256_maddubs_epi16(codes, four(x->high + 4 * group));
    words middle = _mm256_maddubs_epi16(codes, four(x->middle + 4 * group));
    words low = _mm256_maddubs_epi16(codes, four(x->low + 4 * group));
    sums->high = _mm256_add_epi32(sums->high, times(high, 1));
    sums->rest = _mm256_add_epi32(sums->rest, _mm256_add_epi32(times(middle, 1 << WIDE_MIDDLE_AT), times(low, 1)));
    NOW(sums->high);
    NOW(sums->rest);
}

INLINE struct wide begin_wide(const struct inputs *x)
{
    return (struct wide){_mm256_set1_epi32(x->high_begin), _mm256_set1_epi32(x->rest_begin)};
}

/* Both parts are exact; the whole would not fit. */
INLINE __m256 add_wide_sums(__m256 sum, const struct wide *sums, __m256 scale, const struct inputs *x)
{
    scale = _mm256_mul_ps(scale, _mm256_set1_ps(x->step));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums->high), _mm256_mul_ps(scale, _mm256_set1_ps(-(1 << WIDE_HIGH_AT))), sum);
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums->rest), scale, sum);
}

INLINE words wide_codes(words raw) { return _mm256_xor_si256(raw, _mm256_set1_epi8((char)0x80)); }

/* -- eight outputs ----------------------------------------------------------------------------------------------- */

INLINE __m256 narrow_lone(enum kind kind, struct eight w, struct fixed x)
{
    __m256 sum = _mm256_setzero_ps();
    for (long at = 0; at < w.columns / BLOCK; at++) {
        const uint8_t *row = w.row + at * size_of(kind);
        const struct inputs *inputs = block_of(x, 0, at);
        struct parts parts = {0};
        struct packed packed;
        fetch(w, at * size_of(kind), size_of(kind));
        take_packed(kind, row, w.step, &packed);
#pragma GCC unroll 4
        for (int group = 0; group < 4; group++) {
            words first, second;
            take_codes(kind, &packed, group, &first, &second);
            add_group(first, group, inputs, part_of(kind, group), &parts);
            add_group(second, group + 4, inputs, part_of(kind, group), &parts);
            keep(&parts, part_of(kind, group));
        }
        sum = add_sums(sum, whole_sums(has_fifths(kind), &parts), take_scales(kind, row, w.step), inputs);
    }
    return sum;
}

/* The same for several rows: codes are taken out of their block once. */
INLINE void narrow_several(enum kind kind, struct eight w, struct fixed x, __m256 sum[MOST_ROWS])
{
    for (long at = 0; at < w.columns / BLOCK; at++) {
        const uint8_t *row = w.row + at * size_of(kind);
        struct scales scales = take_scales(kind, row, w.step);
        struct packed packed;
        words codes[GROUPS];
        fetch(w, at * size_of(kind), size_of(kind));
        take_packed(kind, row, w.step, &packed);
        for (int group = 0; group < 4; group++)
            take_codes(kind, &packed, group, &codes[group], &codes[group + 4]);
        for (long r = 0; r < x.rows; r++) {
            const struct inputs *inputs = block_of(x, r, at);
            struct parts parts = {0};
#pragma GCC unroll 4
            for (int group = 0; group < 4; group++) {
                add_group(codes[group], group, inputs, part_of(kind, group), &parts);
                add_group(codes[group + 4], group + 4, inputs, part_of(kind, group), &parts);
                keep(&parts, part_of(kind, group));
            }
            sum[r] = add_sums(sum[r], whole_sums(has_fifths(kind), &parts), scales, inputs);
        }
    }
}

INLINE __m256 wide_lone(struct eight w, struct fixed x)
{
    __m256 sum = _mm256_setzero_ps();
    for (long at = 0; at < w.columns / BLOCK; at++) {
        const uint8_t *row = w.row + at * size_of(Q8_0);
        const struct inputs *inputs = block_of(x, 0, at);
        struct wide sums = begin_wide(inputs);
        fetch(w, at * size_of(Q8_0), size_of(Q8_0));
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            words codes[4];
            across(row + codes_at(Q8_0) + 16 * half, w.step, codes);
#pragma GCC unroll 4
            for (int group = 0; group < 4; group++)
                add_wide(wide_codes(codes[group]), 4 * half + group, inputs, &sums);
        }
        sum = add_wide_sums(sum, &sums, take_scales(Q8_0, row, w.step).scale, inputs);
    }
    return sum;
}

INLINE void wide_several(struct eight w, struct fixed x, __m256 sum[MOST_ROWS])
{
    for (long at = 0; at < w.columns / BLOCK; at++) {
        const uint8_t *row = w.row + at * size_of(Q8_0);
        __m256 scale = take_scales(Q8_0, row, w.step).scale;
        words codes[GROUPS];
        fetch(w, at * size_of(Q8_0), size_of(Q8_0));
        across(row + codes_at(Q8_0), w.step, codes);
        across(row + codes_at(Q8_0) + 16, w.step, codes + 4);
        for (int group = 0; group < GROUPS; group++)
            codes[group] = wide_codes(codes[group]);
        for (long r = 0; r < x.rows; r++) {
            const struct inputs *inputs = block_of(x, r, at);
            struct wide sums = begin_wide(inputs);
#pragma GCC unroll 8
            for (int group = 0; group < GROUPS; group++)
                add_wide(codes[group], group, inputs, &sums);
            sum[r] = add_wide_sums(sum[r], &sums, scale, inputs);
        }
    }
}

INLINE __m256 sum_of_lone(enum kind kind, struct eight w, struct fixed x)
{
    return kind == Q8_0 ? wide_lone(w, x) : narrow_lone(kind, w, x);
}

INLINE void sum_several(enum kind kind, struct eight w, struct fixed x, __m256 sum[MOST_ROWS])
{
    if (kind == Q8_0)
        wide_several(w, x, sum);
    else
        narrow_several(kind, w, x, sum);
}

#include "fixed_outputs.h"

OUTPUTS(Q4_0)
OUTPUTS(Q4_1)
OUTPUTS(Q5_0)
OUTPUTS(Q5_1)
OUTPUTS(Q8_0)

void SET(fixed_outputs)(const struct part *part, long first, long count, struct fixed x, float *out, long stride)
{
    switch (part->kind) {
#define CASE(kind) case kind: outputs_of_##kind(part, first, count, x, out, stride); break
    CASE(Q4_0); CASE(Q4_1); CASE(Q5_0); CASE(Q5_1); CASE(Q8_0);
#undef CASE
    default: SET(fixed_super_outputs)(part, first, count, x, out, stride);
    }
}

#else

/* Without wide registers it gains nothing. */
enum form SET(form_of)(enum kind kind) { (void)kind; return UNFIXED; }
void SET(fixed_outputs)(const struct part *part, long first, long count, struct fixed x, float *out, long stride)
{
    (void)part, (void)first, (void)count, (void)x, (void)out, (void)stride;
}

#endif
