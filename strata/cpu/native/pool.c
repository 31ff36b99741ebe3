/* See pool.h.  POSIX threads and C11 atomics; knows no kernel and no Python. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np */
#endif
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SPIN_NS 50000
#define LINE 64

struct scratch {
    void *memory;
    unsigned long bytes;
    char apart[LINE - sizeof(void *) - sizeof(unsigned long)];
};

struct pool {
    /* The round's number in the upper half, the next block in the lower: a thread that was held up since an earlier
     * round can take nothing of this one by mistake. */
    _Alignas(LINE) _Atomic uint64_t ticket;
    _Alignas(LINE) atomic_long left; /* blocks of this round that are not done */
    _Alignas(LINE) _Atomic(run_function) function;
    _Atomic(void *) context;
    atomic_long blocks, most;
    atomic_int sleeping, waiting, closing;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int threads, helpers;
    struct helper *helper;
    struct scratch *scratch;
};

struct helper {
    struct pool *pool;
    int worker;
    pthread_t id;
};

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* How many of `left` blocks a thread takes: as many as it would of half of them, were they shared out. */
static long run_of(const struct pool *pool, long left, long most)
{
    long count = left / (2 * (pool->helpers + 1));
    return count < 1 ? 1 : count > most ? most : count;
}

/* Takes blocks of the round that `ticket` belongs to until there are none. */
static void take_blocks(struct pool *pool, uint64_t ticket, int worker)
{
    uint32_t round = ticket >> 32;
    run_function function = atomic_load_explicit(&pool->function, memory_order_relaxed);
    void *context = atomic_load_explicit(&pool->context, memory_order_relaxed);
    long blocks = atomic_load_explicit(&pool->blocks, memory_order_relaxed);
    long most = atomic_load_explicit(&pool->most, memory_order_relaxed);
    /* A ticket that is still of this round after the four were read says that they were this round's. */
    while ((uint32_t)(ticket >> 32) == round && (long)(uint32_t)ticket < blocks) {
        long next = (uint32_t)ticket, count = run_of(pool, blocks - next, most);
        if (!atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket + (uint64_t)count))
            continue;
        function(context, next, count, worker);
        if (atomic_fetch_sub(&pool->left, count) == count && atomic_load(&pool->waiting)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
        ticket = atomic_load(&pool->ticket);
    }
}

/* The ticket of a round that is not `seen`, after spinning or sleeping; 0 where the pool closes. */
static uint64_t next_round(struct pool *pool, uint32_t seen)
{
    int64_t until = now_ns() + SPIN_NS;
    for (unsigned turn = 1;; turn++) {
        uint64_t ticket = atomic_load(&pool->ticket);
        if ((uint32_t)(ticket >> 32) != seen)
            return ticket;
        pause_briefly();
        if (turn % 32 == 0 && now_ns() > until)
            break;
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleeping, 1);
    uint64_t ticket = atomic_load(&pool->ticket);
    while ((uint32_t)(ticket >> 32) == seen && !atomic_load(&pool->closing)) {
        pthread_cond_wait(&pool->work, &pool->lock);
        ticket = atomic_load(&pool->ticket);
    }
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
    return atomic_load(&pool->closing) ? 0 : ticket;
}

static void *help(void *argument)
{
    struct helper *helper = argument;
    struct pool *pool = helper->pool;
#ifdef __linux__
    char name[16];
    snprintf(name, sizeof name, "strata-cpu-%d", helper->worker % 1000);
    pthread_setname_np(pthread_self(), name);
#endif
    uint32_t seen = 0;
    for (;;) {
        uint64_t ticket = next_round(pool, seen);
        if (ticket == 0)
            return NULL;
        seen = ticket >> 32;
        take_blocks(pool, ticket, helper->worker);
    }
}

