/* SHA-256 (OpenSSL), constant-time comparison. */
#ifndef SLUICE_BASE_HASH_H
#define SLUICE_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HASH_SHA256_BYTES 32

struct hash256 {
    unsigned char b[HASH_SHA256_BYTES];
};

/* A piece of the input; the pieces are hashed one after another. */
struct hash_part {
    const void *data;
    size_t len;
};

void hash_sha256(struct hash256 *out, const struct hash_part *parts, size_t n_parts);
void hash_hmac_sha256(struct hash256 *out, const void *key, size_t key_len,
                      const struct hash_part *parts, size_t n_parts);
/* Takes the same time wherever the difference is. */
bool hash_equal(const struct hash256 *a, const struct hash256 *b);
/* 64 hex digits and a NUL. */
void hash_hex(char out[2 * HASH_SHA256_BYTES + 1], const struct hash256 *h);

#endif
