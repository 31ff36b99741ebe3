/* Weights as they lie in a file: rows of blocks, never copied.
 *
 * Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
 */
#ifndef STRATA_WEIGHTS_H
#define STRATA_WEIGHTS_H

#include <stdint.h>

enum kind { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, KINDS };

/* `elements` neighbours of a row lie in `bytes` bytes. */
struct layout {
    const char *name;
    long elements, bytes;
};

extern const struct layout layouts[KINDS];

/* A matrix that maps `columns` inputs to `rows` outputs. */
struct part {
    enum kind kind;
    long rows, columns, row_bytes;
    const uint8_t *data;
};

#define PARTS 4

/* Matrices of like width, one below the other; where `gated`, part 0 is the gate and part 1 what it lets through, and
 * the outputs are those of one of them. */
struct weights {
    int gated, gelu, count; /* `gelu`: what opens the gate; else it is SiLU */
    long outputs, columns;
    struct part parts[PARTS];
};

#endif
