/* What the machine can do, measured: the bounds that the engine is held against. */
#ifndef SLUICE_BENCH_COMPUTE_PEAK_H
#define SLUICE_BENCH_COMPUTE_PEAK_H

struct peak {
    double int8;  /* multiplications and additions of int8 products a second, all threads */
    double wide;  /* the same where neither operand has fewer than 8 bits */
    double flops; /* float32, likewise */
    double read;  /* bytes a second read from memory, all threads */
};

/* isa is the `detail` of the kernel table. The best of several tries of a few milliseconds each. */
void peak_measure(struct peak *out, const char *isa, int threads);

#endif
