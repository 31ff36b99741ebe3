/* How tokens are drawn from rows of logits: strata/draws.py says what the numbers mean, strata/engine/drawing.py what
 * comes of them exactly.  Knows no Python. */
#ifndef STRATA_DRAW_H
#define STRATA_DRAW_H

#include "rows.h"

struct draw {
    uint64_t nucleus, least, seed, position;
    long keep;
    float scale;
    int wanted; /* 0: nothing is drawn of this row */
};

struct drawing {
    struct floats logits;
    const struct draw *draws;
    int64_t *tokens; /* -1: nothing is drawn, or there is a number that is not finite */
};

/* 0, or -1 where memory is lacking. */
int draw_portable(struct pool *pool, const struct drawing *all);
int draw_avx2(struct pool *pool, const struct drawing *all);
int draw_avx512(struct pool *pool, const struct drawing *all);

#endif
