/* Attention of rows that come alone, over paged keys and values.  Compiled for every instruction set.
 *
 * Keys are taken in spans of SPAN counted from position 0, each by any thread; a span's softmax is its largest score, the
 * sum of its weights and the weighted sum of its values, and spans are combined in order
 * (https://arxiv.org/abs/1805.02867, section 3).  Of a window of keys the first span begins with it, and those before are
 * left out.  So a row's bits follow from its position and what is stored up to it.
 */
#include "rows.h"

#include "angles.h"
#include "lanes.h"

#define SPAN 512 /* keys; a multiple of W */
#define KEYS 4   /* scores that are made at a time */
#define CHUNK 4  /* vectors of values that are summed at a time */
#define AHEAD 4096

struct work {
    const struct attention *all;
    struct pool *pool;
    long group, width;     /* heads of queries to a head of keys; floats of a head, in whole vectors */
    long part_floats;      /* of one head of keys' result for one span: per query its values, largest score and sum */
    float *parts;          /* by row, span and head of keys */
    const long *first;     /* number of each row's first span; one more at the end */
};

static inline long up_to(long size, long step) { return (size + step - 1) / step * step; }

/* The first key that a row sees. */
static inline long begin_of(const struct attention *all, long position)
{
    return all->window && position >= all->window ? position + 1 - all->window : 0;
}

static inline long spans(const struct attention *all, long position)
{
    return position / SPAN - begin_of(all, position) / SPAN + 1;
}

/* -- turning and storing ------------------------------------------------------------------------------------------- */

static float *stored(const struct cache *cache, long page, long layer, long side, long head)
{
    return cache->at
           + (((page * cache->layers + layer) * 2 + side) * cache->kv_heads + head) * cache->page_tokens * cache->head_dim;
}

static void store(const struct cache *cache, struct place place, long layer, long side, const float *row)
{
    long page = place.pages[place.position / cache->page_tokens], inside = place.position % cache->page_tokens;
    for (long head = 0; head < cache->kv_heads; head++)
        memcpy(stored(cache, page, layer, side, head) + inside * cache->head_dim, row + head * cache->head_dim,
               cache->head_dim * sizeof *row);
}

static void turn_and_store(const struct attention *all)
{
    const struct cache *cache = &all->cache;
    long turned = 2 * all->table.pairs;
    float cosines[turned + 1], sines[turned + 1];
    for (long r = 0; r < all->queries.rows; r++) {
        struct place place = all->places[r];
        float *queries = all->queries.at + r * all->queries.stride, *keys = all->keys.at + r * all->keys.stride;
        spread_angles(all->table.at + place.position * turned, all->table.pairs, cosines, sines);
        turn_heads(queries, all->queries.columns, cache->head_dim, cosines, sines, turned);
        turn_heads(keys, all->keys.columns, cache->head_dim, cosines, sines, turned);
        store(cache, place, all->layer, 0, keys);
        store(cache, place, all->layer, 1, all->values.at + r * all->values.stride);
    }
}

/* -- one span of one row and one head of keys ---------------------------------------------------------------------- */

/* Vectors of a head, with zeros behind its last element where it isn't whole vectors. */
INLINE lanes vector_of(const float *head, long at, long head_dim)
{
    if (head_dim - at >= W)
        return v_load(head + at);
    float some[W] = {0};
    memcpy(some, head + at, (head_dim - at) * sizeof *some);
    return v_load(some);
}

/* Scores of `count` keys (at most KEYS) that are neighbours. */
INLINE void few_scores(const float *query, const float *keys, long count, long head_dim, float out[KEYS])
{
    lanes sums[KEYS];
    for (int k = 0; k < KEYS; k++)
        sums[k] = v_zero();
    for (long at = 0; at < head_dim; at += W) {
        lanes ours = v_load(query + at);
        for (int k = 0; k < KEYS; k++)
            if (k < count)
                sums[k] = v_fma(ours, vector_of(keys + k * head_dim, at, head_dim), sums[k]);
    }
    v_sums(sums, out);
}

