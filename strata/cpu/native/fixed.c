/* See fixed.h.  Compiled for every instruction set; those with wide registers have it, and share it: 256 bits are enough
 * to keep up with memory.
 *
 * Eight outputs are computed at a time, each in a lane of 32 bits: four of its codes, which are neighbours, and what
 * becomes of them.  So the codes of eight blocks are turned across once, and no sums are.
 */
#include "fixed.h"

#include "blocks.h"
#include "fixed_inputs.h"

#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)

#define EIGHT 8
#define GROUPS (BLOCK / 4)
#define MOST_ROWS 16

typedef __m256i words;

/* Compilers put off what can wait until there are no registers left. */
#define NOW(a) __asm__("" : "+x"(a))

enum form SET(form_of)(enum kind kind)
{
    switch (kind) {
    case Q4_0: case Q4_1: return FOUR_BITS;
    case Q5_0: case Q5_1: return FIVE_BITS;
    case Q8_0: return EIGHT_BITS;
    default: return UNFIXED;
    }
}

INLINE enum form form_of(enum kind kind) { return SET(form_of)(kind); }

/* Where the fifth bits of a block begin, and its codes; and all of it. */
INLINE long fifths_at(enum kind kind) { return kind == Q5_0 ? 2 : 4; }
INLINE long codes_at(enum kind kind) { return kind == Q4_1 ? 4 : kind == Q5_0 ? 6 : kind == Q5_1 ? 8 : 2; }
INLINE long size_of(enum kind kind) { return codes_at(kind) + (kind == Q8_0 ? 32 : 16); }
INLINE int has_fifths(enum kind kind) { return kind == Q5_0 || kind == Q5_1; }
INLINE int has_least(enum kind kind) { return kind == Q4_1 || kind == Q5_1; }

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

/* -- sums of a block --------------------------------------------------------------------------------------------- */

INLINE words four(const int8_t *at)
{
    int32_t all;
    memcpy(&all, at, sizeof all);
    return _mm256_set1_epi32(all);
}

/* Sums of 16 bits with each part of the inputs; those with `low` are two where they would not fit. */
struct parts {
    words high, middle, low[2];
};

INLINE void add_product(words codes, const int8_t *x, words *sum)
{
    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(codes, four(x)));
}

/* In 16 bits fit 16 products of 15 and 128, of 31 and 64, or 8 of 31 and 128. */
INLINE void add_group(enum kind kind, words first, words second, int group, const struct inputs *x, struct parts *sums)
{
    words *low = &sums->low[has_fifths(kind) ? group / 2 : 0];
    add_product(first, x->high + 4 * group, &sums->high);
    add_product(first, x->middle + 4 * group, &sums->middle);
    add_product(first, x->low + 4 * group, low);
    add_product(second, x->high + 4 * group + 16, &sums->high);
    add_product(second, x->middle + 4 * group + 16, &sums->middle);
    add_product(second, x->low + 4 * group + 16, low);
    NOW(sums->high);
    NOW(sums->middle);
    NOW(*low);
}

INLINE words times(words sums, int factor) { return _mm256_madd_epi16(sums, _mm256_set1_epi16((short)factor)); }

INLINE words whole_sums(enum kind kind, const struct parts *sums)
{
    words out = _mm256_add_epi32(times(sums->high, -(1 << HIGH_AT)), times(sums->middle, 1 << MIDDLE_AT));
    out = _mm256_add_epi32(out, times(sums->low[0], 1));
    return has_fifths(kind) ? _mm256_add_epi32(out, times(sums->low[1], 1)) : out;
}

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

/* Eight rows of weights, `step` bytes apart. */
struct eight {
    const uint8_t *row;
    long step, blocks;
};

/* Asks early for what eight rows of weights will need for a block. */
INLINE void fetch(enum kind kind, struct eight w, long at)
{
    const uint8_t *ahead = w.row + 16 * w.step + at * 8 * size_of(kind);
    for (long line = 0; line < 8 * size_of(kind); line += 64)
        __builtin_prefetch(ahead + line);
}

INLINE __m256 narrow_lone(enum kind kind, struct eight w, struct fixed x)
{
    __m256 sum = _mm256_setzero_ps();
    for (long at = 0; at < w.blocks; at++) {
        const uint8_t *row = w.row + at * size_of(kind);
        const struct inputs *inputs = block_of(x, 0, at);
        struct parts parts = {0};
        struct packed packed;
        fetch(kind, w, at);
        take_packed(kind, row, w.step, &packed);
#pragma GCC unroll 4
        for (int group = 0; group < 4; group++) {
            words first, second;
            take_codes(kind, &packed, group, &first, &second);
            add_group(kind, first, second, group, inputs, &parts);
        }
        sum = add_sums(sum, whole_sums(kind, &parts), take_scales(kind, row, w.step), inputs);
    }
    return sum;
}

