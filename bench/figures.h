/* What a benchmark says, in the form that all of them write:
 * {"figures":[{"name","value","unit","against","ratio"}]}, with "noisy":true where other processes took
 * part of the machine. */
#ifndef SLUICE_BENCH_FIGURES_H
#define SLUICE_BENCH_FIGURES_H

#include <stdbool.h>
#include <stddef.h>

struct figure {
    char name[64];
    const char *unit, *against; /* borrowed */
    double value, ratio;        /* ratio 0: there is nothing to hold it against */
    bool noisy;
};

/* 0, or ERR_IO with errno as it was. */
int figures_write(const char *path, const struct figure *f, size_t n);

#endif
