/* The instruction sets that kernels are compiled for, and what each of them offers.
 *
 * A file of kernels is compiled once for each set, with KERNELS_AVX512, KERNELS_AVX2 or KERNELS_PORTABLE defined, and
 * names what the rest may see by SET(name), so that all of them can be linked together.
 */
#ifndef STRATA_SETS_H
#define STRATA_SETS_H

#if defined(KERNELS_AVX512)
#define SET(name) name##_avx512
#elif defined(KERNELS_AVX2)
#define SET(name) name##_avx2
#elif defined(KERNELS_PORTABLE)
#define SET(name) name##_portable
#endif

enum set { PORTABLE, AVX2, AVX512, SETS };

extern const char *const set_names[SETS];

/* The best set that was compiled and that processor and system allow. */
enum set best_set(void);

/* Whether it was compiled and can run here. */
int set_runs(enum set set);

#endif