/* The same for several rows: codes are taken out of their block once. */
INLINE void narrow_several(enum kind kind, struct eight w, struct fixed x, __m256 sum[MOST_ROWS])
{
    for (long at = 0; at < w.blocks; at++) {
        const uint8_t *row = w.row + at * size_of(kind);
        struct scales scales = take_scales(kind, row, w.step);
        struct packed packed;
        words codes[GROUPS];
        fetch(kind, w, at);
        take_packed(kind, row, w.step, &packed);
        for (int group = 0; group < 4; group++)
            take_codes(kind, &packed, group, &codes[group], &codes[group + 4]);
        for (long r = 0; r < x.rows; r++) {
            const struct inputs *inputs = block_of(x, r, at);
            struct parts parts = {0};
#pragma GCC unroll 4
            for (int group = 0; group < 4; group++)
                add_group(kind, codes[group], codes[group + 4], group, inputs, &parts);
            sum[r] = add_sums(sum[r], whole_sums(kind, &parts), scales, inputs);
        }
    }
}

INLINE __m256 wide_lone(struct eight w, struct fixed x)
{
    __m256 sum = _mm256_setzero_ps();
    for (long at = 0; at < w.blocks; at++) {
        const uint8_t *row = w.row + at * size_of(Q8_0);
        const struct inputs *inputs = block_of(x, 0, at);
        struct wide sums = begin_wide(inputs);
        fetch(Q8_0, w, at);
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
    for (long at = 0; at < w.blocks; at++) {
        const uint8_t *row = w.row + at * size_of(Q8_0);
        __m256 scale = take_scales(Q8_0, row, w.step).scale;
        words codes[GROUPS];
        fetch(Q8_0, w, at);
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

INLINE void finish(__m256 sum, const struct unit *unit, float *out, int real)
{
    float all[EIGHT];
    sum = _mm256_mul_ps(_mm256_mul_ps(sum, _mm256_set1_ps(unit->first)), _mm256_set1_ps(unit->second));
    _mm256_storeu_ps(real == EIGHT ? out : all, sum);
    if (real < EIGHT)
        memcpy(out, all, real * sizeof *out);
}

/* Of up to MOST_ROWS rows; the first `real` outputs are wanted. */
INLINE void few(enum kind kind, struct eight w, struct fixed x, float *out, long stride, int real)
{
    __m256 sum[MOST_ROWS];
    for (long r = 0; r < x.rows; r++)
        sum[r] = _mm256_setzero_ps();
    if (form_of(kind) == EIGHT_BITS)
        wide_several(w, x, sum);
    else
        narrow_several(kind, w, x, sum);
    for (long r = 0; r < x.rows; r++)
        finish(sum[r], row_of(x, r), out + r * stride, real);
}

INLINE void lone(enum kind kind, struct eight w, struct fixed x, float *out, int real)
{
    __m256 sum = _mm256_setzero_ps();
    if (form_of(kind) == EIGHT_BITS)
        sum = wide_lone(w, x);
    else
        sum = narrow_lone(kind, w, x);
    finish(sum, row_of(x, 0), out, real);
}

/* -- a range of outputs ------------------------------------------------------------------------------------------ */

INLINE void eight(enum kind kind, struct eight w, struct fixed x, float *out, long stride, int real)
{
    for (long r = 0; r < x.rows; r += MOST_ROWS) {
        struct fixed some = {x.at + r * x.row_bytes, x.rows - r < MOST_ROWS ? x.rows - r : MOST_ROWS, x.row_bytes};
        if (some.rows == 1)
            lone(kind, w, some, out + r * stride, real);
        else
            few(kind, w, some, out + r * stride, stride, real);
    }
}

INLINE void outputs_of(enum kind kind, const struct part *part, long first, long count, struct fixed x, float *out,
                       long stride)
{
    struct eight w = {part->data + first * part->row_bytes, part->row_bytes, part->columns / BLOCK};
    for (; count >= EIGHT; count -= EIGHT, w.row += EIGHT * w.step, out += EIGHT)
        eight(kind, w, x, out, stride, EIGHT);
    for (w.step = 0; count > 0; count--, w.row += part->row_bytes, out++)
        eight(kind, w, x, out, stride, 1);
}

void SET(fixed_outputs)(const struct part *part, long first, long count, struct fixed x, float *out, long stride)
{
    switch (part->kind) {
#define CASE(kind) case kind: outputs_of(kind, part, first, count, x, out, stride); break
    CASE(Q4_0); CASE(Q4_1); CASE(Q5_0); CASE(Q5_1); CASE(Q8_0);
#undef CASE
    default: break;
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
