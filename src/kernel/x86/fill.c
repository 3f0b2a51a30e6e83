/* The tables of AVX2 and AVX-512. Built without their flags: it only takes addresses. */
#include "kernel/x86/x86.h"

void cpu_fill_avx2(struct cpu_impl *f, uint32_t flags)
{
    avx2_rows_fill(f);
    avx2_latent_fill(f);
    if (flags & CPU_AVX_VNNI)
        avx2_vnni_i8_fill(f);
    else
        avx2_i8_fill(f);
    f->linear = flags & CPU_AVX_VNNI ? avx2_linear_vnni : avx2_linear;
    f->attend_sum = avx2_attend_sum;
    f->attend_add = avx2_attend_add;
    f->attend_finish = avx2_attend_finish;
}

void cpu_fill_avx512(struct cpu_impl *f, uint32_t flags)
{
    avx512_rows_fill(f);
    avx512_latent_fill(f);
    if (flags & CPU_AVX512_VNNI)
        avx512_vnni_i8_fill(f);
    else
        avx512_i8_fill(f);
    f->linear = flags & CPU_AVX512_VNNI ? avx512_linear_vnni : avx512_linear;
    if (flags & CPU_AVX512_BF16) {
        f->linear = flags & CPU_BF16_HALF ? avx512_linear_bf16_fma : avx512_linear_bf16_dot;
        f->bf16_pairs = true;
        f->bf16_row = avx512_bf16_row;
    }
    f->attend_sum = avx512_attend_sum;
    f->attend_add = avx512_attend_add;
    f->attend_finish = avx512_attend_finish;
}
