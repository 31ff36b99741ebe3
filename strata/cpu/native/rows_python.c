/* The row kernels as Python functions: every size is checked here, so that the kernels needn't. */
#include "python.h"

#include "rows_python.h"

#include <stdlib.h>
#include <string.h>

const struct row_kernels *row_kernels(void)
{
#ifdef HAVE_AVX2
    static const struct row_kernels *const all[SETS] = {&rows_portable, &rows_avx2, &rows_avx512};
    return all[chosen_set()];
#else
    return &rows_portable;
#endif
}

/* -- products ---------------------------------------------------------------------------------------------------- */

static PyObject *run_product(PyObject *pool_object, const struct product *product)
{
    struct pool *pool = pool_enter(pool_object);
    if (pool == NULL)
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = row_kernels()->product(pool, product);
    Py_END_ALLOW_THREADS
    pool_leave(pool_object);
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

int take_product(PyObject *const *arguments, struct view views[2], struct product *out)
{
    out->weights = weights_of(arguments[0]);
    if (out->weights == NULL || view_rows(arguments[1], "x", 0, &views[0], &out->x) < 0
        || view_rows(arguments[2], "out", 1, &views[1], &out->out) < 0)
        return -1;
    out->add = PyObject_IsTrue(arguments[3]) == 1;
    if (out->x.columns == out->weights->columns && out->out.columns == out->weights->outputs
        && out->x.rows == out->out.rows && !(out->add && out->weights->gated))
        return 0;
    wrong_sizes();
    return -1;
}

/* product(pool, weights, x, out, add) */
static PyObject *product(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    struct view views[2] = {0};
    struct product product = {0};
    PyObject *result = NULL;
    if (!arguments_are(count, 5))
        return NULL;
    if (take_product(arguments + 1, views, &product) == 0)
        result = run_product(arguments[0], &product);
    view_end(views, 2);
    return result;
}

int take_norm(PyObject *const *arguments, struct view views[3], struct norm *out)
{
    double eps = PyFloat_AsDouble(arguments[2]);
    if (PyErr_Occurred() || view_rows(arguments[0], "x", 0, &views[0], &out->x) < 0
        || view_array(arguments[1], "weight", "f", 1, 0, &views[1]) < 0
        || view_rows(arguments[3], "out", 1, &views[2], &out->out) < 0)
        return -1;
    out->weight = views[1].buffer.buf;
    out->width = views[1].buffer.shape[0];
    out->eps = (float)eps;
    if (out->x.rows == out->out.rows && out->x.columns == out->out.columns && out->width > 0
        && out->x.columns % out->width == 0)
        return 0;
    wrong_sizes();
    return -1;
}

/* norm(x, weight, eps, out).  With the GIL: it takes less time than to give it away. */
static PyObject *norm(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    struct view views[3] = {0};
    struct norm norm;
    PyObject *result = NULL;
    if (!arguments_are(count, 4))
        return NULL;
    if (take_norm(arguments, views, &norm) == 0) {
        row_kernels()->norm(&norm);
        result = Py_NewRef(Py_None);
    }
    view_end(views, 3);
    return result;
}

/* -- numbers of weights ------------------------------------------------------------------------------------------ */

/* The part and its row that row `row` of all parts, one below the other, is; NULL where there is none. */
static const struct part *part_at(const struct weights *weights, long long *row)
{
    for (int number = 0; number < weights->count && *row >= 0; number++) {
        if (*row < weights->parts[number].rows)
            return &weights->parts[number];
        *row -= weights->parts[number].rows;
    }
    return NULL;
}

/* expand(weights, rows, out): rows are numbers of rows, int64. */
static PyObject *expand(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    struct view views[2] = {0};
    struct floats out;
    const struct weights *weights;
    PyObject *result = NULL;
    if (!arguments_are(count, 3) || (weights = weights_of(arguments[0])) == NULL)
        return NULL;
    if (view_array(arguments[1], "rows", "l", 1, 0, &views[0]) == 0
        && view_rows(arguments[2], "out", 1, &views[1], &out) == 0) {
        const int64_t *rows = views[0].buffer.buf;
        long at = 0;
        if (out.columns != weights->columns || out.rows != views[0].buffer.shape[0]) {
            wrong_sizes();
        } else {
            Py_BEGIN_ALLOW_THREADS
            for (; at < out.rows; at++) {
                long long row = rows[at];
                const struct part *part = part_at(weights, &row);
                if (part == NULL)
                    break;
                row_kernels()->expand(part, (long)row, (struct floats){out.at + at * out.stride, 1, out.columns, 0});
            }
            Py_END_ALLOW_THREADS
            if (at < out.rows)
                PyErr_Format(PyExc_IndexError, "there is no row %lld", (long long)rows[at]);
            else
                result = Py_NewRef(Py_None);
        }
    }
    view_end(views, 2);
    return result;
}

/* -- attention --------------------------------------------------------------------------------------------------- */

/* One row's place from (pages, position); pages are copied to `*pages`, which moves on. */
static int read_place(PyObject *pair, const struct attention *all, struct place *place, int32_t **pages)
{
    PyObject *numbers;
    if (!PyArg_ParseTuple(pair, "Ol", &numbers, &place->position))
        return -1;
    long needed = place->position / all->cache.page_tokens + 1;
    if (place->position < 0 || place->position >= all->table.positions || PySequence_Size(numbers) < needed) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "a position without angles or pages");
        return -1;
    }
    place->pages = *pages;
    for (long at = 0; at < needed; at++) {
        PyObject *number = PySequence_GetItem(numbers, at);
        long page = number == NULL ? -1 : PyLong_AsLong(number);
        Py_XDECREF(number);
        if (page < 0 || page >= all->cache.pages) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_IndexError, "there is no page %ld", page);
            return -1;
        }
        *(*pages)++ = (int32_t)page;
    }
    return 0;
}