/* Asks for `count` floats AHEAD bytes further on: processors don't look beyond a page by themselves. */
INLINE void fetch(const float *at, long count)
{
    for (long i = 0; i < count; i += 16)
        __builtin_prefetch((const char *)(at + i) + AHEAD);
}

/* Of the `group` queries, each `width` floats, with `count` keys; each query's scores lie SPAN apart. */
INLINE void run_scores(const float *queries, long group, long width, const float *keys, long count, long head_dim,
                       float *scores)
{
    float out[KEYS];
    long whole = count / KEYS * KEYS;
    for (long at = 0; at < whole; at += KEYS) {
        fetch(keys + at * head_dim, KEYS * head_dim);
        for (long g = 0; g < group; g++) {
            few_scores(queries + g * width, keys + at * head_dim, KEYS, head_dim, out);
            memcpy(scores + g * SPAN + at, out, sizeof out);
        }
    }
    for (long g = 0; g < group && whole < count; g++) {
        few_scores(queries + g * width, keys + whole * head_dim, count - whole, head_dim, out);
        memcpy(scores + g * SPAN + whole, out, (count - whole) * sizeof *out);
    }
}

/* Add `count` values, each times its weight, to `sums` (`width` floats); key by key, so cut where you like. */
INLINE void run_values(const float *weights, const float *values, long count, long head_dim, float *sums)
{
    long at = 0;
    for (; at + CHUNK * W <= head_dim; at += CHUNK * W) {
        lanes some[CHUNK];
        for (int i = 0; i < CHUNK; i++)
            some[i] = v_load(sums + at + i * W);
        for (long k = 0; k < count; k++) {
            lanes weight = v_all(weights[k]);
            for (int i = 0; i < CHUNK; i++)
                some[i] = v_fma(weight, v_load(values + k * head_dim + at + i * W), some[i]);
        }
        for (int i = 0; i < CHUNK; i++)
            v_store(sums + at + i * W, some[i]);
    }
    for (; at < head_dim; at += W) {
        lanes some = v_load(sums + at);
        for (long k = 0; k < count; k++)
            some = v_fma(v_all(weights[k]), vector_of(values + k * head_dim, at, head_dim), some);
        v_store(sums + at, some);
    }
}

/* For each run of neighbours in one page among positions start .. end - 1. */
#define EACH_RUN(cache, place, start, end, at, page, inside, count)                                                    \
    for (long at = start, page, inside, count;                                                                         \
         at < (end) && (page = (place).pages[at / (cache)->page_tokens], inside = at % (cache)->page_tokens,           \
                        count = (cache)->page_tokens - inside < (end) - at ? (cache)->page_tokens - inside : (end) - at, 1); \
         at += count)

/* Scores to weights, and their sum; `count` of them, with room for whole vectors. */
static void soften(float *scores, long count, float *largest, float *total)
{
    for (long at = count; at < up_to(count, W); at++)
        scores[at] = -INFINITY;
    lanes most = v_load(scores), sum = v_zero();
    for (long at = W; at < count; at += W)
        most = v_max(most, v_load(scores + at));
    *largest = v_largest(most);
    for (long at = 0; at < count; at += W) {
        lanes weight = v_exp(v_sub(v_load(scores + at), v_all(*largest)));
        v_store(scores + at, weight);
        sum = v_add(sum, weight);
    }
    *total = v_sum(sum);
}

