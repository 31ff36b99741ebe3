/* Turning heads by their position, in place (https://arxiv.org/abs/2104.09864, equation 34).  Knows one row. */
#ifndef STRATA_ANGLES_H
#define STRATA_ANGLES_H

#include "lanes.h"

/* The angles of one position as each element of a head meets them: out = own * cosine + neighbour * sine.  (GCC 12 makes
 * a difference beside a sum of products into one fused step, whatever it is told; these are sums alone.) */
INLINE void spread_angles(const float *angles, long pairs, float *cosines, float *sines)
{
    for (long pair = 0; pair < pairs; pair++) {
        cosines[2 * pair] = cosines[2 * pair + 1] = angles[2 * pair];
        sines[2 * pair] = -angles[2 * pair + 1];
        sines[2 * pair + 1] = angles[2 * pair + 1];
    }
}

/* Pairs of neighbours of each head; a head's elements from `turned` on stay. */
INLINE void turn_heads(float *row, long columns, long head_dim, const float *cosines, const float *sines, long turned)
{
    float neighbours[turned + 1];
    for (float *head = row; head + head_dim <= row + columns; head += head_dim) {
        for (long at = 0; at < turned; at += 2) {
            neighbours[at] = head[at + 1];
            neighbours[at + 1] = head[at];
        }
        for (long at = 0; at < turned; at++)
            head[at] = head[at] * cosines[at] + neighbours[at] * sines[at];
    }
}

#endif
