/* The sizes of blocks.  See weights.h. */
#include "weights.h"

const struct layout layouts[KINDS] = {
    [F32] = {"F32", 1, 4},
    [F16] = {"F16", 1, 2},
    [BF16] = {"BF16", 1, 2},
    [Q4_0] = {"Q4_0", 32, 18},
    [Q4_1] = {"Q4_1", 32, 20},
    [Q5_0] = {"Q5_0", 32, 22},
    [Q5_1] = {"Q5_1", 32, 24},
    [Q8_0] = {"Q8_0", 32, 34},
    [Q4_K] = {"Q4_K", 256, 144},
    [Q5_K] = {"Q5_K", 256, 176},
    [Q6_K] = {"Q6_K", 256, 210},
};
