/* What the files that speak with Python share.  The limited API of Python 3.11: one build serves every later version. */
#ifndef STRATA_PYTHON_H
#define STRATA_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "pool.h"
#include "sets.h"
#include "weights.h"

struct floats; /* rows.h */

/* An array of float32 that Python holds, while it is looked at. */
struct view {
    Py_buffer buffer;
    int held;
};

/* Two-dimensional, floats of a row neighbours; sets `out`.  0, or -1 with ValueError that names `what`. */
int view_rows(PyObject *array, const char *what, int writable, struct view *view, struct floats *out);

/* Any number of dimensions, C order. */
int view_array(PyObject *array, const char *what, const char *format, int dimensions, int writable, struct view *view);

void view_end(struct view *views, int count);

/* 1, or 0 with TypeError. */
int arguments_are(Py_ssize_t count, Py_ssize_t wanted);

/* NULL, with ValueError. */
PyObject *wrong_sizes(void);

/* The pool of a Python object, taken for one operation; NULL with an exception where it is none, is closed, or is at
 * work for another thread.  `pool_leave` gives it back; both with the GIL. */
struct pool *pool_enter(PyObject *object);
void pool_leave(PyObject *object);

/* The weights of a Python object; NULL with TypeError where it is none. */
const struct weights *weights_of(PyObject *object);

enum set chosen_set(void);

extern PyType_Spec program_spec; /* program.c */

/* More functions of the module; each file that has some ends them with an empty one. */
extern PyMethodDef row_functions[], tile_functions[], draw_functions[];

#endif
