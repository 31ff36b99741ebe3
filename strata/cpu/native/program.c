/* A list of operations on rows that is done again and again: taken down once, with the arrays that they work on, and then
 * one call each time, in which Python has no part.  Only where the rows are differs from time to time.
 *
 * Knows no kernel and no model.
 */
#include "rows_python.h"

#include <stdlib.h>
#include <string.h>

#define MORE 32 /* operations that memory is taken for at a time: steps of every number of rows have a program */

enum what { PRODUCT, NORM, ADD, ATTEND };

/* x += more, row by row, or one row to each. */
struct addition {
    struct floats x, more;
};

struct operation {
    enum what what;
    union {
        struct product product;
        struct norm norm;
        struct addition addition;
        struct attention attention;
    };
    struct view views[6];
    PyObject *weights; /* held */
};

struct program_object {
    PyObject_HEAD
    struct operation *operations;
    long count, room, attends; /* `attends`: the number of the first that attends; -1: there is none */
    int running;
};

static int refuse_while_running(const struct program_object *self)
{
    if (self->running)
        PyErr_SetString(PyExc_RuntimeError, "the program is at work");
    return self->running;
}

/* -- taking down ------------------------------------------------------------------------------------------------- */

/* The next one, not counted yet; NULL with an exception. */
static struct operation *next_operation(struct program_object *self)
{
    if (refuse_while_running(self))
        return NULL;
    if (self->count == self->room) {
        long room = self->room + MORE;
        struct operation *more = realloc(self->operations, room * sizeof *more);
        if (more == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        self->operations = more;
        self->room = room;
    }
    struct operation *next = &self->operations[self->count];
    memset(next, 0, sizeof *next);
    return next;
}

static PyObject *take_down(struct program_object *self, struct operation *operation, int taken)
{
    if (taken < 0) {
        view_end(operation->views, 6);
        return NULL;
    }
    self->count++;
    Py_RETURN_NONE;
}

/* product(weights, x, out, add) */
static PyObject *add_product(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    struct program_object *self = (struct program_object *)object;
    struct operation *next = arguments_are(count, 4) ? next_operation(self) : NULL;
    if (next == NULL)
        return NULL;
    next->what = PRODUCT;
    int taken = take_product(arguments, next->views, &next->product);
    if (taken == 0)
        next->weights = Py_NewRef(arguments[0]);
    return take_down(self, next, taken);
}

/* norm(x, weight, eps, out) */
static PyObject *add_norm(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    struct program_object *self = (struct program_object *)object;
    struct operation *next = arguments_are(count, 4) ? next_operation(self) : NULL;
    if (next == NULL)
        return NULL;
    next->what = NORM;
    return take_down(self, next, take_norm(arguments, next->views, &next->norm));
}

static int take_addition(PyObject *const *arguments, struct view views[2], struct addition *out)
{
    if (view_rows(arguments[0], "x", 1, &views[0], &out->x) < 0
        || view_array(arguments[1], "vector", "f", 1, 0, &views[1]) < 0)
        return -1;
    out->more = (struct floats){views[1].buffer.buf, out->x.rows, views[1].buffer.shape[0], 0};
    return 0;
}

static int take_row_addition(PyObject *const *arguments, struct view views[2], struct addition *out)
{
    if (view_rows(arguments[0], "x", 1, &views[0], &out->x) < 0)
        return -1;
    return view_rows(arguments[1], "more", 0, &views[1], &out->more);
}

static PyObject *add_any(struct program_object *self, PyObject *const *arguments, Py_ssize_t count,
                         int (*take)(PyObject *const *, struct view *, struct addition *))
{
    struct operation *next = arguments_are(count, 2) ? next_operation(self) : NULL;
    if (next == NULL)
        return NULL;
    next->what = ADD;
    struct addition *addition = &next->addition;
    int taken = take(arguments, next->views, addition);
    if (taken == 0 && (addition->x.rows != addition->more.rows || addition->x.columns != addition->more.columns)) {
        wrong_sizes();
        taken = -1;
    }
    return take_down(self, next, taken);
}

/* add(x, vector) */
static PyObject *add_addition(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    return add_any((struct program_object *)object, arguments, count, take_addition);
}

/* add_rows(x, more) */
static PyObject *add_row_addition(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    return add_any((struct program_object *)object, arguments, count, take_row_addition);
}

/* All that attend find their rows at the same places, so what places are checked against is one thing for all. */
static int same_places(const struct attention *a, const struct attention *b)
{
    return a->cache.at == b->cache.at && a->cache.pages == b->cache.pages && a->cache.page_tokens == b->cache.page_tokens
           && a->table.positions == b->table.positions && a->queries.rows == b->queries.rows;
}

/* attend(queries, keys, values, table, cache, layer, window, scale, out) */
static PyObject *add_attention(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    struct program_object *self = (struct program_object *)object;
    struct operation *next = arguments_are(count, 9) ? next_operation(self) : NULL;
    if (next == NULL)
        return NULL;
    next->what = ATTEND;
    int taken = take_attention(arguments, arguments[8], next->views, &next->attention);
    if (taken == 0 && self->attends >= 0
        && !same_places(&self->operations[self->attends].attention, &next->attention)) {
        wrong_sizes();
        taken = -1;
    }
    if (taken == 0 && self->attends < 0)
        self->attends = self->count;
    return take_down(self, next, taken);
}

/* -- doing it ---------------------------------------------------------------------------------------------------- */

static void add(const struct addition *addition)
{
    for (long r = 0; r < addition->x.rows; r++) {
        float *to = addition->x.at + r * addition->x.stride;
        const float *from = addition->more.at + r * addition->more.stride;
        for (long at = 0; at < addition->x.columns; at++)
            to[at] += from[at];
    }
}

static int run_one(struct pool *pool, struct operation *operation, const struct place *places)
{
    switch (operation->what) {
    case PRODUCT: return row_kernels()->product(pool, &operation->product);
    case NORM: row_kernels()->norm(&operation->norm); return 0;
    case ADD: add(&operation->addition); return 0;
    case ATTEND: operation->attention.places = places; return row_kernels()->attend(pool, &operation->attention);
    }
    return 0;
}

static PyObject *run_all(struct program_object *self, PyObject *pool_object, const struct place *places)
{
    struct pool *pool = pool_enter(pool_object);
    if (pool == NULL)
        return NULL;
    int failed = 0;
    self->running = 1;
    Py_BEGIN_ALLOW_THREADS
    for (long at = 0; at < self->count && !failed; at++)
        failed = run_one(pool, &self->operations[at], places);
    Py_END_ALLOW_THREADS
    self->running = 0;
    pool_leave(pool_object);
    return failed ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

/* run(pool, places) */
static PyObject *run(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    struct program_object *self = (struct program_object *)object;
    struct places places = {0};
    PyObject *result = NULL;
    if (!arguments_are(count, 2) || refuse_while_running(self))
        return NULL;
    if (self->attends < 0 || take_places(arguments[1], &self->operations[self->attends].attention, &places) == 0)
        result = run_all(self, arguments[0], places.places);
    free_places(&places);
    return result;
}

/* -- the object -------------------------------------------------------------------------------------------------- */

static PyObject *program_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "", keywords))
        return NULL;
    allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
    struct program_object *self = (struct program_object *)allocate(type, 0);
    if (self != NULL)
        self->attends = -1;
    return (PyObject *)self;
}

