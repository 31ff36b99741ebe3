/* What is done to rows that come alone: each output of each row is one sum, made in one order, whoever computes it.
 *
 * Rows of floats lie `stride` floats apart.  Knows weights and pages; no Python.
 */
#ifndef STRATA_ROWS_H
#define STRATA_ROWS_H

#include "pool.h"
#include "sets.h"
#include "weights.h"

struct floats {
    float *at;
    long rows, columns, stride;
};

/* out (+)= x @ weights.T; where the weights are gated, out = activation(x @ gate.T) * (x @ up.T). */
struct product {
    const struct weights *weights;
    struct floats x, out;
    int add;
};

/* Turns by position: pairs of cosine and sine, `turned` / 2 of them for each position. */
struct table {
    const float *at;
    long positions, pairs;
};

/* Pages of keys and values: (pages, layers, 2, kv_heads, page_tokens, head_dim). */
struct cache {
    float *at;
    long pages, layers, kv_heads, page_tokens, head_dim;
};

/* A row's place: its sequence's pages, and its position in it. */
struct place {
    const int32_t *pages;
    long position;
};

struct attention {
    struct floats queries, keys, values, out;
    struct cache cache;
    struct table table;
    const struct place *places;
    long layer, window; /* keys that a row sees, its own the last of them; 0: all */
    float scale;        /* of products of queries and keys */
};

/* Of whole rows, or of each `width` neighbours where the weight is narrower; `out` may be `x`. */
struct norm {
    struct floats x, out;
    const float *weight;
    long width;
    float eps;
};

struct row_kernels {
    /* These two return 0, or -1 where memory is lacking. */
    int (*product)(struct pool *pool, const struct product *product);
    /* Turns queries and keys in place, stores keys and values, and attends to all that is stored up to each row. */
    int (*attend)(struct pool *pool, const struct attention *attention);
    void (*norm)(const struct norm *norm);
    /* Numbers of rows first .. first + out.rows - 1. */
    void (*expand)(const struct part *part, long first, struct floats out);
};

extern const struct row_kernels rows_portable, rows_avx2, rows_avx512;

#ifdef SET
int SET(attend)(struct pool *pool, const struct attention *attention); /* attend.c */
#endif

#endif
