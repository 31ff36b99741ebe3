/* Products of rows with weights that stay as the file has them, and norms.  Compiled for every instruction set.
 *
 * One sum is W lanes, each of every W-th element, and the lanes are added up in one fixed order at the end (lanes.h).  A few
 * rows take their weights from where they lie to the sums; more of them share weights that are made into floats first, a
 * few outputs at a time, and the sums are the same.  Sets with wide registers multiply codes otherwise (fixed.h).
 */
#include "rows.h"

#include "blocks.h"
#include "fixed.h"
#include "gates.h"
#include "norm.h"

#define TOGETHER 4  /* outputs that a lone row takes at a time: enough sums for the adders to be busy */
#define OUTPUTS 2   /* outputs and rows that are computed together: as many sums as there are registers for */
#define ROWS 4
#define LINE 16 /* outputs of a block: a whole line of floats */
#define RUN_BYTES 131072 /* of weights, at most, that a thread takes at a time: processors read on where they read before */
#define MOST 16 /* blocks that it takes at most */
#define AHEAD 4096 /* bytes that are asked for early: processors don't look beyond a page by themselves */

INLINE long whole_blocks(long columns) { return columns / BLOCK * BLOCK; }

/* What is left of a row after its last whole block, with zeros behind. */
INLINE void rest_of(const float *row, long columns, float out[BLOCK])
{
    long whole = whole_blocks(columns);
    memset(out, 0, BLOCK * sizeof *out);
    memcpy(out, row + whole, (columns - whole) * sizeof *out);
}

INLINE int has_rest(enum kind kind, long columns) { return kind <= BF16 && columns % BLOCK; }

INLINE void rest_of_weights(enum kind kind, const uint8_t *row, long columns, lanes out[VECTORS])
{
    uint8_t padded[BLOCK * 4] = {0};
    long size = layouts[kind].bytes, whole = whole_blocks(columns);
    memcpy(padded, row + whole * size, (columns - whole) * size);
    block(kind, padded, 0, out);
}

#if defined(KERNELS_AVX512) || defined(KERNELS_AVX2)
/* -- a lone row -------------------------------------------------------------------------------------------------- */

INLINE void add_block(const lanes weights[VECTORS], const float *x, lanes *sum)
{
#pragma GCC unroll 4
    for (int i = 0; i < VECTORS; i++)
        *sum = v_fma(weights[i], v_load(x + W * i), *sum);
}

INLINE void lone(enum kind kind, const uint8_t *row, long row_bytes, const float *x, long columns, float out[TOGETHER])
{
    lanes sums[TOGETHER], weights[VECTORS];
    const long ahead = TOGETHER * row_bytes > AHEAD ? TOGETHER * row_bytes : AHEAD;
    for (int o = 0; o < TOGETHER; o++)
        sums[o] = v_zero();
    for (long at = 0; at < columns / BLOCK; at++)
#pragma GCC unroll 4
        for (int o = 0; o < TOGETHER; o++) {
            __builtin_prefetch(row + o * row_bytes + at * BLOCK * layouts[kind].bytes + ahead);
            block(kind, row + o * row_bytes, at, weights);
            add_block(weights, x + BLOCK * at, &sums[o]);
        }
    if (has_rest(kind, columns)) {
        float rest[BLOCK];
        rest_of(x, columns, rest);
        for (int o = 0; o < TOGETHER; o++) {
            rest_of_weights(kind, row + o * row_bytes, columns, weights);
            add_block(weights, rest, &sums[o]);
        }
    }
    v_sums(sums, out);
}

/* `count` outputs from `row` on; the last few are computed with one of them several times. */
INLINE void lone_outputs(enum kind kind, const struct part *part, long first, long count, const float *x, float *out)
{
    const uint8_t *row = part->data + first * part->row_bytes;
    for (long at = 0; at < count; at += TOGETHER) {
        float sums[TOGETHER];
        int whole = count - at >= TOGETHER;
        if (whole) {
            lone(kind, row + at * part->row_bytes, part->row_bytes, x, part->columns, sums);
            memcpy(out + at, sums, sizeof sums);
        } else {
            for (; at < count; at++) {
                lone(kind, row + at * part->row_bytes, 0, x, part->columns, sums);
                out[at] = sums[0];
            }
        }
    }
}

/* -- a few rows -------------------------------------------------------------------------------------------------- */

