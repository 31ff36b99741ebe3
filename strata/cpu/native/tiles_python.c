/* The tile kernels as Python functions: every size is checked here, so that the kernels needn't. */
#include "python.h"

#include "tiles.h"

#include <stdlib.h>

static const struct tile_kernels *kernels(void)
{
#ifdef HAVE_AVX2
    static const struct tile_kernels *const all[SETS] = {&tiles_portable, &tiles_avx2, &tiles_avx512};
    return all[chosen_set()];
#else
    return &tiles_portable;
#endif
}

static int whole_tiles(const struct floats *rows)
{
    if (rows->rows % TILE)
        PyErr_Format(PyExc_ValueError, "%ld rows aren't whole tiles of %d", rows->rows, TILE);
    return rows->rows % TILE == 0;
}

/* product_tiles(pool, weights, x, out, add) */
static PyObject *product(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    struct view views[2] = {0};
    struct product all = {0};
    struct pool *pool = NULL;
    int failed = 0;
    if (!arguments_are(count, 5) || (all.weights = weights_of(arguments[1])) == NULL)
        return NULL;
    if (view_rows(arguments[2], "x", 0, &views[0], &all.x) == 0
        && view_rows(arguments[3], "out", 1, &views[1], &all.out) == 0 && whole_tiles(&all.x)) {
        all.add = PyObject_IsTrue(arguments[4]) == 1;
        if (all.x.columns != all.weights->columns || all.out.columns != all.weights->outputs
            || all.x.rows != all.out.rows || (all.add && all.weights->gated))
            wrong_sizes();
        else
            pool = pool_enter(arguments[0]);
    }
    if (pool != NULL) {
        Py_BEGIN_ALLOW_THREADS
        failed = kernels()->product(pool, &all);
        Py_END_ALLOW_THREADS
        pool_leave(arguments[0]);
    }
    view_end(views, 2);
    if (pool == NULL)
        return NULL;
    return failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

/* norm_tiles(pool, x, weight, eps, out): of whole rows, or of heads that are as long as the weight. */
static PyObject *norm(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    struct view views[3] = {0};
    struct floats x, out;
    struct pool *pool = NULL;
    long width = 0;
    if (!arguments_are(count, 5))
        return NULL;
    const double eps = PyFloat_AsDouble(arguments[3]);
    if (!PyErr_Occurred() && view_rows(arguments[1], "x", 0, &views[0], &x) == 0
        && view_array(arguments[2], "weight", "f", 1, 0, &views[1]) == 0
        && view_rows(arguments[4], "out", 1, &views[2], &out) == 0 && whole_tiles(&x)) {
        width = views[1].buffer.shape[0];
        if (x.rows != out.rows || x.columns != out.columns || width < 1 || x.columns % width)
            wrong_sizes();
        else
            pool = pool_enter(arguments[0]);
    }
    if (pool != NULL) {
        Py_BEGIN_ALLOW_THREADS
        kernels()->norm(pool, x, views[1].buffer.buf, width, (float)eps, out);
        Py_END_ALLOW_THREADS
        pool_leave(arguments[0]);
    }
    view_end(views, 3);
    return pool == NULL ? NULL : Py_NewRef(Py_None);
}

/* -- attention --------------------------------------------------------------------------------------------------- */

static int fits(const struct tile_attention *all)
{
    const struct cache *cache = &all->cache;
    const long keys = cache->kv_heads * cache->head_dim, rows = all->queries.rows;
    return keys > 0 && all->queries.columns > 0 && all->queries.columns % keys == 0 && all->keys.columns == keys
           && all->values.columns == keys && all->out.columns == all->queries.columns && all->keys.rows == rows
           && all->values.rows == rows && all->out.rows == rows && 2 * all->table.pairs <= cache->head_dim
           && all->layer >= 0 && all->layer < cache->layers && all->window >= 0
           && cache->page_tokens > 0;
}

/* Whether the rows lie on the grid, have angles, and hold at least one real one. */
static int placed(const struct tile_attention *all)
{
    const long last = all->first + all->queries.rows;
    if (all->first >= 0 && all->first % TILE == 0 && all->first <= all->start && all->start < all->end
        && all->end <= last && last <= all->table.positions)
        return 1;
    PyErr_Format(PyExc_IndexError, "positions %ld to %ld in tiles from %ld to %ld", all->start, all->end, all->first, last);
    return 0;
}

/* The pages of positions below `end`; NULL with an exception where there are too few or one that isn't there. */
static int32_t *read_pages(PyObject *numbers, const struct tile_attention *all)
{
    const long needed = (all->end - 1) / all->cache.page_tokens + 1;
    const Py_ssize_t given = PySequence_Size(numbers);
    int32_t *pages = given < needed ? NULL : malloc((size_t)needed * sizeof *pages);
    if (pages == NULL && !PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "%zd pages for %ld positions", given, all->end);
    for (long at = 0; pages != NULL && at < needed; at++) {
        PyObject *number = PySequence_GetItem(numbers, at);
        const long page = number == NULL ? -1 : PyLong_AsLong(number);
        Py_XDECREF(number);
        pages[at] = (int32_t)page;
        if (page < 0 || page >= all->cache.pages) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_IndexError, "there is no page %ld", page);
            free(pages);
            pages = NULL;
        }
    }
    return pages;
}

