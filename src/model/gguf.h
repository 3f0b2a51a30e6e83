/* GGUF (versions 2 and 3, little endian): metadata and the table of tensors, read from bytes in
 * memory. Pure: no file is opened, nothing is copied but names, and nothing outside [data, data+len)
 * is ever read. Every count and offset in the file is checked before it is used.
 *
 * The layout is that of ggml's documentation, docs/gguf.md: "GGUF", u32 version, u64 tensors, u64
 * keys; the keys; the tensor table; padding to general.alignment; the data. */
#ifndef SLUICE_MODEL_GGUF_H
#define SLUICE_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/tensor.h"

struct err;
struct gguf;

/* Types of metadata values, with the numbers that the file has. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

/* The elements of an array, one after another in the file. */
struct gguf_array {
    enum gguf_type type; /* never GGUF_ARRAY: arrays of arrays are refused */
    uint64_t n;
    const unsigned char *data;
};

/* Reads the header, the metadata and the tensor table of the file that stands at data; data must
 * outlive *out. ERR_BADMSG with the offset and the reason, ERR_UNSUPPORTED for a version or a
 * tensor type that is not known, ERR_NOMEM. */
int gguf_parse(struct gguf **out, const void *data, size_t len, struct err *e);
void gguf_free(struct gguf *g); /* NULL is fine */

uint32_t gguf_version(const struct gguf *g);

/* Sorted by name; names are unique. Owned by g. */
const struct tensor *gguf_tensors(const struct gguf *g, uint64_t *n);

/* Values by key. 0, ERR_NOTFOUND if there is no such key, ERR_BADMSG (with a sentence) if it has
 * another type or does not fit. Any integer type is taken where an integer is wanted, and any
 * number where a float is. */
int gguf_u64(const struct gguf *g, const char *key, uint64_t *out, struct err *e);
int gguf_f64(const struct gguf *g, const char *key, double *out, struct err *e);
int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e);
/* Not terminated: points into the file. */
int gguf_string(const struct gguf *g, const char *key, const char **s, size_t *n, struct err *e);
int gguf_array(const struct gguf *g, const char *key, enum gguf_type type, struct gguf_array *out,
               struct err *e);

/* The string at *p, which is moved behind it. p starts at the data of an array of strings and may
 * be asked n times. */
const char *gguf_next_string(const unsigned char **p, size_t *n);

#endif
