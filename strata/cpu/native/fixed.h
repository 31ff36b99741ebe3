/* Rows of inputs as whole numbers, and their products with codes: exact sums of 32, one scale for all of them.
 *
 * Of 32 neighbours of a row the largest is given all bits that a sum of 32 products leaves in 32: an input has 21 to 23
 * bits with its sign, counted from the largest of its block (a float has 24, counted from itself); beside codes of 8 bits
 * a sum is made in two parts.  So a block's sum is exact in whatever order and by whatever instructions it is made, and
 * only sums of blocks are rounded, as floats are, in order of blocks: a row's bits are its own, however many outputs and
 * rows are computed together.
 */
#ifndef STRATA_FIXED_H
#define STRATA_FIXED_H

#include "rows.h"
#include "sets.h"

/* Kinds whose codes have as many bits share a form of their inputs; UNFIXED ones are multiplied with floats. */
enum form { UNFIXED, FOUR_BITS, FIVE_BITS, EIGHT_BITS, FORMS };

/* Rows in one of the forms: rows_at + r * row_bytes. */
struct fixed {
    const uint8_t *at;
    long rows, row_bytes;
};

#ifdef SET
enum form SET(form_of)(enum kind kind);

/* What a row takes.  Memory for rows must begin at a multiple of 32. */
long SET(fixed_row_bytes)(long columns);

void SET(fix_row)(enum form form, const float *row, long columns, uint8_t *out);

/* Outputs first .. first + count - 1 of every row, to out + r * stride. */
void SET(fixed_outputs)(const struct part *part, long first, long count, struct fixed x, float *out, long stride);

/* Of kinds that lie in blocks of 256; `fixed_outputs` calls it. */
void SET(fixed_super_outputs)(const struct part *part, long first, long count, struct fixed x, float *out, long stride);
#endif

#endif