/* OUTPUTS outputs of `rows` rows (a constant), each with each; the weights don't leave their registers. */
INLINE void few(enum kind kind, const uint8_t *row, long row_bytes, const float *const x[ROWS], const int rows,
                long columns, float out[ROWS][OUTPUTS])
{
    lanes sums[ROWS][OUTPUTS], weights[VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUTPUTS; o++)
            sums[r][o] = v_zero();
    for (long at = 0; at < columns / BLOCK; at++)
#pragma GCC unroll 2
        for (int o = 0; o < OUTPUTS; o++) {
            __builtin_prefetch(row + o * row_bytes + at * BLOCK * layouts[kind].bytes + AHEAD);
            block(kind, row + o * row_bytes, at, weights);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                add_block(weights, x[r] + BLOCK * at, &sums[r][o]);
        }
    if (has_rest(kind, columns)) {
        float rest[BLOCK];
        for (int r = 0; r < rows; r++) {
            rest_of(x[r], columns, rest);
            for (int o = 0; o < OUTPUTS; o++) {
                rest_of_weights(kind, row + o * row_bytes, columns, weights);
                add_block(weights, rest, &sums[r][o]);
            }
        }
    }
    for (int r = 0; r < ROWS; r += 2)
        v_sums((lanes[4]){sums[r][0], sums[r][1], sums[r + 1][0], sums[r + 1][1]}, out[r]);
}

/* `count` outputs from `first` on, of 2 to ROWS rows of x; the third of three is computed twice. */
INLINE void few_outputs(enum kind kind, const struct part *part, long first, long count, struct floats x, float *out,
                        long stride)
{
    const uint8_t *row = part->data + first * part->row_bytes;
    const float *inputs[ROWS];
    float sums[ROWS][OUTPUTS];
    for (long r = 0; r < ROWS; r++)
        inputs[r] = x.at + (r < x.rows ? r : x.rows - 1) * x.stride;
    for (long at = 0; at < count; at += OUTPUTS) {
        int real = count - at < OUTPUTS ? (int)(count - at) : OUTPUTS;
        const uint8_t *weights = row + at * part->row_bytes;
        long row_bytes = real == OUTPUTS ? part->row_bytes : 0;
        if (x.rows == 2)
            few(kind, weights, row_bytes, inputs, 2, part->columns, sums);
        else
            few(kind, weights, row_bytes, inputs, ROWS, part->columns, sums);
        for (long r = 0; r < x.rows; r++)
            memcpy(out + r * stride + at, sums[r], real * sizeof **sums);
    }
}

INLINE void outputs_of(enum kind kind, const struct part *part, long first, long count, struct floats x, float *out,
                       long stride)
{
    if (x.rows == 1)
        lone_outputs(kind, part, first, count, x.at, out);
    else
        few_outputs(kind, part, first, count, x, out, stride);
}

/* Any number of rows, ROWS at a time. */
static void row_by_row(const struct part *part, long first, long count, struct floats x, float *out, long stride)
{
    for (long at = 0; at < x.rows; at += ROWS) {
        struct floats some = x;
        some.at = x.at + at * x.stride;
        some.rows = x.rows - at < ROWS ? x.rows - at : ROWS;
        switch (part->kind) {
#define CASE(kind) case kind: outputs_of(kind, part, first, count, some, out + at * stride, stride); break
        CASE(F32); CASE(F16); CASE(BF16);
#undef CASE
        default: break; /* fixed.h */
        }
    }
}
#define FEW 16
#else
/* Without wide registers it gains nothing, and takes a compiler a minute. */
#define FEW 0
#endif

/* -- several rows ------------------------------------------------------------------------------------------------ */

INLINE void expand_kind(enum kind kind, const uint8_t *row, long columns, float *out)
{
    lanes weights[VECTORS];
    for (long at = 0; at < columns / BLOCK; at++) {
        __builtin_prefetch(row + at * BLOCK / layouts[kind].elements * layouts[kind].bytes + AHEAD);
        block(kind, row, at, weights);
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++)
            v_store(out + BLOCK * at + W * i, weights[i]);
    }
    if (has_rest(kind, columns)) {
        float rest[BLOCK];
        rest_of_weights(kind, row, columns, weights);
        for (int i = 0; i < VECTORS; i++)
            v_store(rest + W * i, weights[i]);
        memcpy(out + whole_blocks(columns), rest, columns % BLOCK * sizeof *out);
    }
}

/* Row `row` as numbers. */
INLINE void expand_row(const struct part *part, long row, float *out)
{
    const uint8_t *data = part->data + row * part->row_bytes;
    switch (part->kind) {
#define CASE(kind) case kind: expand_kind(kind, data, part->columns, out); break
    CASE(F32); CASE(F16); CASE(BF16); CASE(Q4_0); CASE(Q4_1); CASE(Q5_0); CASE(Q5_1); CASE(Q8_0);
    CASE(Q4_K); CASE(Q5_K); CASE(Q6_K);
#undef CASE
    case KINDS: break;
    }
}

