/* Draws tokens: the same, bit for bit, as strata/engine/drawing.py, since weights are whole numbers and all that makes them
 * of logits is rounded by itself.  Compiled for every instruction set; each row is one thread's.
 */
#include "draw.h"

#include "lanes.h"

#define WHOLE_BITS 40
#define LEAST_EXPONENT (-62.0f)
#define TOGETHER 256 /* logits that are looked at before it is asked whether to go on */
#define DIGIT 11     /* bits of a logit by which those are told apart that may be the last one kept */
#define DIGITS (1 << DIGIT)

struct scratch {
    uint64_t sums[DIGITS];
    uint64_t *weights; /* of each token */
    uint32_t *near;    /* tokens, in order of id */
};

/* The last of the likeliest that is kept. */
struct cut {
    uint32_t order;
    uint32_t token;
};

/* In the order of numbers; both zeros are the same. */
INLINE uint32_t order_of(float logit)
{
    uint32_t bits;
    logit += 0.0f;
    memcpy(&bits, &logit, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

INLINE uint32_t digit_of(float logit, int shift) { return order_of(logit) >> shift & (DIGITS - 1); }

INLINE uint64_t high_half(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }

/* The first 64 bits of Philox4x64-10, by the key (seed, 0) and the counter (position + 1, 0, 0, 0). */
static uint64_t random_bits(uint64_t seed, uint64_t position)
{
    uint64_t counter[4] = {position + 1}, key[2] = {seed};
    for (int round = 0; round < 10; round++) {
        const uint64_t left = 0xd2e7470ee14c6c93u, right = 0xca5a826395121157u;
        const uint64_t first = high_half(right, counter[2]) ^ counter[1] ^ key[0], second = right * counter[2];
        const uint64_t third = high_half(left, counter[0]) ^ counter[3] ^ key[1], fourth = left * counter[0];
        counter[0] = first, counter[1] = second, counter[2] = third, counter[3] = fourth;
        key[0] += 0x9e3779b97f4a7c15u;
        key[1] += 0xbb67ae8584caa73bu;
    }
    return counter[0];
}

static int all_finite(const float *logits, long count)
{
    uint32_t bad = 0;
    for (long i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

static float largest_of(const float *logits, long count)
{
    const long whole = count / W * W;
    float largest = logits[0];
    if (whole) {
        lanes most = v_load(logits);
        for (long at = W; at < whole; at += W)
            most = v_max(v_load(logits + at), most);
        largest = v_largest(most);
    }
    for (long at = whole; at < count; at++)
        largest = logits[at] > largest ? logits[at] : largest;
    return largest;
}

static int64_t first_with(const float *logits, long count, float value)
{
    for (long at = 0; at < count; at += TOGETHER) {
        const long end = at + TOGETHER < count ? at + TOGETHER : count;
        int found = 0;
        for (long i = at; i < end; i++)
            found |= logits[i] == value;
        for (long i = at; found && i < end; i++)
            if (logits[i] == value)
                return i;
    }
    return -1;
}

/* At most TOGETHER.  In three goes, because compilers make vectors of each and of no two of them. */
static void weigh_some(const float *restrict logits, long count, float largest, float scale, uint64_t *restrict weights)
{
    float exponents[TOGETHER];
    int32_t powers[TOGETHER], shifts[TOGETHER];
    for (long i = 0; i < count; i++) {
        const float exponent = (logits[i] - largest) * scale;
        exponents[i] = exponent > LEAST_EXPONENT ? exponent : LEAST_EXPONENT;
    }
    for (long i = 0; i < count; i++) {
        const int32_t cut = (int32_t)exponents[i], whole = cut - ((float)cut > exponents[i]);
        const float rest = exponents[i] - (float)whole;
        float power = 0.0018671302f;
        power = power * rest + 0.00901703f;
        power = power * rest + 0.055799913f;
        power = power * rest + 0.24016444f;
        power = power * rest + 0.6931513f;
        power = power * rest + 1.0f;
        /* A float of this size has 23 bits behind its point. */
        powers[i] = (int32_t)(power * 8388608.0f);
        shifts[i] = -whole;
    }
    for (long i = 0; i < count; i++)
        weights[i] = (uint64_t)(uint32_t)powers[i] << (WHOLE_BITS - 23) >> (uint32_t)shifts[i];
}

static void weigh(const float *logits, long count, float largest, float scale, uint64_t *weights)
{
    for (long at = 0; at < count; at += TOGETHER)
        weigh_some(logits + at, count - at < TOGETHER ? count - at : TOGETHER, largest, scale, weights + at);
}

/* What of the sums, from the last one on, reaches the goal; the goal becomes what is missing before it. */
static uint32_t digit_at(const uint64_t sums[DIGITS], uint64_t *goal)
{
    uint32_t digit = DIGITS - 1;
    for (; digit > 0 && sums[digit] < *goal; digit--)
        *goal -= sums[digit];
    return digit;
}

INLINE uint64_t part_of(uint32_t token, int counted, const struct scratch *own)
{
    return counted ? 1 : own->weights[token];
}

/* Where the likeliest, one after the other, are `goal` (`counted`), or weigh so much; all of them must. */
static struct cut reach(const float *logits, long count, uint64_t goal, int counted, struct scratch *own)
{
    static const int shifts[] = {32 - DIGIT, 32 - 2 * DIGIT, 0};
    long near = count, last = 0;
    for (int level = 0; level < 3; level++) {
        memset(own->sums, 0, sizeof own->sums);
        for (long i = 0; i < near; i++) {
            const uint32_t token = level ? own->near[i] : (uint32_t)i;
            own->sums[digit_of(logits[token], shifts[level])] += part_of(token, counted, own);
        }
        const uint32_t digit = digit_at(own->sums, &goal);
        long left = 0;
        for (long i = 0; i < near; i++) {
            const uint32_t token = level ? own->near[i] : (uint32_t)i;
            own->near[left] = token;
            left += digit_of(logits[token], shifts[level]) == digit;
        }
        near = left;
    }
    if (near == 0) /* somebody writes to the logits meanwhile: what comes of that is his, but it must come */
        return (struct cut){0, UINT32_MAX};
    /* These are equal. */
    for (; last + 1 < near && part_of(own->near[last], counted, own) < goal; last++)
        goal -= part_of(own->near[last], counted, own);
    return (struct cut){order_of(logits[own->near[last]]), own->near[last]};
}

/* Takes their weight from those behind the cut. */
static void drop_behind(struct cut cut, const float *logits, long count, uint64_t *weights)
{
    for (long i = 0; i < count; i++) {
        const uint32_t order = order_of(logits[i]);
        weights[i] = (order > cut.order) | ((order == cut.order) & ((uint32_t)i <= cut.token)) ? weights[i] : 0;
    }
}

static uint64_t sum_of(const uint64_t *weights, long count)
{
    uint64_t sum = 0;
    for (long i = 0; i < count; i++)
        sum += weights[i];
    return sum;
}

/* The token that lies there when all lie side by side. */
static int64_t token_at(const uint64_t *weights, long count, uint64_t place)
{
    long at = 0;
    for (uint64_t sum; at + TOGETHER < count && (sum = sum_of(weights + at, TOGETHER)) <= place; at += TOGETHER)
        place -= sum;
    for (; at + 1 < count && weights[at] <= place; at++)
        place -= weights[at];
    return at;
}

static int64_t drawn(const float *logits, long count, const struct draw *draw, struct scratch *own)
{
    const float largest = largest_of(logits, count);
    if (draw->keep == 1)
        return first_with(logits, count, largest);
    weigh(logits, count, largest, draw->scale, own->weights);
    if (draw->keep > 0 && draw->keep < count)
        drop_behind(reach(logits, count, (uint64_t)draw->keep, 1, own), logits, count, own->weights);
    if (draw->nucleus < UINT64_MAX) {
        const unsigned __int128 goal = (unsigned __int128)sum_of(own->weights, count) * draw->nucleus + UINT64_MAX;
        const uint64_t least = (uint64_t)(goal >> 64);
        drop_behind(reach(logits, count, least ? least : 1, 0, own), logits, count, own->weights);
    }
    for (long i = 0; draw->least && i < count; i++)
        own->weights[i] = own->weights[i] >= draw->least ? own->weights[i] : 0;
    return token_at(own->weights, count, high_half(random_bits(draw->seed, draw->position), sum_of(own->weights, count)));
}

struct task {
    struct pool *pool;
    const struct drawing *all;
};

static unsigned long bytes_of(long count)
{
    return sizeof(struct scratch) + count * (sizeof(uint64_t) + sizeof(uint32_t));
}

static void draw_row(void *context, long row, int worker)
{
    const struct task *task = context;
    const struct drawing *all = task->all;
    const float *logits = all->logits.at + row * all->logits.stride;
    const long count = all->logits.columns;
    struct scratch *own = pool_scratch(task->pool, worker, bytes_of(count));
    own->weights = (uint64_t *)(own + 1);
    own->near = (uint32_t *)(own->weights + count);
    all->tokens[row] = -1;
    if (all->draws[row].wanted && count && all_finite(logits, count))
        all->tokens[row] = drawn(logits, count, &all->draws[row], own);
}

int SET(draw)(struct pool *pool, const struct drawing *all)
{
    struct task task = {pool, all};
    for (int worker = 0; worker < pool_threads(pool); worker++)
        if (pool_scratch(pool, worker, bytes_of(all->logits.columns)) == NULL)
            return -1;
    parallel_for(pool, all->logits.rows, draw_row, &task);
    return 0;
}
