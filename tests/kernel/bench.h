/* What the parts of kernel_check --bench share. */
#ifndef SLUICE_TESTS_KERNEL_BENCH_H
#define SLUICE_TESTS_KERNEL_BENCH_H

#include "check.h"

/* Seconds of one call of fn: the best of several tries. */
double bench_seconds(void (*fn)(void *arg), void *arg);
/* Prints a line: `work` things a call, as billions of `unit` a second. */
void bench_report(const char *what, double s, double work, const char *unit);

/* bench_latent.c */
void bench_latent(struct check *c, struct rng *r);
void bench_moe(struct check *c, struct rng *r);

#endif
