/* See fixed.h.  Compiled for every instruction set; those with wide registers have it, and share it: 256 bits are enough
 * to keep up with memory.
 *
 * An input q is 256 * high + low.  A code is multiplied with `high` as a number of 16 bits, moved up by a byte where it
 * lies, and with `low` as a byte, so both make sums of the same scale.  Eight outputs are computed at a time, two of them
 * in each register, and their sums end up side by side.
 */
#include "fixed.h"

#include "blocks.h"

#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)

#define EIGHT 8
#define AHEAD 4096
#define LEAST_EXPONENT -60 /* of a block, beside its row's largest: what is smaller than that makes no difference */

typedef __m256i words;

/* A block of inputs: of its elements 0 - 15 the even and the odd ones, of 16 - 31 likewise, then the low bytes of all. */
struct inputs {
    int16_t high[4][8];
    int8_t low[2][16];
    float step, sum; /* what 1 stands for; the sum of all, in units of the row */
    float apart[6];
};

/* Before a row's blocks: its unit, a power of two, as two factors. */
struct unit {
    float first, second;
    float apart[6];
};

enum form SET(form_of)(enum kind kind)
{
    switch (kind) {
    case Q4_0: case Q4_1: return FOUR_BITS;
    case Q5_0: case Q5_1: return FIVE_BITS;
    default: return UNFIXED;
    }
}

long SET(fixed_row_bytes)(long columns)
{
    return sizeof(struct unit) + columns / BLOCK * (long)sizeof(struct inputs);
}

/* -- inputs ------------------------------------------------------------------------------------------------------ */

/* Below 2^this, so that 32 products with the largest code stay below 2^31. */
static int bits_of(enum form form) { return form == FOUR_BITS ? 22 : 21; }

INLINE float power(int exponent)
{
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* The largest of eight whole numbers. */
INLINE int largest_of(words a)
{
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

INLINE int sum_of(words a)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* The bits of a float without its sign are ordered as it is, with infinity and NaN above all. */
INLINE words size_bits(__m256 a) { return _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff)); }

static float largest_size(const float *row, long columns)
{
    words most = _mm256_setzero_si256();
    for (long at = 0; at < columns; at += 8)
        most = _mm256_max_epi32(most, size_bits(_mm256_loadu_ps(row + at)));
    int bits = largest_of(most);
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* Sixteen whole numbers of 16 bits in two registers: the even ones, then the odd ones. */
INLINE words evens_and_odds(words a, words b)
{
    const words apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13,
                                         2, 3, 6, 7, 10, 11, 14, 15);
    words order = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(order, apart), 0xd8);
}

static void fix_block(const float *x, float first, float second, int bits, struct inputs *out)
{
    __m256 units[4];
    words most = _mm256_setzero_si256(), sum = most, high[4], low[4];
    for (int i = 0; i < 4; i++) {
        units[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(first)), _mm256_set1_ps(second));
        most = _mm256_max_epi32(most, size_bits(units[i]));
    }
    int exponent = (largest_of(most) >> 23) - 126; /* all of them are below 2^exponent */
    exponent = exponent < LEAST_EXPONENT ? LEAST_EXPONENT : exponent;
    for (int i = 0; i < 4; i++) {
        words whole = _mm256_cvtps_epi32(_mm256_mul_ps(units[i], _mm256_set1_ps(power(bits - exponent))));
        sum = _mm256_add_epi32(sum, whole);
        high[i] = _mm256_srai_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(128)), 8);
        low[i] = _mm256_sub_epi32(whole, _mm256_slli_epi32(high[i], 8));
    }
    _mm256_storeu_si256((words *)out->high[0], evens_and_odds(high[0], high[1]));
    _mm256_storeu_si256((words *)out->high[2], evens_and_odds(high[2], high[3]));
    words bytes = _mm256_packs_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((words *)out->low[0], bytes);
    out->step = power(exponent - bits);
    out->sum = (float)sum_of(sum) * out->step;
}

