/* Two ranks on this host for a bench: this process and one that it forks. */
#ifndef SLUICE_BENCH_TWO_RANKS_H
#define SLUICE_BENCH_TWO_RANKS_H

#include <stddef.h>
#include <stdint.h>

struct group;

#define RANKS 2

/* Calls run on both, in a group with so many bytes for sums; returns when both are done. More seconds
 * than the limit mean that a rank has hung: the program ends. So it does with a sentence if the ranks
 * cannot meet. Nothing may have been started before that a fork does not survive. */
void two_ranks(size_t scratch, unsigned limit,
               void (*run)(void *arg, struct group *g, uint32_t rank), void *arg);

#endif
