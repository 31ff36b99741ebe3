/* Threads that share out one operation's blocks.
 *
 * Threads take the next blocks when they have done some, so that a thread which the machine holds up costs these and not
 * the operation.  A thread without work spins for some tens of microseconds, then sleeps.
 */
#ifndef STRATA_POOL_H
#define STRATA_POOL_H

struct pool;

/* Does block `block` (0, 1, ...) of an operation.  `worker` is below the pool's number of threads, and no two blocks
 * that run at the same time have the same, so that it can name scratch memory. */
typedef void (*block_function)(void *context, long block, int worker);

/* Does blocks first .. first + count - 1, which are neighbours. */
typedef void (*run_function)(void *context, long first, long count, int worker);

/* `threads` in all, the caller of `parallel_for` among them.  NULL where memory or threads are lacking. */
struct pool *pool_open(int threads);

/* Ends the threads and waits for their end; the pool computes on with the caller alone. */
void pool_close(struct pool *pool);

/* After pool_close. */
void pool_free(struct pool *pool);

int pool_threads(const struct pool *pool);

/* Memory of one worker's own, at a cache line, kept from call to call and grown where needed; NULL where there is none.
 * What was in it is lost when it grows.  To be asked for before `parallel_for`, or in a block for its own worker. */
void *pool_scratch(struct pool *pool, int worker, unsigned long bytes);

/* Likewise, of the caller's own: for what its blocks make and it puts together. */
void *pool_results(struct pool *pool, unsigned long bytes);

/* Does blocks 0 .. blocks - 1, in any order and at the same time, and returns when all are done.  No GIL is needed.
 * One caller at a time. */
void parallel_for(struct pool *pool, long blocks, block_function function, void *context);

/* Likewise, up to `most` blocks at a time: many at first, as neighbours lie in memory, and fewer as fewer are left, so that
 * all threads are done at about the same time. */
void parallel_runs(struct pool *pool, long blocks, long most, run_function function, void *context);

#endif