void SET(fix_row)(enum form form, const float *row, long columns, uint8_t *out)
{
    struct unit *unit = (struct unit *)out;
    struct inputs *inputs = (struct inputs *)(unit + 1);
    int exponent = 0, finite = 1;
    float largest = largest_size(row, columns);
    if (largest <= 3.40282347e38f)
        frexpf(largest, &exponent);
    else
        finite = 0; /* nor is any output */
    *unit = (struct unit){finite ? power(exponent / 2) : NAN, power(exponent - exponent / 2), {0}};
    for (long at = 0; at < columns / BLOCK; at++)
        if (finite)
            fix_block(row + BLOCK * at, power(-(exponent / 2)), power(exponent / 2 - exponent), bits_of(form), &inputs[at]);
        else
            memset(&inputs[at], 0, sizeof *inputs);
}

/* -- codes of two outputs ---------------------------------------------------------------------------------------- */

/* Of both outputs, one in each half: elements 0 - 15 and 16 - 31 as bytes, and moved up a byte: even and odd ones of the
 * first, of the others. */
struct codes_of_two {
    words bytes[2], moved[4];
};

INLINE words two(const uint8_t *first, const uint8_t *second)
{
    words low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first));
    return _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)second), 1);
}

/* 16 where the element's bit is set, in the 16 bits that begin at byte `from` of each. */
INLINE words fifth_of_two(words bits, int from)
{
    const __m128i which = _mm_set_epi64x(0x0101010101010101, 0);
    const words bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    words place = _mm256_add_epi8(_mm256_broadcastsi128_si256(which), _mm256_set1_epi8((char)from));
    words spread = _mm256_and_si256(_mm256_shuffle_epi8(bits, place), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(spread, bit), _mm256_set1_epi8(16));
}

INLINE __m128i word_at(const uint8_t *at)
{
    int32_t word;
    memcpy(&word, at, sizeof word);
    return _mm_cvtsi32_si128(word);
}

/* Bytes of a block before its codes; where the fifth bits begin, if it has some; and all of it. */
INLINE long header(enum kind kind) { return kind == Q4_0 ? 2 : kind == Q4_1 ? 4 : kind == Q5_0 ? 6 : 8; }
INLINE int has_fifth(enum kind kind) { return kind == Q5_0 || kind == Q5_1; }
INLINE int has_least(enum kind kind) { return kind == Q4_1 || kind == Q5_1; }
INLINE long size_of(enum kind kind) { return header(kind) + 16; }

INLINE void take_codes(enum kind kind, const uint8_t *first, const uint8_t *second, struct codes_of_two *out)
{
    const words nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi16((short)0xff00);
    words raw = two(first + header(kind), second + header(kind));
    out->bytes[0] = _mm256_and_si256(raw, nibble);
    out->bytes[1] = _mm256_and_si256(_mm256_srli_epi16(raw, 4), nibble);
    if (has_fifth(kind)) {
        long at = header(kind) - 4;
        words bits = _mm256_set_m128i(word_at(second + at), word_at(first + at));
        out->bytes[0] = _mm256_or_si256(out->bytes[0], fifth_of_two(bits, 0));
        out->bytes[1] = _mm256_or_si256(out->bytes[1], fifth_of_two(bits, 2));
    }
    for (int half = 0; half < 2; half++) {
        out->moved[2 * half] = _mm256_slli_epi16(out->bytes[half], 8);
        out->moved[2 * half + 1] = _mm256_and_si256(out->bytes[half], upper);
    }
}

/* -- a block of eight outputs ------------------------------------------------------------------------------------ */

/* Outputs in the order in which a pair of registers gives them: the first and the second of each pair. */
static const int firsts[4] = {0, 1, 4, 5}, seconds[4] = {2, 3, 6, 7};

INLINE __m256 in_order(__m256 a) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8)); }

INLINE words both_halves(const void *at) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)at)); }

