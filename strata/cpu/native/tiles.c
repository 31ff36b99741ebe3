/* Products of whole tiles with weights that stay quantised.
 *
 * Rows are transposed so that they lie side by side, a row a lane.  Then some outputs at a time, on any thread: their weights
 * are made into floats, a few hundred columns of each, and multiplied with all tiles before the next columns come.  So a
 * weight is expanded once for all tiles of a call, and what is expanded stays in the second cache, the rows' columns in
 * the first.
 */
#include "blocks.h"
#include "gates.h"
#include "norm.h"
#include "product.h"
#include "sets.h"
#include "tiles.h"

/* Outputs of a panel: a multiple of SUMS for every set.  Fewer where the threads would find too few panels. */
#define PANEL 48
#define LEAST 12
#define PANELS 4 /* for each thread, where there can be as many */

/* Columns that are expanded at a time, at most: of LANES rows they take 24 KiB, of a panel's weights up to 72. */
#define DEPTH (6144 / LANES)

struct work {
    const struct product *all;
    struct pool *pool;
    long depth;    /* columns at a time */
    long each;     /* outputs of a panel; where they are gated, half of its rows are the gate's */
    float *packed; /* x as [group of LANES rows][column][lane] */
};

/* Columns first .. first + count - 1 of a row; `first` is a multiple of BLOCK. */
INLINE void expand_kind(const enum kind kind, const uint8_t *row, long first, long count, float *out)
{
    lanes numbers[VECTORS];
    for (long at = 0; at < count / BLOCK; at++) {
        block(kind, row, first / BLOCK + at, numbers);
        for (int i = 0; i < VECTORS; i++)
            v_store(out + BLOCK * at + W * i, numbers[i]);
    }
    if (kind <= BF16 && count % BLOCK) { /* the others are whole blocks */
        const long size = layouts[kind].bytes, whole = count / BLOCK * BLOCK;
        uint8_t padded[4 * BLOCK] = {0};
        float floats[BLOCK];
        memcpy(padded, row + (first + whole) * size, (size_t)(count % BLOCK * size));
        block(kind, padded, 0, numbers);
        for (int i = 0; i < VECTORS; i++)
            v_store(floats + W * i, numbers[i]);
        memcpy(out + whole, floats, (size_t)(count % BLOCK) * sizeof *out);
    }
}

static void expand(const struct part *part, long row, long first, long count, float *out)
{
    const uint8_t *data = part->data + row * part->row_bytes;
    switch (part->kind) {
#define CASE(kind) case kind: expand_kind(kind, data, first, count, out); break
    CASE(F32); CASE(F16); CASE(BF16); CASE(Q4_0); CASE(Q4_1); CASE(Q5_0); CASE(Q5_1); CASE(Q8_0);
    CASE(Q4_K); CASE(Q5_K); CASE(Q6_K);
#undef CASE
    case KINDS: break;
    }
}

/* The part that makes an output, and its row there. */
static const struct part *part_of(const struct weights *weights, long output, long *row)
{
    const struct part *part = weights->parts;
    for (; output >= part->rows; part++)
        output -= part->rows;
    *row = output;
    return part;
}

static void transpose_group(void *context, long group, int worker)
{
    const struct work *work = context;
    const struct floats *x = &work->all->x;
    (void)worker;
    transpose(x->at + group * LANES * x->stride, LANES, x->columns, x->stride, work->packed + group * LANES * x->columns,
         LANES, 0);
}

/* out = activation(gate) * up, over the gates. */
static void open_gates(float *gates, const float *ups, long count, int gelu)
{
    for (long at = 0; at < count; at += W)
        v_store(gates + at, v_mul(v_opened(v_load(gates + at), gelu), v_load(ups + at)));
}

/* Weights as [row][column], and sums as [group][row][lane]. */
static unsigned long panel_bytes(const struct work *work)
{
    return sizeof(float) * (unsigned long)(PANEL * (work->depth + work->all->x.rows));
}