static void wake(struct pool *pool, long helpers)
{
    if (atomic_load(&pool->sleeping) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    if (helpers >= pool->helpers)
        pthread_cond_broadcast(&pool->work);
    else
        for (long one = 0; one < helpers; one++)
            pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

static void wait_done(struct pool *pool)
{
    int64_t until = now_ns() + SPIN_NS;
    for (unsigned turn = 1; atomic_load(&pool->left) != 0; turn++) {
        pause_briefly();
        if (turn % 32 == 0 && now_ns() > until)
            break;
    }
    if (atomic_load(&pool->left) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->waiting, 1);
    while (atomic_load(&pool->left) != 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->waiting, 0);
    pthread_mutex_unlock(&pool->lock);
}

void parallel_runs(struct pool *pool, long blocks, long most, run_function function, void *context)
{
    if (blocks < 2 || pool->helpers == 0) {
        for (long next = 0; next < blocks; next += most)
            function(context, next, blocks - next < most ? blocks - next : most, 0);
        return;
    }
    uint64_t last = atomic_load(&pool->ticket) >> 32 << 32, ticket = last + ((uint64_t)1 << 32);
    if (ticket == 0)
        ticket = (uint64_t)1 << 32; /* 0 says that the pool closes */
    /* Closed first, to those who still look at the last round: its next block would be one of this round's. */
    atomic_store(&pool->ticket, last | UINT32_MAX);
    atomic_store(&pool->function, function);
    atomic_store(&pool->context, context);
    atomic_store(&pool->left, blocks);
    atomic_store(&pool->blocks, blocks);
    atomic_store(&pool->most, most);
    atomic_store(&pool->ticket, ticket);
    wake(pool, blocks - 1);
    take_blocks(pool, ticket, 0);
    wait_done(pool);
}

struct single {
    block_function function;
    void *context;
};

static void single_block(void *context, long first, long count, int worker)
{
    const struct single *single = context;
    (void)count;
    single->function(single->context, first, worker);
}

void parallel_for(struct pool *pool, long blocks, block_function function, void *context)
{
    struct single single = {function, context};
    parallel_runs(pool, blocks, 1, single_block, &single);
}

struct pool *pool_open(int threads)
{
    struct pool *pool = aligned_alloc(LINE, (sizeof *pool + LINE - 1) / LINE * LINE);
    if (pool == NULL)
        return NULL;
    *pool = (struct pool){.threads = threads};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->helper = calloc(threads, sizeof *pool->helper);
    pool->scratch = calloc(threads + 1, sizeof *pool->scratch);
    int failed = pool->helper == NULL || pool->scratch == NULL;
    for (int worker = 1; worker < threads && !failed; worker++) {
        struct helper *helper = &pool->helper[pool->helpers];
        *helper = (struct helper){pool, worker, 0};
        failed = pthread_create(&helper->id, NULL, help, helper) != 0;
        pool->helpers += !failed;
    }
    if (failed) {
        pool_close(pool);
        pool_free(pool);
        return NULL;
    }
    return pool;
}

void pool_close(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->closing, 1);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int number = 0; number < pool->helpers; number++)
        pthread_join(pool->helper[number].id, NULL);
    pool->helpers = 0;
}

void pool_free(struct pool *pool)
{
    for (int worker = 0; worker <= pool->threads && pool->scratch != NULL; worker++)
        free(pool->scratch[worker].memory);
    free(pool->scratch);
    free(pool->helper);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

int pool_threads(const struct pool *pool)
{
    return pool->threads;
}

void *pool_scratch(struct pool *pool, int worker, unsigned long bytes)
{
    struct scratch *own = &pool->scratch[worker];
    if (own->bytes < bytes) {
        unsigned long whole = (bytes + LINE - 1) / LINE * LINE;
        void *memory = aligned_alloc(LINE, whole);
        if (memory == NULL)
            return NULL;
        free(own->memory);
        *own = (struct scratch){.memory = memory, .bytes = whole};
    }
    return own->memory;
}

void *pool_results(struct pool *pool, unsigned long bytes)
{
    return pool_scratch(pool, pool->threads, bytes);
}
