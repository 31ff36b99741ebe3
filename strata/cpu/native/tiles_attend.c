/* Attention of whole tiles, over paged keys and values that are read where they lie.  Compiled for every set.
 *
 * Rows lie side by side, a row a lane (product.h), so scores, softmax and sums of one row never meet another's.  Keys are
 * taken in spans of SPAN counted from position 0, and the softmax is carried from span to span
 * (https://arxiv.org/abs/1805.02867, section 3).  Keys after a row are left out of its sums and not multiplied by zero,
 * so it doesn't matter what they are, nor whether they are there.
 *
 * Where rows see a window of keys, those that none of LANES rows sees are left out; a key before one row's window and in
 * that of another has the weight 0 for the first, and a span of which a row sees nothing leaves it as it was.
 */
#include "angles.h"
#include "product.h"
#include "sets.h"
#include "tiles.h"

#include <float.h>
#include <math.h>

#define SPAN (4096 / LANES) /* keys, whole tiles of them: the scores of LANES rows are 16 KiB and stay in the first cache */
#define SIDE 32  /* rows that one worker takes, with all heads that share a key: they share what is read of it */

struct work {
    const struct tile_attention *all;
    struct pool *pool;
    long group; /* heads of queries to a head of keys */
};

/* What is kept of LANES rows and one head: [head_dim][lane] queries and sums, and a lane's largest score and total. */
struct state {
    float *queries, *sums, *largest, *total;
};

static struct state state_at(float *room, long number, long head_dim)
{
    float *at = room + number * (2 * head_dim + 2) * LANES;
    return (struct state){at, at + head_dim * LANES, at + 2 * head_dim * LANES, at + (2 * head_dim + 1) * LANES};
}

static unsigned long room_bytes(const struct work *work)
{
    const long states = SIDE / LANES * work->group, head_dim = work->all->cache.head_dim;
    return sizeof(float) * (unsigned long)(states * (2 * head_dim + 2) * LANES + SPAN * LANES);
}

/* -- turning and storing ----------------------------------------------------------------------------------------- */

static float *stored(const struct tile_attention *all, long position, long side, long head)
{
    const struct cache *cache = &all->cache;
    const long page = all->pages[position / cache->page_tokens], inside = position % cache->page_tokens;
    const long heads = ((page * cache->layers + all->layer) * 2 + side) * cache->kv_heads + head;
    return cache->at + (heads * cache->page_tokens + inside) * cache->head_dim;
}

static void turn_and_store(void *context, long block, int worker)
{
    const struct tile_attention *all = context;
    const struct cache *cache = &all->cache;
    const long turned = 2 * all->table.pairs;
    float cosines[turned + 1], sines[turned + 1];
    (void)worker;
    for (long row = block * LANES; row < (block + 1) * LANES; row++) {
        const long position = all->first + row;
        float *keys = all->keys.at + row * all->keys.stride, *values = all->values.at + row * all->values.stride;
        spread_angles(all->table.at + position * turned, all->table.pairs, cosines, sines);
        turn_heads(all->queries.at + row * all->queries.stride, all->queries.columns, cache->head_dim, cosines, sines,
                   turned);
        turn_heads(keys, all->keys.columns, cache->head_dim, cosines, sines, turned);
        for (long head = 0; all->start <= position && position < all->end && head < cache->kv_heads; head++) {
            memcpy(stored(all, position, 0, head), keys + head * cache->head_dim, sizeof(float[cache->head_dim]));
            memcpy(stored(all, position, 1, head), values + head * cache->head_dim, sizeof(float[cache->head_dim]));
        }
    }
}

/* -- softmax ----------------------------------------------------------------------------------------------------- */

/* 2^x for x <= 0: relative error below 2e-7, 0 below 2^-126, NaN stays.
 *
 * x = n + f with |f| <= 1/2, and 2^f by a polynomial of degree 6 that is fitted for the least relative error (2e-9). */
INLINE lanes power_of_two(lanes x)
{
    x = v_max(v_all(-127.0f), x);
    const lanes n = v_round(x), f = v_sub(x, n);
    lanes y = v_all(0.00015353361959569156f);
    y = v_fma(y, f, v_all(0.0013398875016719103f));
    y = v_fma(y, f, v_all(0.00961843691766262f));
    y = v_fma(y, f, v_all(0.055503323674201965f));
    y = v_fma(y, f, v_all(0.24022647738456726f));
    y = v_fma(y, f, v_all(0.6931471824645996f));
    y = v_fma(y, f, v_all(1.0f));
    return v_mul(y, v_power(n));
}

/* One vector of rows: the scores of `count` keys become weights, and what was summed before is made smaller to fit. */
INLINE void soften(float *scores, long count, float *largest, float *total, float *sums, long head_dim)
{
    const lanes before = v_load(largest);
    lanes most = before;
    for (long key = 0; key < count; key++)
        most = v_max(v_load(scores + key * LANES), most);
    const lanes kept = power_of_two(v_sub(before, most));
    lanes sum = v_mul(v_load(total), kept);
    for (long key = 0; key < count; key++) {
        const lanes weight = power_of_two(v_sub(v_load(scores + key * LANES), most));
        v_store(scores + key * LANES, weight);
        sum = v_add(sum, weight);
    }
    for (long at = 0; at < head_dim; at++)
        v_store(sums + at * LANES, v_mul(v_load(sums + at * LANES), kept));
    v_store(largest, most);
    v_store(total, sum);
}

/* -- LANES rows of one head -------------------------------------------------------------------------------------- */