/* Columns first .. first + count - 1 of the weights that make outputs output .. output + outputs - 1. */
static void expand_panel(const struct work *work, long output, long outputs, long first, long count, float *panel)
{
    const struct weights *weights = work->all->weights;
    for (long number = 0; number < outputs * (1 + weights->gated); number++) {
        long row = output + number % outputs;
        const struct part *part = weights->gated ? &weights->parts[number / outputs] : part_of(weights, row, &row);
        expand(part, row, first, count, panel + number * work->depth);
    }
}

static void finish(const struct work *work, float *sums, long output, long outputs)
{
    const struct floats *out = &work->all->out;
    float *to = out->at + output;
    for (long row = 0; row < out->rows; row += LANES, sums += PANEL * LANES) {
        if (work->all->weights->gated)
            open_gates(sums, sums + outputs * LANES, outputs * LANES, work->all->weights->gelu);
        if (work->all->add)
            transpose(sums, outputs, LANES, LANES, to + row * out->stride, out->stride, 1);
        else
            transpose(sums, outputs, LANES, LANES, to + row * out->stride, out->stride, 0);
    }
}

static void panel(void *context, long number, int worker)
{
    const struct work *work = context;
    const struct weights *weights = work->all->weights;
    const long output = number * work->each, left = weights->outputs - output;
    const long outputs = left < work->each ? left : work->each, columns = weights->columns;
    float *expanded = pool_scratch(work->pool, worker, panel_bytes(work)), *sums = expanded + PANEL * work->depth;
    for (long first = 0; first < columns; first += work->depth) {
        const long count = columns - first < work->depth ? columns - first : work->depth;
        expand_panel(work, output, outputs, first, count, expanded);
        for (long row = 0; row < work->all->x.rows; row += LANES)
            product(expanded, work->depth, 1, outputs * (1 + weights->gated), count,
                    work->packed + row * columns + first * LANES, sums + row * PANEL, first == 0);
    }
    finish(work, sums, output, outputs);
}

/* Columns at a time: as few times as they need, all nearly as many. */
static long depth_of(long columns)
{
    const long times = (columns + DEPTH - 1) / DEPTH, each = (columns + times - 1) / times;
    return (each + BLOCK - 1) / BLOCK * BLOCK;
}

/* Outputs of a panel.  No result depends on it. */
static long each_of(const struct weights *weights, int threads)
{
    long each = PANEL / (1 + weights->gated);
    while (each > LEAST && weights->outputs < PANELS * threads * each)
        each /= 2;
    return each;
}

static int product_tiles(struct pool *pool, const struct product *all)
{
    struct work work = {all, pool, depth_of(all->x.columns), each_of(all->weights, pool_threads(pool)), NULL};
    for (int worker = 0; worker < pool_threads(pool); worker++)
        if (pool_scratch(pool, worker, panel_bytes(&work)) == NULL)
            return -1;
    work.packed = pool_results(pool, sizeof(float) * (unsigned long)(all->x.rows * all->x.columns));
    if (work.packed == NULL)
        return -1;
    parallel_for(pool, all->x.rows / LANES, transpose_group, &work);
    parallel_for(pool, (all->weights->outputs + work.each - 1) / work.each, panel, &work);
    return 0;
}

/* -- norm -------------------------------------------------------------------------------------------------------- */

static void norm_group(void *context, long group, int worker)
{
    const struct norm *norm = context;
    (void)worker;
    for (long row = group * LANES; row < (group + 1) * LANES; row++)
        for (long at = 0; at < norm->x.columns; at += norm->width)
            norm_row(norm->x.at + row * norm->x.stride + at, norm->weight, norm->eps, norm->width,
                     norm->out.at + row * norm->out.stride + at);
}

static void norm_tiles(struct pool *pool, struct floats x, const float *weight, long width, float eps, struct floats out)
{
    struct norm norm = {x, out, weight, width, eps};
    parallel_for(pool, x.rows / LANES, norm_group, &norm);
}

const struct tile_kernels SET(tiles) = {product_tiles, SET(attend_tiles), norm_tiles};
