/* The inner loop of reading: some outputs of LANES rows, summed over the inputs one after the other.
 *
 * A row is a lane, so its sums are of its own numbers, in the order of inputs, whoever the other lanes are and however
 * outputs and inputs are cut into pieces.
 */
#ifndef STRATA_PRODUCT_H
#define STRATA_PRODUCT_H

#include "lanes.h"

/* Rows side by side: two vectors of them. */
#define LANES (2 * W)

/* Outputs that are summed at a time: as many as the registers hold, beside what they are made of.  Per output and input
 * there are two products and one load; OpenBLAS's kernel for 64 rows did 75 GFLOP/s on a Zen 3 core, this one does 102
 * of the 111 that the core can. */
#if defined(KERNELS_AVX512)
#define SUMS 12
#elif defined(KERNELS_AVX2)
#define SUMS 6
#else
#define SUMS 2
#endif

#define LATE_SUMS 2 /* of a short loop with more to do */

/* `yes` in lanes from `first` on, `no` before it. */
INLINE lanes v_from(int first, lanes yes, lanes no)
{
#if defined(KERNELS_AVX512)
    return _mm512_mask_blend_ps((__mmask16)(first < 0 ? 0xffff : first > 15 ? 0 : 0xffff << first), no, yes);
#elif defined(KERNELS_AVX2)
    const __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(_mm256_cmpgt_epi32(place, _mm256_set1_epi32(first - 1))));
#else
    EACH(i >= first ? yes.at[i] : no.at[i]);
#endif
}

/* c[n][lane] += sum over k of w[n * across + k * along] * x[k][lane], for n < count and k < depth.
 * If `fresh`, from zero instead of what `c` holds.  If `late`, input k is for lanes first + k and later ones only. */
INLINE void sums(const int count, const int late, int first, const float *w, long across, long along, long depth,
                 const float *x, float *c, int fresh)
{
    lanes low[SUMS], high[SUMS];
    /* Three outputs a pointer: an address can be base + offset and base + 2 * offset. */
    const float *from[(SUMS + 2) / 3];
#pragma GCC unroll 12
    for (int n = 0; n < count; n++) {
        low[n] = fresh ? v_zero() : v_load(c + n * LANES);
        high[n] = fresh ? v_zero() : v_load(c + n * LANES + W);
    }
#pragma GCC unroll 4
    for (int p = 0; p < (count + 2) / 3; p++)
        from[p] = w + 3 * p * across;
    for (long k = 0; k < depth; k++) {
        const lanes left = v_load(x), right = v_load(x + W);
#pragma GCC unroll 12
        for (int n = 0; n < count; n++) {
            const lanes weight = v_all(from[n / 3][n % 3 * across]);
            const lanes more_low = v_fma(weight, left, low[n]), more_high = v_fma(weight, right, high[n]);
            low[n] = late ? v_from(first + (int)k, more_low, low[n]) : more_low;
            high[n] = late ? v_from(first + (int)k - W, more_high, high[n]) : more_high;
        }
#pragma GCC unroll 4
        for (int p = 0; p < (count + 2) / 3; p++)
            from[p] += along;
        x += LANES;
    }
#pragma GCC unroll 12
    for (int n = 0; n < count; n++) {
        v_store(c + n * LANES, low[n]);
        v_store(c + n * LANES + W, high[n]);
    }
}

/* The same for any number of outputs. */
static inline void product(const float *w, long across, long along, long outputs, long depth, const float *x, float *c,
                           int fresh)
{
    long n = 0;
    for (; n + SUMS <= outputs; n += SUMS)
        sums(SUMS, 0, 0, w + n * across, across, along, depth, x, c + n * LANES, fresh);
    w += n * across;
    c += n * LANES;
    switch (outputs - n) {
#define LAST(count)                                                                                                    \
    case count: sums(count, 0, 0, w, across, along, depth, x, c, fresh); break;
#if SUMS > 6
        LAST(11) LAST(10) LAST(9) LAST(8) LAST(7) LAST(6)
#endif
#if SUMS > 2
        LAST(5) LAST(4) LAST(3) LAST(2)
#endif
        LAST(1)
#undef LAST
    }
}

/* c[n][lane] += sum over k of w[k][n] * x[k][lane], of w's rows `outputs` long; row k is for lanes first + k and later
 * ones only. */
static inline void late_product(const float *w, int first, long outputs, long depth, const float *x, float *c)
{
    long n = 0;
    for (; n + LATE_SUMS <= outputs; n += LATE_SUMS)
        sums(LATE_SUMS, 1, first, w + n, 1, outputs, depth, x, c + n * LANES, 0);
    for (; n < outputs; n++)
        sums(1, 1, first, w + n, 1, outputs, depth, x, c + n * LANES, 0);
}

/* -- between rows one below the other and rows side by side ------------------------------------------------------ */

/* to[j][i] = from[i][j], or += if `add`, for i, j < 8. */
INLINE void transpose_eight(const float *from, long from_stride, float *to, long to_stride, const int add)
{
#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(from + i * from_stride);
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
            a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xee);
        }
    for (int j = 0; j < 4; j++) {
        b[j] = _mm256_permute2f128_ps(a[j], a[j + 4], 0x20);
        b[j + 4] = _mm256_permute2f128_ps(a[j], a[j + 4], 0x31);
    }
    for (int j = 0; j < 8; j++) {
        float *at = to + j * to_stride;
        _mm256_storeu_ps(at, add ? _mm256_add_ps(_mm256_loadu_ps(at), b[j]) : b[j]);
    }
#else
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            to[j * to_stride + i] = from[i * from_stride + j] + (add ? to[j * to_stride + i] : 0.0f);
#endif
}

/* The same for any numbers of rows and columns of `from`. */
INLINE void transpose(const float *from, long rows, long columns, long from_stride, float *to, long to_stride, const int add)
{
    long whole_rows = rows & ~7L, whole_columns = columns & ~7L;
    for (long i = 0; i < whole_rows; i += 8)
        for (long j = 0; j < whole_columns; j += 8)
            transpose_eight(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride, add);
    for (long i = 0; i < rows; i++)
        for (long j = i < whole_rows ? whole_columns : 0; j < columns; j++)
            to[j * to_stride + i] = add ? to[j * to_stride + i] + from[i * from_stride + j] : from[i * from_stride + j];
}

#endif
