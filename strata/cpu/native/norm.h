/* x / sqrt(mean(x^2) + eps) * weight (https://arxiv.org/abs/1910.07467).  Knows one row, or one head of it. */
#ifndef STRATA_NORM_H
#define STRATA_NORM_H

#include "lanes.h"

/* Squares are added up by lanes, as far as there are whole vectors, and what is left one after the other.  `out` may be
 * `x`. */
static inline void norm_row(const float *x, const float *weight, float eps, long columns, float *out)
{
    const long whole = columns / W * W;
    lanes squares = v_zero();
    float rest = 0.0f;
    for (long at = 0; at < whole; at += W)
        squares = v_fma(v_load(x + at), v_load(x + at), squares);
    for (long at = whole; at < columns; at++)
        rest += x[at] * x[at];
    const float scale = sqrtf((v_sum(squares) + rest) / (float)columns + eps);
    for (long at = 0; at < columns; at++)
        out[at] = x[at] / scale * weight[at];
}

#endif
