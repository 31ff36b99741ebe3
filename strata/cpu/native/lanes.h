/* One vector of floats, as wide as the instruction set has it: W lanes of type `lanes`.
 *
 * Every function does the same to each lane, or adds them up in one fixed order, so what a lane holds never depends on
 * where it lies.  Products and sums are rounded as written here (the compiler may not contract them).
 */
#ifndef STRATA_LANES_H
#define STRATA_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline, unused))

#if defined(KERNELS_AVX512)
#include <immintrin.h>
#define W 16
typedef __m512 lanes;
INLINE lanes v_load(const float *at) { return _mm512_loadu_ps(at); }
INLINE void v_store(float *at, lanes a) { _mm512_storeu_ps(at, a); }
INLINE lanes v_all(float a) { return _mm512_set1_ps(a); }
INLINE lanes v_add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
INLINE lanes v_sub(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
INLINE lanes v_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
INLINE lanes v_div(lanes a, lanes b) { return _mm512_div_ps(a, b); }
INLINE lanes v_max(lanes a, lanes b) { return _mm512_max_ps(a, b); }
INLINE lanes v_min(lanes a, lanes b) { return _mm512_min_ps(a, b); }
INLINE lanes v_fma(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
INLINE lanes v_round(lanes a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* 2^a for whole a from -126 to 127. */
INLINE lanes v_power(lanes a)
{
    __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(whole, 23));
}
INLINE __m256 v_halves(lanes a) { return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)); }

#elif defined(KERNELS_AVX2)
#include <immintrin.h>
#define W 8
typedef __m256 lanes;
INLINE lanes v_load(const float *at) { return _mm256_loadu_ps(at); }
INLINE void v_store(float *at, lanes a) { _mm256_storeu_ps(at, a); }
INLINE lanes v_all(float a) { return _mm256_set1_ps(a); }
INLINE lanes v_add(lanes a, lanes b) { return _mm256_add_ps(a, b); }
INLINE lanes v_sub(lanes a, lanes b) { return _mm256_sub_ps(a, b); }
INLINE lanes v_mul(lanes a, lanes b) { return _mm256_mul_ps(a, b); }
INLINE lanes v_div(lanes a, lanes b) { return _mm256_div_ps(a, b); }
INLINE lanes v_max(lanes a, lanes b) { return _mm256_max_ps(a, b); }
INLINE lanes v_min(lanes a, lanes b) { return _mm256_min_ps(a, b); }
INLINE lanes v_fma(lanes a, lanes b, lanes c) { return _mm256_fmadd_ps(a, b, c); }
INLINE lanes v_round(lanes a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE lanes v_power(lanes a)
{
    __m256i whole = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(whole, 23));
}
INLINE __m256 v_halves(lanes a) { return a; }

#else
#define W 8
typedef struct { float at[W]; } lanes;
#define EACH(expression) lanes out; for (int i = 0; i < W; i++) out.at[i] = (expression); return out
INLINE lanes v_load(const float *at) { lanes out; memcpy(out.at, at, sizeof out.at); return out; }
INLINE void v_store(float *at, lanes a) { memcpy(at, a.at, sizeof a.at); }
INLINE lanes v_all(float a) { EACH(a); }
INLINE lanes v_add(lanes a, lanes b) { EACH(a.at[i] + b.at[i]); }
INLINE lanes v_sub(lanes a, lanes b) { EACH(a.at[i] - b.at[i]); }
INLINE lanes v_mul(lanes a, lanes b) { EACH(a.at[i] * b.at[i]); }
INLINE lanes v_div(lanes a, lanes b) { EACH(a.at[i] / b.at[i]); }
/* The second where one of them is no number, as the other sets do it. */
INLINE lanes v_max(lanes a, lanes b) { EACH(a.at[i] > b.at[i] ? a.at[i] : b.at[i]); }
INLINE lanes v_min(lanes a, lanes b) { EACH(a.at[i] < b.at[i] ? a.at[i] : b.at[i]); }
#ifdef __FP_FAST_FMAF
INLINE lanes v_fma(lanes a, lanes b, lanes c) { EACH(__builtin_fmaf(a.at[i], b.at[i], c.at[i])); }
#else
INLINE lanes v_fma(lanes a, lanes b, lanes c) { EACH(a.at[i] * b.at[i] + c.at[i]); }
#endif
/* Right for what is below 2^22: adding 1.5 * 2^23 leaves no room for a fraction. */
INLINE lanes v_round(lanes a) { EACH((a.at[i] + 12582912.0f) - 12582912.0f); }
INLINE lanes v_power(lanes a)
{
    lanes out;
    for (int i = 0; i < W; i++) {
        uint32_t bits = (uint32_t)((a.at[i] > -127.0f ? (int32_t)a.at[i] : -127) + 127) << 23;
        memcpy(&out.at[i], &bits, sizeof bits);
    }
    return out;
}
#endif

INLINE lanes v_zero(void) { return v_all(0.0f); }

/* The sums of four vectors.  Each: quarters of neighbours ((0+1) + (2+3)) + ((4+5) + (6+7)) of its halves' sum. */
INLINE void v_sums(const lanes a[4], float out[4])
{
#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)
    __m256 left = _mm256_hadd_ps(v_halves(a[0]), v_halves(a[1])), right = _mm256_hadd_ps(v_halves(a[2]), v_halves(a[3]));
    __m256 both = _mm256_hadd_ps(left, right);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
#else
    for (int i = 0; i < 4; i++) {
        const float *b = a[i].at;
        out[i] = ((b[0] + b[1]) + (b[2] + b[3])) + ((b[4] + b[5]) + (b[6] + b[7]));
    }
#endif
}

INLINE float v_sum(lanes a)
{
    float out[4];
    v_sums((lanes[4]){a, a, a, a}, out);
    return out[0];
}

INLINE float v_largest(lanes a)
{
    float all[W], largest;
    v_store(all, a);
    largest = all[0];
    for (int i = 1; i < W; i++)
        largest = all[i] > largest ? all[i] : largest;
    return largest;
}

/* e^a to 2 ulp: 2^n e^r with |r| <= ln(2) / 2 and a polynomial for e^r (Cephes expf).  Infinite above 88.7, 0 below
 * -104, NaN stays. */
INLINE lanes v_exp(lanes a)
{
    a = v_max(v_all(-104.0f), v_min(v_all(89.0f), a));
    lanes n = v_round(v_mul(a, v_all(1.44269504088896341f)));
    lanes r = v_fma(n, v_all(-0.693359375f), a);
    r = v_fma(n, v_all(2.12194440e-4f), r);
    lanes p = v_all(1.9875691500e-4f);
    p = v_fma(p, r, v_all(1.3981999507e-3f));
    p = v_fma(p, r, v_all(8.3334519073e-3f));
    p = v_fma(p, r, v_all(4.1665795894e-2f));
    p = v_fma(p, r, v_all(1.6666665459e-1f));
    p = v_fma(p, r, v_all(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_all(1.0f));
    /* In two steps: 2^n alone may be too large or too small for a float where the result is not. */
    lanes half = v_round(v_mul(n, v_all(0.5f)));
    return v_mul(v_mul(p, v_power(half)), v_power(v_sub(n, half)));
}

#endif