static void program_dealloc(PyObject *object)
{
    struct program_object *self = (struct program_object *)object;
    for (long at = 0; at < self->count; at++) {
        view_end(self->operations[at].views, 6);
        Py_XDECREF(self->operations[at].weights);
    }
    free(self->operations);
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* Of the object and what it took down; the arrays are others'. */
static PyObject *size_of(PyObject *object, PyObject *nothing)
{
    const struct program_object *self = (const struct program_object *)object;
    (void)nothing;
    return PyLong_FromUnsignedLong(sizeof *self + self->room * sizeof *self->operations);
}

static PyObject *bytes_of(PyObject *type, PyObject *argument)
{
    (void)type;
    long operations = PyLong_AsLong(argument);
    if (PyErr_Occurred())
        return NULL;
    long room = (operations + MORE - 1) / MORE * MORE;
    return PyLong_FromUnsignedLong(sizeof(struct program_object) + room * sizeof(struct operation));
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

static PyMethodDef program_methods[] = {
    {"product", FAST(add_product), "product(weights, x, out, add)"},
    {"norm", FAST(add_norm), "norm(x, weight, eps, out)"},
    {"add", FAST(add_addition), "add(x, vector)"},
    {"add_rows", FAST(add_row_addition), "add_rows(x, more)"},
    {"attend", FAST(add_attention), "attend(queries, keys, values, table, cache, layer, window, scale, out)"},
    {"run", FAST(run), "run(pool, places)"},
    {"bytes_of", bytes_of, METH_O | METH_STATIC, "bytes_of(operations): memory that a program of so many takes."},
    {"__sizeof__", size_of, METH_NOARGS, "Memory that it takes, in bytes."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot program_slots[] = {
    {Py_tp_new, program_new},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_methods, program_methods},
    {Py_tp_doc, "Operations on rows, taken down once and done in one call each time."},
    {0, NULL},
};
PyType_Spec program_spec = {
    "strata.cpu._kernels.Program", sizeof(struct program_object), 0, Py_TPFLAGS_DEFAULT, program_slots,
};