int take_places(PyObject *list, const struct attention *all, struct places *out)
{
    long rows = all->queries.rows, most = (all->table.positions - 1) / all->cache.page_tokens + 1;
    if (!PyList_Check(list) || PyList_Size(list) != rows) {
        wrong_sizes();
        return -1;
    }
    out->places = malloc((rows ? rows : 1) * sizeof *out->places);
    out->pages = malloc((rows ? rows : 1) * most * sizeof *out->pages);
    if (out->places == NULL || out->pages == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int32_t *pages = out->pages;
    for (long row = 0; row < rows; row++)
        if (read_place(PyList_GetItem(list, row), all, &out->places[row], &pages) < 0)
            return -1;
    return 0;
}

static int fits(const struct attention *all)
{
    long keys = all->cache.kv_heads * all->cache.head_dim, rows = all->queries.rows;
    return keys > 0 && all->queries.columns > 0 && all->queries.columns % keys == 0 && all->keys.columns == keys
           && all->values.columns == keys && all->out.columns == all->queries.columns && all->keys.rows == rows
           && all->values.rows == rows && all->out.rows == rows && 2 * all->table.pairs <= all->cache.head_dim
           && all->layer >= 0 && all->layer < all->cache.layers && all->window >= 0
           && all->cache.page_tokens > 0;
}

void free_places(struct places *places)
{
    free(places->places);
    free(places->pages);
}

static PyObject *run_attention(PyObject *pool_object, PyObject *list, struct attention *all)
{
    struct places places = {0};
    struct pool *pool = NULL;
    int failed = 0, ready = take_places(list, all, &places) == 0 && (pool = pool_enter(pool_object)) != NULL;
    if (ready) {
        all->places = places.places;
        Py_BEGIN_ALLOW_THREADS
        failed = row_kernels()->attend(pool, all);
        Py_END_ALLOW_THREADS
        pool_leave(pool_object);
    }
    free_places(&places);
    if (!ready)
        return NULL;
    return failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

int take_attention(PyObject *const *arguments, PyObject *result, struct view views[6], struct attention *out)
{
    out->layer = PyLong_AsLong(arguments[5]);
    out->window = PyErr_Occurred() ? 0 : PyLong_AsLong(arguments[6]);
    out->scale = PyErr_Occurred() ? 0 : (float)PyFloat_AsDouble(arguments[7]);
    if (PyErr_Occurred() || view_rows(arguments[0], "queries", 1, &views[0], &out->queries) < 0
        || view_rows(arguments[1], "keys", 1, &views[1], &out->keys) < 0
        || view_rows(arguments[2], "values", 0, &views[2], &out->values) < 0
        || view_array(arguments[3], "table", "Zf", 2, 0, &views[3]) < 0
        || view_array(arguments[4], "cache", "f", 6, 1, &views[4]) < 0
        || view_rows(result, "out", 1, &views[5], &out->out) < 0)
        return -1;
    const Py_ssize_t *sizes = views[4].buffer.shape;
    out->table = (struct table){views[3].buffer.buf, views[3].buffer.shape[0], views[3].buffer.shape[1]};
    out->cache = (struct cache){views[4].buffer.buf, sizes[0], sizes[1], sizes[3], sizes[4], sizes[5]};
    if (fits(out) && sizes[2] == 2)
        return 0;
    wrong_sizes();
    return -1;
}

/* attend(pool, queries, keys, values, table, cache, layer, window, scale, places, out) */
static PyObject *attend(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    struct view views[6] = {0};
    struct attention all = {0};
    PyObject *result = NULL;
    if (!arguments_are(count, 11))
        return NULL;
    if (take_attention(arguments + 1, arguments[10], views, &all) == 0)
        result = run_attention(arguments[0], arguments[9], &all);
    view_end(views, 6);
    return result;
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

PyMethodDef row_functions[] = {
    {"product", FAST(product), "product(pool, weights, x, out, add)"},
    {"norm", FAST(norm), "norm(x, weight, eps, out)"},
    {"expand", FAST(expand), "expand(weights, rows, out)"},
    {"attend", FAST(attend), "attend(pool, queries, keys, values, table, cache, layer, window, scale, places, out)"},
    {NULL, NULL, 0, NULL},
};
