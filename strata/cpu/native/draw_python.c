/* Drawing as a Python function: every number is checked here, so that the kernels needn't. */
#include "python.h"

#include "draw.h"

#include <stdlib.h>

static int draw_rows(struct pool *pool, const struct drawing *all)
{
#ifdef HAVE_AVX2
    static int (*const sets[SETS])(struct pool *, const struct drawing *) = {draw_portable, draw_avx2, draw_avx512};
    return sets[chosen_set()](pool, all);
#else
    return draw_portable(pool, all);
#endif
}

/* From (scale, keep, nucleus, least, seed, position), or None. */
static int read_draw(PyObject *object, struct draw *out)
{
    unsigned long long nucleus, least, seed, position;
    *out = (struct draw){0};
    if (object == Py_None)
        return 0;
    if (!PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a draw is a tuple, or None");
        return -1;
    }
    if (!PyArg_ParseTuple(object, "flKKKK", &out->scale, &out->keep, &nucleus, &least, &seed, &position))
        return -1;
    /* Or nothing might be left to draw from. */
    if (out->keep < 0 || least > 1ull << 40 || !(out->scale >= 0 && out->scale <= 3e38f)) {
        PyErr_SetString(PyExc_ValueError, "a draw that leaves nothing");
        return -1;
    }
    *out = (struct draw){nucleus, least, seed, position, out->keep, out->scale, 1};
    return 0;
}

static PyObject *as_list(const int64_t *tokens, long count)
{
    PyObject *list = PyList_New(count);
    for (long row = 0; row < count && list != NULL; row++) {
        PyObject *token = tokens[row] < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(tokens[row]);
        if (token == NULL || PyList_SetItem(list, row, token) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *run(PyObject *pool_object, struct drawing *all)
{
    struct pool *pool = pool_enter(pool_object);
    int failed;
    if (pool == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed = draw_rows(pool, all);
    Py_END_ALLOW_THREADS
    pool_leave(pool_object);
    return failed ? PyErr_NoMemory() : as_list(all->tokens, all->logits.rows);
}

static PyObject *draw_from(PyObject *pool, PyObject *told, struct floats logits)
{
    struct draw *draws = malloc((logits.rows + 1) * sizeof *draws);
    struct drawing all = {logits, draws, malloc((logits.rows + 1) * sizeof *all.tokens)};
    PyObject *result = NULL;
    int ready = draws != NULL && all.tokens != NULL;
    if (!ready)
        PyErr_NoMemory();
    for (long row = 0; row < logits.rows && ready; row++)
        ready = read_draw(PyTuple_GetItem(told, row), &draws[row]) == 0;
    if (ready)
        result = run(pool, &all);
    free(draws);
    free(all.tokens);
    return result;
}

/* draw(pool, logits, draws) */
static PyObject *draw(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    struct view view = {0};
    struct floats logits;
    PyObject *result = NULL;
    if (!arguments_are(count, 3))
        return NULL;
    if (view_rows(arguments[1], "logits", 0, &view, &logits) == 0) {
        /* A copy: whose numbers are asked for may change the list. */
        PyObject *told = PyList_Check(arguments[2]) ? PyList_AsTuple(arguments[2]) : NULL;
        if (told != NULL && PyTuple_Size(told) == logits.rows && logits.columns <= UINT32_MAX)
            result = draw_from(arguments[0], told, logits);
        else if (!PyErr_Occurred())
            wrong_sizes();
        Py_XDECREF(told);
    }
    view_end(&view, 1);
    return result;
}

PyMethodDef draw_functions[] = {
    {"draw", (PyCFunction)(void (*)(void))draw, METH_FASTCALL, "draw(pool, logits, draws)"},
    {NULL, NULL, 0, NULL},
};