/* OUTPUTS rows of weights and `rows` rows of x (a constant), each with each. */
INLINE void several(const float *const weights[OUTPUTS], const float *x, long stride, const int rows, long columns,
                    float out[ROWS][OUTPUTS])
{
    lanes sums[ROWS][OUTPUTS];
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUTPUTS; o++)
            sums[r][o] = v_zero();
    for (long at = 0; at < whole_blocks(columns); at += W) {
        lanes ours[OUTPUTS];
#pragma GCC unroll 2
        for (int o = 0; o < OUTPUTS; o++)
            ours[o] = v_load(weights[o] + at);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            lanes theirs = v_load(x + r * stride + at);
#pragma GCC unroll 2
            for (int o = 0; o < OUTPUTS; o++)
                sums[r][o] = v_fma(ours[o], theirs, sums[r][o]);
        }
    }
    if (columns % BLOCK) {
        float ours[OUTPUTS][BLOCK], theirs[BLOCK];
        for (int o = 0; o < OUTPUTS; o++)
            rest_of(weights[o], columns, ours[o]);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            rest_of(x + r * stride, columns, theirs);
#pragma GCC unroll 2
            for (int o = 0; o < OUTPUTS; o++)
                for (int i = 0; i < BLOCK; i += W)
                    sums[r][o] = v_fma(v_load(ours[o] + i), v_load(theirs + i), sums[r][o]);
        }
    }
    for (int r = 0; r < ROWS; r += 2)
        v_sums((lanes[4]){sums[r][0], sums[r][1], sums[r + 1][0], sums[r + 1][1]}, out[r]);
}

/* Of the outputs the first `real` are wanted; row by row to `out`, `stride` apart. */
static void several_rows(const float *const weights[OUTPUTS], struct floats x, int real, float *out, long stride)
{
    float sums[ROWS][OUTPUTS];
    for (long at = 0; at < x.rows; at += ROWS) {
        int rows = x.rows - at < ROWS ? (int)(x.rows - at) : ROWS;
        const float *first = x.at + at * x.stride;
        switch (rows) {
        case 1: several(weights, first, x.stride, 1, x.columns, sums); break;
        case 2: several(weights, first, x.stride, 2, x.columns, sums); break;
        case 3: several(weights, first, x.stride, 3, x.columns, sums); break;
        default: several(weights, first, x.stride, 4, x.columns, sums); break;
        }
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < real; o++)
                out[(at + r) * stride + o] = sums[r][o];
    }
}

/* -- a range of outputs ------------------------------------------------------------------------------------------ */

struct job {
    struct pool *pool;
    const struct product *product;
    struct fixed fixed[FORMS]; /* the inputs in each form that a part needs */
    long size; /* outputs of a run, at most */
};

/* Sums of outputs first .. first + count - 1 of one part to `out`, row by row `stride` apart.
 * `room`: OUTPUTS rows of weights. */
static void part_outputs(const struct job *job, const struct part *part, long first, long count, float *out,
                         long stride, float *room)
{
    enum form form = SET(form_of)(part->kind);
    struct floats x = job->product->x;
    if (form != UNFIXED) {
        SET(fixed_outputs)(part, first, count, job->fixed[form], out, stride);
        return;
    }
#if FEW
    if (x.rows <= FEW) {
        row_by_row(part, first, count, x, out, stride);
        return;
    }
#endif
    for (long at = 0; at < count; at += OUTPUTS) {
        int real = count - at < OUTPUTS ? (int)(count - at) : OUTPUTS;
        const float *weights[OUTPUTS];
        for (int o = 0; o < OUTPUTS; o++) {
            weights[o] = room + (o < real ? o : 0) * part->columns;
            if (o < real)
                expand_row(part, first + at + o, room + o * part->columns);
        }
        several_rows(weights, x, real, out + at, stride);
    }
}

static unsigned long room_bytes(const struct product *product, long size)
{
    return sizeof(float) * (OUTPUTS * product->weights->columns + product->x.rows * 2 * size);
}

static void gate(const float *closed, const float *through, long count, int gelu, float *out)
{
    long at = 0;
    for (; at + W <= count; at += W)
        v_store(out + at, v_mul(v_opened(v_load(closed + at), gelu), v_load(through + at)));
    if (at < count) {
        float a[W] = {0}, b[W] = {0};
        memcpy(a, closed + at, (count - at) * sizeof *a);
        memcpy(b, through + at, (count - at) * sizeof *b);
        v_store(a, v_mul(v_opened(v_load(a), gelu), v_load(b)));
        memcpy(out + at, a, (count - at) * sizeof *a);
    }
}