static PyObject *run_attention(PyObject *pool_object, PyObject *numbers, struct tile_attention *all)
{
    int32_t *pages = read_pages(numbers, all);
    struct pool *pool = pages == NULL ? NULL : pool_enter(pool_object);
    int failed = 0;
    if (pool != NULL) {
        all->pages = pages;
        Py_BEGIN_ALLOW_THREADS
        failed = kernels()->attend(pool, all);
        Py_END_ALLOW_THREADS
        pool_leave(pool_object);
    }
    free(pages);
    if (pool == NULL)
        return NULL;
    return failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

/* attend_tiles(pool, queries, keys, values, table, cache, layer, window, scale, pages, first, start, end, out) */
static PyObject *attend(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    struct view views[6] = {0};
    struct tile_attention all = {0};
    PyObject *result = NULL;
    if (!arguments_are(count, 14))
        return NULL;
    all.layer = PyLong_AsLong(arguments[6]);
    all.window = PyErr_Occurred() ? 0 : PyLong_AsLong(arguments[7]);
    all.scale = PyErr_Occurred() ? 0 : (float)PyFloat_AsDouble(arguments[8]);
    all.first = PyErr_Occurred() ? 0 : PyLong_AsLong(arguments[10]);
    all.start = PyErr_Occurred() ? 0 : PyLong_AsLong(arguments[11]);
    all.end = PyErr_Occurred() ? 0 : PyLong_AsLong(arguments[12]);
    if (!PyErr_Occurred() && view_rows(arguments[1], "queries", 1, &views[0], &all.queries) == 0
        && view_rows(arguments[2], "keys", 1, &views[1], &all.keys) == 0
        && view_rows(arguments[3], "values", 0, &views[2], &all.values) == 0
        && view_array(arguments[4], "table", "Zf", 2, 0, &views[3]) == 0
        && view_array(arguments[5], "cache", "f", 6, 1, &views[4]) == 0
        && view_rows(arguments[13], "out", 1, &views[5], &all.out) == 0 && whole_tiles(&all.queries)) {
        const Py_ssize_t *sizes = views[4].buffer.shape;
        all.table = (struct table){views[3].buffer.buf, views[3].buffer.shape[0], views[3].buffer.shape[1]};
        all.cache = (struct cache){views[4].buffer.buf, sizes[0], sizes[1], sizes[3], sizes[4], sizes[5]};
        if (!fits(&all) || sizes[2] != 2)
            wrong_sizes();
        else if (placed(&all))
            result = run_attention(arguments[0], arguments[9], &all);
    }
    view_end(views, 6);
    return result;
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

PyMethodDef tile_functions[] = {
    {"product_tiles", FAST(product), "product_tiles(pool, weights, x, out, add)"},
    {"norm_tiles", FAST(norm), "norm_tiles(pool, x, weight, eps, out)"},
    {"attend_tiles", FAST(attend),
     "attend_tiles(pool, queries, keys, values, table, cache, layer, window, scale, pages, first, start, end, out)"},
    {NULL, NULL, 0, NULL},
};