/* Scores are in units of log2: e^x is 2^(x log2(e)). */
static void begin(const struct tile_attention *all, long row, long head, struct state state)
{
    const long head_dim = all->cache.head_dim;
    const lanes scale = v_all((float)(1.4426950408889634 * all->scale));
    transpose(all->queries.at + row * all->queries.stride + head * head_dim, LANES, head_dim, all->queries.stride,
         state.queries, LANES, 0);
    for (long at = 0; at < head_dim * LANES; at += W)
        v_store(state.queries + at, v_mul(v_load(state.queries + at), scale));
    memset(state.sums, 0, sizeof(float[head_dim * LANES]));
    for (long lane = 0; lane < LANES; lane += W) {
        v_store(state.largest + lane, v_all(-FLT_MAX)); /* of no score: infinity less infinity is no number */
        v_store(state.total + lane, v_zero());
    }
}

static void finish(const struct tile_attention *all, long row, long head, struct state state)
{
    const long head_dim = all->cache.head_dim;
    for (long at = 0; at < head_dim * LANES; at += W)
        v_store(state.sums + at, v_div(v_load(state.sums + at), v_load(state.total + at % LANES)));
    transpose(state.sums, head_dim, LANES, LANES, all->out.at + row * all->out.stride + head * head_dim, all->out.stride, 0);
}

/* How many positions from `at` on, below `end`, are neighbours in one page. */
static long run(const struct tile_attention *all, long at, long end)
{
    const long rest = all->cache.page_tokens - at % all->cache.page_tokens;
    return end - at < rest ? end - at : rest;
}

/* The first key that the row at this position sees.  Of padding it is never after the last real one: a row that sees
 * nothing would be no number. */
static long begin_of(const struct tile_attention *all, long position)
{
    const long begin = all->window && position >= all->window ? position + 1 - all->window : 0;
    return begin < all->end ? begin : all->end - 1;
}

/* Scores of keys start .. end - 1 that are not for each of the rows, which are at `diagonal` and after: those after a row,
 * and those before its window. */
static void hide(const struct tile_attention *all, long start, long end, long diagonal, float *scores)
{
    for (long at = diagonal > start ? diagonal : start; at < end; at++)
        for (int side = 0; side < LANES; side += W) {
            float *some = scores + (at - start) * LANES + side;
            v_store(some, v_from((int)(at - diagonal) - side, v_load(some), v_all(-INFINITY)));
        }
    const long seen = begin_of(all, diagonal + LANES - 1); /* by all of them, from here on */
    for (long at = start; at < end && at < seen; at++)
        for (int side = 0; side < LANES; side += W) {
            float *some = scores + (at - start) * LANES + side;
            v_store(some, v_from((int)(at - diagonal + all->window) - side, v_all(-INFINITY), v_load(some)));
        }
}

/* Keys start .. end - 1, of which those from `diagonal` on are the rows' own positions. */
static void take_span(const struct tile_attention *all, long kv_head, long start, long end, long diagonal,
                      struct state state, float *scores)
{
    const long head_dim = all->cache.head_dim;
    for (long at = start, count; at < end; at += count) {
        count = run(all, at, end);
        product(stored(all, at, 0, kv_head), head_dim, 1, count, head_dim, state.queries,
                scores + (at - start) * LANES, 1);
    }
    hide(all, start, end, diagonal, scores);
    for (int side = 0; side < LANES; side += W)
        soften(scores + side, end - start, state.largest + side, state.total + side, state.sums + side, head_dim);
    for (long at = start, count; at < end; at += count) {
        const float *values = stored(all, at, 1, kv_head), *weights = scores + (at - start) * LANES;
        count = run(all, at, at < diagonal && diagonal < end ? diagonal : end);
        if (at < diagonal)
            product(values, 1, head_dim, head_dim, count, weights, state.sums, 0);
        else
            late_product(values, (int)(at - diagonal), head_dim, count, weights, state.sums);
    }
}

/* SIDE rows from `row` on, and all heads that share a head of keys. */
static void attend_side(void *context, long block, int worker)
{
    const struct work *work = context;
    const struct tile_attention *all = work->all;
    const long heads = all->cache.kv_heads, kv_head = block % heads, row = block / heads * SIDE;
    const long head_dim = all->cache.head_dim, states = SIDE / LANES * work->group;
    float *room = pool_scratch(work->pool, worker, room_bytes(work)), *scores = room + states * (2 * head_dim + 2) * LANES;
    for (long number = 0; number < states; number++)
        begin(all, row + number / work->group * LANES, kv_head * work->group + number % work->group,
              state_at(room, number, head_dim));
    const long first = begin_of(all, all->first + row) / SPAN * SPAN;
    for (long span = first; span < all->first + row + SIDE && span < all->end; span += SPAN)
        for (long number = 0; number < states; number++) {
            const long diagonal = all->first + row + number / work->group * LANES, begin = begin_of(all, diagonal);
            const long start = span < begin ? begin : span;
            long end = diagonal + LANES < all->end ? diagonal + LANES : all->end;
            end = end < span + SPAN ? end : span + SPAN;
            if (start < end)
                take_span(all, kv_head, start, end, diagonal, state_at(room, number, head_dim), scores);
        }
    for (long number = 0; number < states; number++)
        finish(all, row + number / work->group * LANES, kv_head * work->group + number % work->group,
               state_at(room, number, head_dim));
}

int SET(attend_tiles)(struct pool *pool, const struct tile_attention *all)
{
    struct work work = {all, pool, all->queries.columns / (all->cache.kv_heads * all->cache.head_dim)};
    for (int worker = 0; worker < pool_threads(pool); worker++)
        if (pool_scratch(pool, worker, room_bytes(&work)) == NULL)
            return -1;
    parallel_for(pool, all->queries.rows / LANES, turn_and_store, (void *)all);
    parallel_for(pool, all->queries.rows / SIDE * all->cache.kv_heads, attend_side, &work);
    return 0;
}
