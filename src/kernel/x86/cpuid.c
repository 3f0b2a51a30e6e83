#include "kernel/cpu.h"

uint32_t cpu_flags(void)
{
    uint32_t flags = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        flags |= CPU_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        flags |= CPU_AVX512;
    if (__builtin_cpu_supports("avx512vnni"))
        flags |= CPU_AVX512_VNNI;
#endif
    return flags;
}
