/* Writes GGUF files into memory for the tests, right or wrong. */
#ifndef SLUICE_TESTS_GGUF_BUILD_H
#define SLUICE_TESTS_GGUF_BUILD_H

#include <stdint.h>
#include <string.h>

#include "base/buf.h"

/* Numbers of the format's types. */
enum { T_U32 = 4, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9, T_U64 = 10 };

static inline void put_u32(struct buf *b, uint32_t v)
{
    buf_append(b, &v, sizeof v);
}

static inline void put_u64(struct buf *b, uint64_t v)
{
    buf_append(b, &v, sizeof v);
}

static inline void put_text(struct buf *b, const char *s)
{
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

static inline void put_header(struct buf *b, uint32_t version, uint64_t tensors, uint64_t keys)
{
    buf_puts(b, "GGUF");
    put_u32(b, version);
    put_u64(b, tensors);
    put_u64(b, keys);
}

static inline void put_key_u32(struct buf *b, const char *key, uint32_t v)
{
    put_text(b, key);
    put_u32(b, T_U32);
    put_u32(b, v);
}

static inline void put_key_f32(struct buf *b, const char *key, float v)
{
    put_text(b, key);
    put_u32(b, T_F32);
    buf_append(b, &v, sizeof v);
}

static inline void put_key_text(struct buf *b, const char *key, const char *v)
{
    put_text(b, key);
    put_u32(b, T_STRING);
    put_text(b, v);
}

/* A matrix [rows][cols], innermost dimension first in the file. */
static inline void put_matrix(struct buf *b, const char *name, uint64_t rows, uint64_t cols,
                              uint32_t type, uint64_t offset)
{
    put_text(b, name);
    put_u32(b, 2);
    put_u64(b, cols);
    put_u64(b, rows);
    put_u32(b, type);
    put_u64(b, offset);
}

static inline void pad_to(struct buf *b, size_t alignment)
{
    while (b->len % alignment)
        buf_putc(b, 0);
}

#endif
