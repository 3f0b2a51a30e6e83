/* A 64-bit checksum of KV data, made to cost little beside the copy: 8 lanes, each the sum of 32 x 32
 * bit products of the data under a key that moves with the position, plus the neighbour lane's data, so
 * that any change inside one 8-byte word is always found and others but once in 2^64. It guards
 * against faults, not against forgery. Every ISA gives the same value. */
#ifndef SLUICE_TRANSFER_CHECKSUM_H
#define SLUICE_TRANSFER_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_STRIPE 64 /* lengths are multiples of this */

struct checksum {
    uint64_t sum[8];
    uint64_t key[8];
};

void checksum_init(struct checksum *c, uint64_t seed);
void checksum_add(struct checksum *c, const void *data, size_t len);
uint64_t checksum_value(const struct checksum *c);

/* The portable version, which the others are compared with. */
void checksum_add_portable(struct checksum *c, const void *data, size_t len);

#endif
