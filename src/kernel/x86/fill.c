/* The tables of AVX2 and AVX-512. Built without their flags: it only takes addresses. */
#include "kernel/x86/x86.h"

void cpu_fill_avx2(struct cpu_impl *f, uint32_t flags)
{
    (void)flags;
    avx2_rows_fill(f);
    f->linear = avx2_linear;
    f->attend = avx2_attend;
}

void cpu_fill_avx512(struct cpu_impl *f, uint32_t flags)
{
    avx512_rows_fill(f);
    f->linear = flags & CPU_AVX512_VNNI ? avx512_linear_vnni : avx512_linear;
    f->attend = avx512_attend;
}
