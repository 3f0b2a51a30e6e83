#include "kernel/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Leaf 7, subleaf 1: compilers ask for it by name only from some version on. */
static uint32_t avx_vnni(void)
{
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & 1u << 4 ? CPU_AVX_VNNI : 0;
}
#endif

#if defined(__x86_64__)
/* AVX512_BF16 without VNNI is left alone: no CPU is so, only what a hypervisor may pretend. */
static uint32_t bf16(void)
{
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vnni"))
        return 0;
    return CPU_AVX512_BF16 | (__builtin_cpu_is("intel") ? CPU_BF16_HALF : 0);
}
#endif

uint32_t cpu_flags(void)
{
    uint32_t flags = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        flags |= CPU_AVX2 | avx_vnni();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        flags |= CPU_AVX512;
    if (__builtin_cpu_supports("avx512vnni"))
        flags |= CPU_AVX512_VNNI | bf16();
#endif
    return flags;
}
