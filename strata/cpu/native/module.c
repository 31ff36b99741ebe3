/* The Python module: the threads and the weights as objects, and the choice of an instruction set.
 *
 * Knows no kernel; the functions that compute are in rows_python.c, tiles_python.c and draw_python.c.
 */
#include "python.h"

#include "rows.h"

#include <string.h>

static enum set chosen;
static PyObject *pool_type, *weights_type, *program_type;

enum set chosen_set(void) { return chosen; }

/* -- arrays ------------------------------------------------------------------------------------------------------ */

static int take(PyObject *array, const char *what, const char *format, int dimensions, int flags, struct view *view)
{
    if (PyObject_GetBuffer(array, &view->buffer, flags) < 0)
        return -1;
    view->held = 1;
    const char *kind = view->buffer.format ? view->buffer.format : "B";
    if (strcmp(kind, format) == 0 && (dimensions < 0 || view->buffer.ndim == dimensions))
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: an array of %s in %d dimensions, not of %s in %d", what, kind,
                 view->buffer.ndim, format, dimensions);
    return -1;
}

int view_array(PyObject *array, const char *what, const char *format, int dimensions, int writable, struct view *view)
{
    int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    return take(array, what, format, dimensions, flags, view);
}

int view_rows(PyObject *array, const char *what, int writable, struct view *view, struct floats *out)
{
    if (take(array, what, "f", 2, PyBUF_FORMAT | PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0), view) < 0)
        return -1;
    Py_buffer *buffer = &view->buffer;
    Py_ssize_t size = sizeof(float);
    if ((buffer->shape[1] > 1 && buffer->strides[1] != size) || buffer->strides[0] % size) {
        PyErr_Format(PyExc_ValueError, "%s: a row's numbers must be neighbours", what);
        return -1;
    }
    *out = (struct floats){buffer->buf, buffer->shape[0], buffer->shape[1], buffer->strides[0] / size};
    return 0;
}

void view_end(struct view *views, int count)
{
    for (int i = 0; i < count; i++)
        if (views[i].held)
            PyBuffer_Release(&views[i].buffer);
}

int arguments_are(Py_ssize_t count, Py_ssize_t wanted)
{
    if (count != wanted)
        PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", wanted, count);
    return count == wanted;
}

PyObject *wrong_sizes(void)
{
    PyErr_SetString(PyExc_ValueError, "sizes that don't fit each other");
    return NULL;
}

/* -- threads ----------------------------------------------------------------------------------------------------- */

struct pool_object {
    PyObject_HEAD
    struct pool *pool;
    int closed, busy;
};

static PyObject *pool_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    int threads;
    static char *keywords[] = {"threads", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "i", keywords, &threads))
        return NULL;
    if (threads < 1 || threads > 4096)
        return PyErr_Format(PyExc_ValueError, "%d threads", threads);
    allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
    struct pool_object *self = (struct pool_object *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->pool = pool_open(threads);
    if (self->pool == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void close_pool(struct pool_object *self)
{
    if (self->closed || self->pool == NULL)
        return;
    self->closed = 1;
    Py_BEGIN_ALLOW_THREADS
    pool_close(self->pool);
    Py_END_ALLOW_THREADS
}

static PyObject *pool_closed(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    struct pool_object *self = (struct pool_object *)object;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "the pool is at work");
        return NULL;
    }
    close_pool(self);
    Py_RETURN_NONE;
}