/* Four sums for each of two outputs. */
INLINE words sums_of_two(const struct codes_of_two *codes, const struct inputs *x)
{
    words a = _mm256_add_epi32(_mm256_madd_epi16(codes->moved[0], both_halves(x->high[0])),
                               _mm256_madd_epi16(codes->moved[1], both_halves(x->high[1])));
    words b = _mm256_add_epi32(_mm256_madd_epi16(codes->moved[2], both_halves(x->high[2])),
                               _mm256_madd_epi16(codes->moved[3], both_halves(x->high[3])));
    /* Below 2 * 2 * 31 * 128. */
    words low = _mm256_add_epi16(_mm256_maddubs_epi16(codes->bytes[0], both_halves(x->low[0])),
                                 _mm256_maddubs_epi16(codes->bytes[1], both_halves(x->low[1])));
    return _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
}

/* The whole sums of four pairs, each output's in its lane. */
INLINE words whole_sums(const words a[4])
{
    words left = _mm256_add_epi32(_mm256_unpacklo_epi32(a[0], a[1]), _mm256_unpackhi_epi32(a[0], a[1]));
    words right = _mm256_add_epi32(_mm256_unpacklo_epi32(a[2], a[3]), _mm256_unpackhi_epi32(a[2], a[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(left, right), _mm256_unpackhi_epi64(left, right));
}

/* Scales, and what codes of 0 stand for, by lane. */
struct scales {
    __m256 scale, least;
};

INLINE __m256 four_pairs(const uint8_t *row, long step)
{
    __m128i left = _mm_unpacklo_epi32(word_at(row), word_at(row + step));
    __m128i right = _mm_unpacklo_epi32(word_at(row + 2 * step), word_at(row + 3 * step));
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(left, right));
}

INLINE struct scales take_scales(enum kind kind, const uint8_t *row, long step)
{
    __m256 left = four_pairs(row, step), right = four_pairs(row + 4 * step, step);
    __m256 scale = _mm256_shuffle_ps(left, right, 0x88);
    if (has_least(kind))
        return (struct scales){scale, _mm256_shuffle_ps(left, right, 0xdd)};
    return (struct scales){scale, _mm256_mul_ps(scale, _mm256_set1_ps(has_fifth(kind) ? -16.0f : -8.0f))};
}

INLINE __m256 add_sums(__m256 sum, words whole, struct scales scales, const struct inputs *x)
{
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), _mm256_mul_ps(scales.scale, _mm256_set1_ps(x->step)), sum);
    return _mm256_fmadd_ps(scales.least, _mm256_set1_ps(x->sum), sum);
}

INLINE void finish(__m256 sum, const struct unit *unit, float *out, int real)
{
    float all[EIGHT];
    sum = _mm256_mul_ps(_mm256_mul_ps(sum, _mm256_set1_ps(unit->first)), _mm256_set1_ps(unit->second));
    _mm256_storeu_ps(all, in_order(sum));
    if (real == EIGHT)
        _mm256_storeu_ps(out, in_order(sum));
    else
        memcpy(out, all, real * sizeof *out);
}

INLINE const struct unit *row_of(struct fixed x, long row) { return (const struct unit *)(x.at + row * x.row_bytes); }

INLINE const struct inputs *block_of(struct fixed x, long row, long at)
{
    return (const struct inputs *)(row_of(x, row) + 1) + at;
}

/* Asks early for what eight rows of weights will need for a block. */
INLINE void fetch(const uint8_t *row, long bytes)
{
    for (long at = 0; at < bytes; at += 64)
        __builtin_prefetch(row + at);
}

/* Eight outputs of one row, `step` bytes apart; the first `real` are wanted. */
INLINE void lone_eight(enum kind kind, const uint8_t *row, long step, long blocks, struct fixed x, float *out, int real)
{
    __m256 sum = _mm256_setzero_ps();
    for (long at = 0; at < blocks; at++, row += size_of(kind)) {
        const struct inputs *inputs = block_of(x, 0, at);
        words sums[4];
        fetch(row + 16 * step + at * 7 * size_of(kind), 8 * size_of(kind));
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++) {
            struct codes_of_two codes;
            take_codes(kind, row + firsts[pair] * step, row + seconds[pair] * step, &codes);
            sums[pair] = sums_of_two(&codes, inputs);
        }
        sum = add_sums(sum, whole_sums(sums), take_scales(kind, row, step), inputs);
    }
    finish(sum, row_of(x, 0), out, real);
}