static void span_of(const struct work *work, long row, long span, long head, float *room, float *part)
{
    const struct attention *all = work->all;
    const struct cache *cache = &all->cache;
    struct place place = all->places[row];
    long head_dim = cache->head_dim, group = work->group, width = work->width;
    long begin = begin_of(all, place.position), start = (begin / SPAN + span) * SPAN;
    long end = place.position + 1 < start + SPAN ? place.position + 1 : start + SPAN;
    start = start < begin ? begin : start;
    float *queries = room, *scores = room + group * width;
    const float *from = all->queries.at + row * all->queries.stride + head * group * head_dim;
    memset(queries, 0, group * width * sizeof *queries);
    memset(part, 0, group * width * sizeof *part);
    for (long g = 0; g < group; g++)
        for (long at = 0; at < head_dim; at++)
            queries[g * width + at] = from[g * head_dim + at] * all->scale;
    EACH_RUN(cache, place, start, end, at, page, inside, count)
        run_scores(queries, group, width, stored(cache, page, all->layer, 0, head) + inside * head_dim, count, head_dim,
                   scores + at - start);
    float *largest = part + group * width, *total = largest + group;
    for (long g = 0; g < group; g++)
        soften(scores + g * SPAN, end - start, &largest[g], &total[g]);
    EACH_RUN(cache, place, start, end, at, page, inside, count)
        for (long g = 0; g < group; g++)
            run_values(scores + g * SPAN + at - start, stored(cache, page, all->layer, 1, head) + inside * head_dim,
                       count, head_dim, part + g * width);
}

static unsigned long room_bytes(const struct work *work)
{
    return sizeof(float) * work->group * (work->width + SPAN);
}

static void span_block(void *context, long block, int worker)
{
    const struct work *work = context;
    long heads = work->all->cache.kv_heads, number = block / heads, row = 0;
    while (work->first[row + 1] <= number)
        row++;
    span_of(work, row, number - work->first[row], block % heads, pool_scratch(work->pool, worker, room_bytes(work)),
            work->parts + block * work->part_floats);
}

/* -- spans together ------------------------------------------------------------------------------------------------ */

static float kept(float largest, float all)
{
    float out[W];
    v_store(out, v_exp(v_all(largest - all)));
    return out[0];
}

/* One head of queries of one row: `parts` are its spans', `step` floats apart. */
static void combine(const float *parts, long count, long step, const struct work *work, long g, float *out)
{
    long width = work->width, head_dim = work->all->cache.head_dim, places = work->group * width;
    float largest = parts[places + g], total = 0.0f, sums[width];
    for (long span = 1; span < count; span++)
        largest = parts[span * step + places + g] > largest ? parts[span * step + places + g] : largest;
    memset(sums, 0, sizeof sums);
    for (long span = 0; span < count; span++) {
        const float *part = parts + span * step;
        float weight = kept(part[places + g], largest);
        total += weight * part[places + work->group + g];
        for (long at = 0; at < width; at += W)
            v_store(sums + at, v_fma(v_all(weight), v_load(part + g * width + at), v_load(sums + at)));
    }
    for (long at = 0; at < head_dim; at++)
        out[at] = sums[at] / total;
}

static void combine_all(const struct work *work)
{
    const struct attention *all = work->all;
    long heads = all->cache.kv_heads, step = heads * work->part_floats;
    for (long row = 0; row < all->queries.rows; row++)
        for (long head = 0; head < heads; head++)
            for (long g = 0; g < work->group; g++)
                combine(work->parts + work->first[row] * step + head * work->part_floats,
                        work->first[row + 1] - work->first[row], step, work, g,
                        all->out.at + row * all->out.stride + (head * work->group + g) * all->cache.head_dim);
}

int SET(attend)(struct pool *pool, const struct attention *all)
{
    const struct cache *cache = &all->cache;
    struct work work = {.all = all, .pool = pool};
    work.group = all->queries.columns / (cache->kv_heads * cache->head_dim);
    work.width = up_to(cache->head_dim, CHUNK * W);
    work.part_floats = up_to(work.group * (work.width + 2), 16);
    long first[all->queries.rows + 1];
    first[0] = 0;
    for (long row = 0; row < all->queries.rows; row++)
        first[row + 1] = first[row] + spans(all, all->places[row].position);
    work.first = first;
    long blocks = first[all->queries.rows] * cache->kv_heads;
    for (int worker = 0; worker < pool_threads(pool); worker++)
        if (pool_scratch(pool, worker, room_bytes(&work)) == NULL)
            return -1;
    work.parts = pool_results(pool, sizeof(float) * work.part_floats * blocks);
    if (work.parts == NULL)
        return -1;
    turn_and_store(all);
    parallel_for(pool, blocks, span_block, &work);
    combine_all(&work);
    return 0;
}
