/* Which instruction sets run here: what was compiled, what the processor has and what the system saves for a thread.
 *
 * A processor may have registers that the system does not save (XCR0 says); to use them would be fatal.  AMX is not
 * looked at: systems that report it may still kill who uses it.
 */
#include "sets.h"

const char *const set_names[SETS] = {"portable", "avx2", "avx512"};

#if defined(HAVE_AVX2) && defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

#define SAVES_AVX 0x06    /* XMM, YMM */
#define SAVES_AVX512 0xe6 /* and opmasks, both halves of ZMM */

static uint64_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int has(enum set set)
{
    uint32_t a, b, c, d, b7;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    const uint32_t first = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    if ((c & first) != first || !__get_cpuid_count(7, 0, &a, &b7, &c, &d))
        return 0;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    const uint32_t wanted = set == AVX512 ? avx512 | bit_AVX2 : bit_AVX2;
    const uint64_t saves = set == AVX512 ? SAVES_AVX512 : SAVES_AVX;
    return (b7 & wanted) == wanted && (saved_registers() & saves) == saves;
}
#else
static int has(enum set set)
{
    (void)set;
    return 0;
}
#endif

int set_runs(enum set set)
{
    return set == PORTABLE || has(set);
}

enum set best_set(void)
{
    return set_runs(AVX512) ? AVX512 : set_runs(AVX2) ? AVX2 : PORTABLE;
}
