/* What is done to rows that are read together: whole tiles of them, each row's result its own.
 *
 * Tiles lie on the grid of positions, so some of their rows may be padding; no row looks at another.
 */
#ifndef STRATA_TILES_H
#define STRATA_TILES_H

#include "rows.h"

/* Rows of a tile: those of every operation here are whole tiles. */
#define TILE 64

/* Rows of one sequence at positions first, first + 1, ... (a multiple of TILE), of which start .. end - 1 are real. */
struct tile_attention {
    struct floats queries, keys, values, out;
    struct cache cache;
    struct table table; /* of all positions below the last row's, rounded up to whole tiles */
    const int32_t *pages;
    long layer, first, start, end;
    long window; /* keys that a row sees, its own the last of them; 0: all */
    float scale; /* of products of queries and keys */
};

struct tile_kernels {
    /* These two return 0, or -1 where memory is lacking. */
    int (*product)(struct pool *pool, const struct product *product);
    /* Turns queries and keys in place, stores the real rows' keys and values, and attends to what is stored up to each
     * row; nothing from position `end` on is looked at. */
    int (*attend)(struct pool *pool, const struct tile_attention *attention);
    /* Of each `width` floats of a row by themselves; `out` may be `x`. */
    void (*norm)(struct pool *pool, struct floats x, const float *weight, long width, float eps, struct floats out);
};

extern const struct tile_kernels tiles_portable, tiles_avx2, tiles_avx512;

#ifdef SET
int SET(attend_tiles)(struct pool *pool, const struct tile_attention *attention); /* tiles_attend.c */
#endif

#endif
