/* Outputs of any number of rows, eight at a time; see fixed.h.  A file that includes it has defined
 *
 *     __m256 sum_of_lone(kind, eight, fixed): eight outputs of one row, in its unit, and
 *     void sum_several(kind, eight, fixed, sum): of up to MOST_ROWS rows, added to `sum`,
 *
 * to which `kind` is a constant, and says OUTPUTS(kind) for each of its kinds.
 */
#ifndef STRATA_FIXED_OUTPUTS_H
#define STRATA_FIXED_OUTPUTS_H

#include "fixed_eight.h"

/* The first `real` outputs are wanted. */
INLINE void finish(__m256 sum, const struct unit *unit, float *out, int real)
{
    float all[EIGHT];
    sum = _mm256_mul_ps(_mm256_mul_ps(sum, _mm256_set1_ps(unit->first)), _mm256_set1_ps(unit->second));
    _mm256_storeu_ps(real == EIGHT ? out : all, sum);
    if (real < EIGHT)
        memcpy(out, all, real * sizeof *out);
}

INLINE void few(enum kind kind, struct eight w, struct fixed x, float *out, long stride, int real)
{
    __m256 sum[MOST_ROWS];
    for (long r = 0; r < x.rows; r++)
        sum[r] = _mm256_setzero_ps();
    sum_several(kind, w, x, sum);
    for (long r = 0; r < x.rows; r++)
        finish(sum[r], row_of(x, r), out + r * stride, real);
}

INLINE void eight(enum kind kind, struct eight w, struct fixed x, float *out, long stride, int real)
{
    for (long r = 0; r < x.rows; r += MOST_ROWS) {
        struct fixed some = {x.at + r * x.row_bytes, x.rows - r < MOST_ROWS ? x.rows - r : MOST_ROWS, x.row_bytes};
        if (some.rows == 1)
            finish(sum_of_lone(kind, w, some), row_of(some, 0), out + r * stride, real);
        else
            few(kind, w, some, out + r * stride, stride, real);
    }
}

INLINE void outputs_of(enum kind kind, const struct part *part, long first, long count, struct fixed x, float *out,
                       long stride)
{
    struct eight w = {part->data + first * part->row_bytes, part->row_bytes, part->columns};
    for (; count >= EIGHT; count -= EIGHT, w.row += EIGHT * w.step, out += EIGHT)
        eight(kind, w, x, out, stride, EIGHT);
    for (w.step = 0; count > 0; count--, w.row += part->row_bytes, out++)
        eight(kind, w, x, out, stride, 1);
}

/* A function for each kind: in one for all, compilers run out of registers for constants. */
#define OUTPUTS(kind) \
    static __attribute__((noinline)) void outputs_of_##kind(const struct part *part, long first, long count, \
                                                            struct fixed x, float *out, long stride) \
    { \
        outputs_of(kind, part, first, count, x, out, stride); \
    }

#endif
