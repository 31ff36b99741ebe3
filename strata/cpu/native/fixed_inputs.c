/* Rows of inputs made into whole numbers; see fixed.h.  Compiled for every instruction set; those with wide registers have
 * it, and share it.  Knows no weights.
 */
#include "fixed_inputs.h"

#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)

#define LEAST_EXPONENT -60 /* of a block, beside its row's largest: what is smaller than that makes no difference */

typedef __m256i words;

/* How inputs of a form are cut: all are below 2^bits, or are it. */
struct cut {
    int bits, high_at, middle_at;
};

/* 32 products with the largest code stay below 2^31, and where the codes have 8 bits, those with each part of an input. */
static struct cut cut_of(enum form form)
{
    switch (form) {
    case FOUR_BITS: return (struct cut){22, HIGH_AT, MIDDLE_AT};
    case FIVE_BITS: return (struct cut){21, HIGH_AT, MIDDLE_AT};
    default: return (struct cut){20, WIDE_HIGH_AT, WIDE_MIDDLE_AT};
    }
}

long SET(fixed_row_bytes)(long columns)
{
    return sizeof(struct unit) + columns / BLOCK * (long)sizeof(struct inputs);
}

INLINE float power(int exponent)
{
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* -- eight whole numbers ----------------------------------------------------------------------------------------- */

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

INLINE words right(words a, int bits) { return _mm256_sra_epi32(a, _mm_cvtsi32_si128(bits)); }
INLINE words left(words a, int bits) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(bits)); }

/* a / 2^bits, to the nearest. */
INLINE words nearest(words a, int bits) { return right(_mm256_add_epi32(a, _mm256_set1_epi32(1 << (bits - 1))), bits); }

/* The bits of a float without its sign are ordered as it is, with infinity and NaN above all. */
INLINE words size_bits(__m256 a) { return _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff)); }

INLINE void store_bytes(const words a[4], int8_t out[BLOCK])
{
    words bytes = _mm256_packs_epi16(_mm256_packs_epi32(a[0], a[1]), _mm256_packs_epi32(a[2], a[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((words *)out, bytes);
}

/* -- a row ------------------------------------------------------------------------------------------------------- */

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

INLINE void fix_block(const float *x, float first, float second, struct cut cut, struct inputs *out)
{
    __m256 units[4];
    words most = _mm256_setzero_si256(), high_sum[2] = {most, most}, rest_sum[2] = {most, most}, high[4], middle[4], low[4];
    for (int i = 0; i < 4; i++) {
        units[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(first)), _mm256_set1_ps(second));
        most = _mm256_max_epi32(most, size_bits(units[i]));
    }
    int exponent = (largest_of(most) >> 23) - 126; /* all of them are below 2^exponent */
    exponent = exponent < LEAST_EXPONENT ? LEAST_EXPONENT : exponent;
    for (int i = 0; i < 4; i++) {
        words whole = _mm256_cvtps_epi32(_mm256_mul_ps(units[i], _mm256_set1_ps(power(cut.bits - exponent))));
        high[i] = _mm256_sub_epi32(_mm256_setzero_si256(), nearest(whole, cut.high_at));
        high[i] = _mm256_min_epi32(high[i], _mm256_set1_epi32(INT8_MAX)); /* 128 becomes 127, and the rest larger */
        words rest = _mm256_add_epi32(whole, left(high[i], cut.high_at));
        middle[i] = nearest(rest, cut.middle_at);
        low[i] = _mm256_sub_epi32(rest, left(middle[i], cut.middle_at));
        high_sum[i / 2] = _mm256_add_epi32(high_sum[i / 2], high[i]);
        rest_sum[i / 2] = _mm256_add_epi32(rest_sum[i / 2], rest);
    }
    store_bytes(high, out->high);
    store_bytes(middle, out->middle);
    store_bytes(low, out->low);
    int high_all = 0, rest_all = 0;
    for (int half = 0; half < 2; half++) {
        int highs = sum_of(high_sum[half]), rests = sum_of(rest_sum[half]);
        out->half_begin[half] = (int32_t)(-32u * (uint32_t)(rests - highs * (1 << cut.high_at)));
        high_all += highs;
        rest_all += rests;
    }
    out->step = power(exponent - cut.bits);
    out->sum = (float)(rest_all - high_all * (1 << cut.high_at)) * out->step;
    out->high_begin = -128 * high_all;
    out->rest_begin = -128 * rest_all;
}

void SET(fix_row)(enum form form, const float *row, long columns, uint8_t *out)
{
    struct unit *unit = (struct unit *)out;
    struct inputs *inputs = (struct inputs *)(unit + 1);
    const struct cut cut = cut_of(form);
    int exponent = 0, finite = 1;
    float largest = largest_size(row, columns);
    if (largest <= 3.40282347e38f)
        frexpf(largest, &exponent);
    else
        finite = 0; /* nor is any output */
    *unit = (struct unit){finite ? power(exponent / 2) : NAN, power(exponent - exponent / 2), {0}};
    for (long at = 0; at < columns / BLOCK; at++)
        if (finite)
            fix_block(row + BLOCK * at, power(-(exponent / 2)), power(exponent / 2 - exponent), cut, &inputs[at]);
        else
            memset(&inputs[at], 0, sizeof *inputs);
}

#else

/* Without wide registers it gains nothing. */
long SET(fixed_row_bytes)(long columns) { (void)columns; return 0; }
void SET(fix_row)(enum form form, const float *row, long columns, uint8_t *out) { (void)form, (void)row, (void)columns, (void)out; }

#endif
