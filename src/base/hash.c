#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HMAC_BLOCK 64

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t ctx_key;
static EVP_MD *sha256;

static void free_ctx(void *ctx)
{
    EVP_MD_CTX_free(ctx);
}

static void set_up(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!sha256 || pthread_key_create(&ctx_key, free_ctx) != 0)
        abort(); /* no crypto library: nothing could be trusted */
}

/* One context a thread, kept: hashing allocates nothing after a thread's first call. */
static EVP_MD_CTX *thread_ctx(void)
{
    EVP_MD_CTX *ctx;

    pthread_once(&once, set_up);
    ctx = pthread_getspecific(ctx_key);
    if (!ctx) {
        ctx = EVP_MD_CTX_new();
        pthread_setspecific(ctx_key, ctx);
    }
    return ctx;
}

void hash_sha256(struct hash256 *out, const struct hash_part *parts, size_t n_parts)
{
    EVP_MD_CTX *ctx = thread_ctx();
    int ok = ctx && EVP_DigestInit_ex2(ctx, sha256, NULL);

    for (size_t i = 0; ok && i < n_parts; i++)
        ok = EVP_DigestUpdate(ctx, parts[i].data, parts[i].len);
    if (!ok || !EVP_DigestFinal_ex(ctx, out->b, NULL))
        abort(); /* only without memory: a hash must never be wrong */
}

/* RFC 2104, over the parts in order. */
void hash_hmac_sha256(struct hash256 *out, const void *key, size_t key_len,
                      const struct hash_part *parts, size_t n_parts)
{
    unsigned char pad[HMAC_BLOCK] = { 0 };
    struct hash256 inner;
    struct hash_part *all = calloc(n_parts + 1, sizeof *all);

    if (!all)
        abort();
    if (key_len > sizeof pad) {
        hash_sha256(&inner, &(struct hash_part){ key, key_len }, 1);
        memcpy(pad, inner.b, sizeof inner.b);
    } else if (key_len) {
        memcpy(pad, key, key_len);
    }
    for (size_t i = 0; i < sizeof pad; i++)
        pad[i] ^= 0x36;
    all[0] = (struct hash_part){ pad, sizeof pad };
    for (size_t i = 0; i < n_parts; i++)
        all[i + 1] = parts[i];
    hash_sha256(&inner, all, n_parts + 1);
    for (size_t i = 0; i < sizeof pad; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    hash_sha256(out, (struct hash_part[]){ { pad, sizeof pad }, { inner.b, sizeof inner.b } }, 2);
    free(all);
}

bool hash_equal(const struct hash256 *a, const struct hash256 *b)
{
    return CRYPTO_memcmp(a->b, b->b, sizeof a->b) == 0;
}

void hash_hex(char out[2 * HASH_SHA256_BYTES + 1], const struct hash256 *h)
{
    for (size_t i = 0; i < sizeof h->b; i++)
        snprintf(out + 2 * i, 3, "%02x", h->b[i]);
}
