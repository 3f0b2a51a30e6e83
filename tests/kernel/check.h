/* kernel_check: every operation of a table against plain double arithmetic and against portable C,
 * and its promises (a row does not depend on its neighbours, chunks, threads or block sizes). */
#ifndef SLUICE_TESTS_KERNEL_CHECK_H
#define SLUICE_TESTS_KERNEL_CHECK_H

#include "kernel/kernel.h"

/* What a check works with: the table under test on one and on two threads, and portable C. */
struct check {
    struct kernels *one, *two, *ref;
    unsigned failures, checks;
    bool bench;
    bool some;     /* a third of the sizes: sanitizers multiply the time */
    unsigned turn; /* counts the sizes */
};

/* Is the next size among those to check? */
static inline bool wanted(struct check *c)
{
    return !c->some || c->turn++ % 3 == 0;
}

void check_types(struct check *c);
void check_rows(struct check *c);
void check_linear(struct check *c);
void check_i8(struct check *c);
void check_attend(struct check *c);
void check_latent(struct check *c);
void check_moe(struct check *c);
void check_sample(struct check *c);
void bench_all(struct check *c);

/* Counts a check; a failed one is printed, up to a number that can still be read. */
void expect(struct check *c, bool ok, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The largest |a - b| / (scale + |b|) over n values; infinity if one is NaN. */
double max_error(const float *a, const float *b, size_t n, double scale);
bool same_bits(const void *a, const void *b, size_t bytes);

/* A repeatable stream of numbers. */
struct rng {
    uint64_t state;
};
uint32_t rng_next(struct rng *r);
float rng_float(struct rng *r); /* in [-1, 1) */
void rng_fill(struct rng *r, float *x, size_t n);

/* n weights of a type with sane scales, as a checkpoint holds them. Owned, free(). */
void *random_weights(struct rng *r, enum k_type type, size_t n);

/* Memory of a table that must be there. */
void *get(const struct kernels *k, size_t bytes);

#endif
