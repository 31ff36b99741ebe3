/* How a row of inputs lies in memory as whole numbers: what fixed_inputs.c makes and fixed.c multiplies.
 *
 * An input is -high * 2^a + middle * 2^b + low, with 2^a and 2^b by form; each of the three is a byte, so that it can be
 * multiplied with codes that are bytes.  `high` is negated because -2^15 is a number of 16 bits and 2^15 is none.
 */
#ifndef STRATA_FIXED_INPUTS_H
#define STRATA_FIXED_INPUTS_H

#include "fixed.h"

#include "blocks.h"

#define HIGH_AT 15 /* bits: 2^a and 2^b, where codes have 4 or 5 bits */
#define MIDDLE_AT 8
#define WIDE_HIGH_AT 14 /* and where they have 8 */
#define WIDE_MIDDLE_AT 7

/* Of a block: what 1 stands for; the sum of all, in units of the row; and where sums begin with codes that had something
 * added to them: 128 (-128 times the sums of `high` and of the rest), or 32 (-32 times those of its halves). */
struct inputs {
    int8_t high[BLOCK], middle[BLOCK], low[BLOCK];
    float step, sum;
    int32_t high_begin, rest_begin, half_begin[2];
    float apart[2];
};

/* Before a row's blocks: its unit, a power of two, as two factors. */
struct unit {
    float first, second;
    float apart[6];
};

INLINE const struct unit *row_of(struct fixed x, long row) { return (const struct unit *)(x.at + row * x.row_bytes); }

INLINE const struct inputs *block_of(struct fixed x, long row, long at)
{
    return (const struct inputs *)(row_of(x, row) + 1) + at;
}

#endif