static void gated_run(const struct job *job, long first, long count, float *room)
{
    const struct product *product = job->product;
    const struct part *parts = product->weights->parts;
    struct floats x = product->x, out = product->out;
    float *closed = room + OUTPUTS * product->weights->columns, *through = closed + x.rows * count;
    part_outputs(job, &parts[0], first, count, closed, count, room);
    part_outputs(job, &parts[1], first, count, through, count, room);
    for (long r = 0; r < x.rows; r++)
        gate(closed + r * count, through + r * count, count, product->weights->gelu, out.at + r * out.stride + first);
}

static void plain_run(const struct job *job, long first, long count, float *room)
{
    const struct product *product = job->product;
    struct floats x = product->x, out = product->out;
    float *sums = room + OUTPUTS * product->weights->columns;
    long start = 0;
    for (int p = 0; p < product->weights->count; p++) {
        const struct part *part = &product->weights->parts[p];
        long from = first > start ? first : start, end = first + count < start + part->rows ? first + count : start + part->rows;
        if (from < end)
            part_outputs(job, part, from - start, end - from, sums + from - first, count, room);
        start += part->rows;
    }
    for (long r = 0; r < x.rows; r++) {
        float *to = out.at + r * out.stride + first;
        for (long at = 0; at < count; at++)
            to[at] = product->add ? to[at] + sums[r * count + at] : sums[r * count + at];
    }
}

static void product_run(void *context, long block, long blocks, int worker)
{
    const struct job *job = context;
    const struct product *product = job->product;
    long first = block * LINE, left = product->weights->outputs - first;
    long count = left < blocks * LINE ? left : blocks * LINE;
    float *room = pool_scratch(job->pool, worker, room_bytes(product, job->size));
    if (product->weights->gated)
        gated_run(job, first, count, room);
    else
        plain_run(job, first, count, room);
}

static void fix_rows(struct job *job, enum form form, uint8_t *memory)
{
    struct floats x = job->product->x;
    job->fixed[form] = (struct fixed){memory, x.rows, SET(fixed_row_bytes)(x.columns)};
    for (long r = 0; r < x.rows; r++)
        SET(fix_row)(form, x.at + r * x.stride, x.columns, memory + r * job->fixed[form].row_bytes);
}

/* Sets the inputs of a job in every form that its weights ask for; -1 where memory is lacking. */
static int fix_inputs(struct job *job)
{
    const struct weights *weights = job->product->weights;
    const long bytes = job->product->x.rows * SET(fixed_row_bytes)(job->product->x.columns);
    uint8_t *memory = pool_results(job->pool, bytes * (FORMS - 1) + 1);
    if (memory == NULL)
        return -1;
    for (int p = 0; p < weights->count; p++) {
        enum form form = SET(form_of)(weights->parts[p].kind);
        if (form != UNFIXED && job->fixed[form].at == NULL)
            fix_rows(job, form, memory + bytes * (form - 1));
    }
    return 0;
}

static int product(struct pool *pool, const struct product *product)
{
    const struct weights *weights = product->weights;
    long bytes = weights->parts[0].row_bytes * (1 + weights->gated);
    long most = RUN_BYTES / bytes / LINE;
    most = most < 1 ? 1 : most > MOST ? MOST : most;
    struct job job = {.pool = pool, .product = product, .size = most * LINE};
    for (int worker = 0; worker < pool_threads(pool); worker++)
        if (pool_scratch(pool, worker, room_bytes(product, job.size)) == NULL)
            return -1;
    if (fix_inputs(&job) < 0)
        return -1;
    parallel_runs(pool, (weights->outputs + LINE - 1) / LINE, most, product_run, &job);
    return 0;
}

/* -- norm -------------------------------------------------------------------------------------------------------- */

static void norm(const struct norm *norm)
{
    for (long r = 0; r < norm->x.rows; r++)
        for (long at = 0; at < norm->x.columns; at += norm->width)
            norm_row(norm->x.at + r * norm->x.stride + at, norm->weight, norm->eps, norm->width,
                     norm->out.at + r * norm->out.stride + at);
}

static void expand(const struct part *part, long first, struct floats out)
{
    for (long r = 0; r < out.rows; r++)
        expand_row(part, first + r, out.at + r * out.stride);
}

const struct row_kernels SET(rows) = {product, SET(attend), norm, expand};