static void pool_dealloc(PyObject *object)
{
    struct pool_object *self = (struct pool_object *)object;
    close_pool(self);
    if (self->pool != NULL)
        pool_free(self->pool);
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *pool_count(PyObject *object, void *nothing)
{
    (void)nothing;
    return PyLong_FromLong(pool_threads(((struct pool_object *)object)->pool));
}

static PyMethodDef pool_methods[] = {
    {"close", pool_closed, METH_NOARGS, "End the threads and wait for their end; a second close does nothing."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef pool_members[] = {{"threads", pool_count, NULL, "In all, the caller among them.", NULL}, {0}};
static PyType_Slot pool_slots[] = {
    {Py_tp_new, pool_new},           {Py_tp_dealloc, pool_dealloc},
    {Py_tp_methods, pool_methods},   {Py_tp_getset, pool_members},
    {Py_tp_doc, "Threads that compute; one caller at a time."}, {0, NULL},
};
static PyType_Spec pool_spec = {"strata.cpu._kernels.Pool", sizeof(struct pool_object), 0, Py_TPFLAGS_DEFAULT, pool_slots};

struct pool *pool_enter(PyObject *object)
{
    struct pool_object *self = (struct pool_object *)object;
    if (Py_TYPE(object) != (PyTypeObject *)pool_type) {
        PyErr_SetString(PyExc_TypeError, "not a Pool");
        return NULL;
    }
    if (self->closed || self->busy) {
        PyErr_SetString(PyExc_RuntimeError, self->closed ? "the pool is closed" : "the pool is at work");
        return NULL;
    }
    self->busy = 1;
    return self->pool;
}

void pool_leave(PyObject *object) { ((struct pool_object *)object)->busy = 0; }

/* -- weights ----------------------------------------------------------------------------------------------------- */

struct weights_object {
    PyObject_HEAD
    struct weights weights;
    struct view views[PARTS];
};

static enum kind kind_named(const char *name)
{
    enum kind kind = 0;
    while (kind < KINDS && strcmp(layouts[kind].name, name) != 0)
        kind++;
    return kind;
}

/* Sets part `number` of `self` from (kind, rows, columns, bytes). */
static int add_part(struct weights_object *self, int number, PyObject *tuple)
{
    const char *name;
    PyObject *data;
    struct part *part = &self->weights.parts[number];
    if (!PyArg_ParseTuple(tuple, "sllO", &name, &part->rows, &part->columns, &data))
        return -1;
    part->kind = kind_named(name);
    if (part->kind == KINDS) {
        PyErr_Format(PyExc_ValueError, "weights of kind %s can't be computed with", name);
        return -1;
    }
    if (view_array(data, "weights", "B", 1, 0, &self->views[number]) < 0)
        return -1;
    const struct layout *layout = &layouts[part->kind];
    part->row_bytes = part->columns / layout->elements * layout->bytes;
    part->data = self->views[number].buffer.buf;
    if (part->rows < 1 || part->columns < 1 || part->columns % layout->elements
        || part->row_bytes > self->views[number].buffer.len / part->rows
        || part->row_bytes * part->rows != self->views[number].buffer.len) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of %s don't make (%ld, %ld)", self->views[number].buffer.len, name,
                     part->rows, part->columns);
        return -1;
    }
    return 0;
}

static int fill_weights(struct weights_object *self, PyObject *parts, int gated, int gelu)
{
    struct weights *weights = &self->weights;
    Py_ssize_t count = PyTuple_Size(parts);
    if (count < 1 || count > PARTS || (gated && count != 2)) {
        PyErr_Format(PyExc_ValueError, "%zd parts", count);
        return -1;
    }
    weights->gated = gated;
    weights->gelu = gelu;
    weights->count = (int)count;
    for (int number = 0; number < count; number++) {
        if (add_part(self, number, PyTuple_GetItem(parts, number)) < 0)
            return -1;
        const struct part *part = &weights->parts[number], *first = &weights->parts[0];
        if (part->columns != first->columns || (gated && part->rows != first->rows)) {
            PyErr_SetString(PyExc_ValueError, "parts of different widths");
            return -1;
        }
        weights->outputs += number && gated ? 0 : part->rows;
    }
    weights->columns = weights->parts[0].columns;
    return 0;
}

static PyObject *weights_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    PyObject *parts;
    int gated, gelu = 0;
    static char *keywords[] = {"parts", "gated", "gelu", NULL};
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "O!p|p", keywords, &PyTuple_Type, &parts, &gated, &gelu))
        return NULL;
    allocfunc allocate = PyType_GetSlot(type, Py_tp_alloc);
    struct weights_object *self = (struct weights_object *)allocate(type, 0);
    if (self != NULL && fill_weights(self, parts, gated, gelu) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void weights_dealloc(PyObject *object)
{
    view_end(((struct weights_object *)object)->views, PARTS);
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyType_Slot weights_slots[] = {
    {Py_tp_new, weights_new},
    {Py_tp_dealloc, weights_dealloc},
    {Py_tp_doc, "Matrices as a file holds them; looks at the bytes and never copies them."},
    {0, NULL},
};
static PyType_Spec weights_spec = {
    "strata.cpu._kernels.Weights", sizeof(struct weights_object), 0, Py_TPFLAGS_DEFAULT, weights_slots,
};

const struct weights *weights_of(PyObject *object)
{
    if (Py_TYPE(object) == (PyTypeObject *)weights_type)
        return &((struct weights_object *)object)->weights;
    PyErr_SetString(PyExc_TypeError, "not Weights");
    return NULL;
}

/* -- the module -------------------------------------------------------------------------------------------------- */

static PyObject *sets(PyObject *module, PyObject *nothing)
{
    (void)module, (void)nothing;
    PyObject *names = PyList_New(0);
    for (enum set set = 0; set < SETS && names != NULL; set++) {
        PyObject *name = set_runs(set) ? PyUnicode_FromString(set_names[set]) : NULL;
        if (name != NULL && PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *use(PyObject *module, PyObject *name)
{
    (void)module;
    for (enum set set = 0; set < SETS; set++)
        if (PyUnicode_CompareWithASCIIString(name, set_names[set]) == 0 && set_runs(set)) {
            chosen = set;
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "the kernels %R can't run here", name);
}

static PyObject *used(PyObject *module, PyObject *nothing)
{
    (void)module, (void)nothing;
    return PyUnicode_FromString(set_names[chosen]);
}

static PyMethodDef functions[] = {
    {"sets", sets, METH_NOARGS, "The instruction sets that can run here, the best one last."},
    {"use", use, METH_O, "Compute with this set from now on."},
    {"used", used, METH_NOARGS, "The set that computes."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject **type)
{
    *type = PyType_FromSpec(spec);
    return *type == NULL ? -1 : PyModule_AddObjectRef(module, name, *type);
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", "Kernels for the processor.", -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    PyObject *module = PyModule_Create(&definition);
    chosen = best_set();
    if (module != NULL
        && (add_type(module, "Pool", &pool_spec, &pool_type) < 0
            || add_type(module, "Weights", &weights_spec, &weights_type) < 0
            || add_type(module, "Program", &program_spec, &program_type) < 0
            || PyModule_AddFunctions(module, row_functions) < 0 || PyModule_AddFunctions(module, tile_functions) < 0
            || PyModule_AddFunctions(module, draw_functions) < 0))
        Py_CLEAR(module);
    return module;
}
