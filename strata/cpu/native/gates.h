/* What opens a gate: SiLU, or GELU by its approximation with a tangent (https://arxiv.org/abs/1606.08415).
 *
 * Both are x / (1 + e^-y): (1 + tanh(y / 2)) / 2 is 1 / (1 + e^-y), so GELU's y is 2 sqrt(2 / pi) (x + 0.044715 x^3).
 */
#ifndef STRATA_GATES_H
#define STRATA_GATES_H

#include "lanes.h"

INLINE lanes v_opened(lanes x, int gelu)
{
    lanes y = x;
    if (gelu)
        y = v_mul(x, v_fma(v_mul(x, x), v_all(0.07135481282f), v_all(1.5957691216f)));
    return v_div(x, v_add(v_all(1.0f), v_exp(v_sub(v_zero(), y))));
}

#endif
