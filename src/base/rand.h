/* Random numbers as a function of (key, position): Philox4x32-10.
 *
 * Sampling is a function, not a stream: output position i of a request with seed s always sees the
 * same number, so a request can be resumed elsewhere and gives the same tokens.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11. */
#ifndef SLUICE_BASE_RAND_H
#define SLUICE_BASE_RAND_H

#include <stddef.h>
#include <stdint.h>

/* out[0..3] = Philox4x32-10 of the 64-bit key and the 128-bit counter {ctr_lo, ctr_hi}. */
void rand_philox(uint32_t out[4], uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi);

/* Uniform in [0, 1) with 53 bits, for (seed, position, lane). */
double rand_uniform(uint64_t seed, uint64_t position, uint64_t lane);

/* Bytes from the operating system; aborts the process if it has none. */
void rand_bytes(void *out, size_t n);

/* 2n lower-case hex digits and a NUL into out, from rand_bytes. n <= 64. */
void rand_hex(char *out, size_t n);

#endif
