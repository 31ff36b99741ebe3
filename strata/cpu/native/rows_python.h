/* What is made of the arguments of functions that compute rows: sizes are checked here, so that kernels needn't.
 *
 * Each returns 0, or -1 with an exception; the views are the caller's to end, whatever it returns.
 */
#ifndef STRATA_ROWS_PYTHON_H
#define STRATA_ROWS_PYTHON_H

#include "python.h"
#include "rows.h"

const struct row_kernels *row_kernels(void);

/* weights, x, out, add */
int take_product(PyObject *const *arguments, struct view views[2], struct product *out);

/* x, weight, eps, out */
int take_norm(PyObject *const *arguments, struct view views[3], struct norm *out);

/* queries, keys, values, table, cache, layer, window, scale; and out.  The places are not set. */
int take_attention(PyObject *const *arguments, PyObject *result, struct view views[6], struct attention *out);

/* Where rows are: memory of its own, to be freed whatever was returned. */
struct places {
    struct place *places;
    int32_t *pages; /* of all rows */
};

int take_places(PyObject *list, const struct attention *all, struct places *out);
void free_places(struct places *places);

#endif