#define MOST_ROWS 16

/* The same for up to MOST_ROWS rows: codes are taken out of their block once. */
INLINE void several_eight(enum kind kind, const uint8_t *row, long step, long blocks, struct fixed x, float *out,
                          long stride, int real)
{
    __m256 sum[MOST_ROWS];
    for (long r = 0; r < x.rows; r++)
        sum[r] = _mm256_setzero_ps();
    for (long at = 0; at < blocks; at++, row += size_of(kind)) {
        struct codes_of_two codes[4];
        struct scales scales = take_scales(kind, row, step);
        fetch(row + 16 * step + at * 7 * size_of(kind), 8 * size_of(kind));
        for (int pair = 0; pair < 4; pair++)
            take_codes(kind, row + firsts[pair] * step, row + seconds[pair] * step, &codes[pair]);
        for (long r = 0; r < x.rows; r++) {
            const struct inputs *inputs = block_of(x, r, at);
            words sums[4];
#pragma GCC unroll 4
            for (int pair = 0; pair < 4; pair++)
                sums[pair] = sums_of_two(&codes[pair], inputs);
            sum[r] = add_sums(sum[r], whole_sums(sums), scales, inputs);
        }
    }
    for (long r = 0; r < x.rows; r++)
        finish(sum[r], row_of(x, r), out + r * stride, real);
}

/* -- a range of outputs ------------------------------------------------------------------------------------------ */

INLINE void eight(enum kind kind, const uint8_t *row, long step, long blocks, struct fixed x, float *out, long stride,
                  int real)
{
    for (long r = 0; r < x.rows; r += MOST_ROWS) {
        struct fixed some = {x.at + r * x.row_bytes, x.rows - r < MOST_ROWS ? x.rows - r : MOST_ROWS, x.row_bytes};
        if (some.rows == 1)
            lone_eight(kind, row, step, blocks, some, out + r * stride, real);
        else
            several_eight(kind, row, step, blocks, some, out + r * stride, stride, real);
    }
}

INLINE void outputs_of(enum kind kind, const struct part *part, long first, long count, struct fixed x, float *out,
                       long stride)
{
    const uint8_t *row = part->data + first * part->row_bytes;
    const long blocks = part->columns / BLOCK, step = part->row_bytes;
    for (long at = 0; at < count; at += EIGHT)
        if (count - at >= EIGHT)
            eight(kind, row + at * step, step, blocks, x, out + at, stride, EIGHT);
        else
            for (; at < count; at++)
                eight(kind, row + at * step, 0, blocks, x, out + at, stride, 1);
}

void SET(fixed_outputs)(const struct part *part, long first, long count, struct fixed x, float *out, long stride)
{
    switch (part->kind) {
#define CASE(kind) case kind: outputs_of(kind, part, first, count, x, out, stride); break
    CASE(Q4_0); CASE(Q4_1); CASE(Q5_0); CASE(Q5_1);
#undef CASE
    default: break;
    }
}

#else

/* Without wide registers it gains nothing. */
enum form SET(form_of)(enum kind kind) { (void)kind; return UNFIXED; }
long SET(fixed_row_bytes)(long columns) { (void)columns; return 0; }
void SET(fix_row)(enum form form, const float *row, long columns, uint8_t *out) { (void)form, (void)row, (void)columns, (void)out; }
void SET(fixed_outputs)(const struct part *part, long first, long count, struct fixed x, float *out, long stride)
{
    (void)part, (void)first, (void)count, (void)x, (void)out, (void)stride;
}

#endif
