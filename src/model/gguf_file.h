/* A parsed GGUF file from the inside: the parser fills it, the getters read it. Inside the folder
 * only. */
#ifndef SLUICE_MODEL_GGUF_FILE_H
#define SLUICE_MODEL_GGUF_FILE_H

#include "model/gguf.h"

struct gguf_key {
    const char *name; /* in the file, not terminated */
    size_t name_len;
    enum gguf_type type;
    const unsigned char *value;
};

struct gguf {
    uint32_t version;
    uint64_t n_keys;
    struct gguf_key *keys; /* sorted by name */
    uint64_t n_tensors;
    struct tensor *tensors; /* sorted by name */
    char *names;            /* of the tensors, terminated */
};

/* Bytes of a value of each type; 0 where they vary. */
extern const uint8_t gguf_type_bytes[GGUF_TYPES];

/* Order of keys by name, for qsort and bsearch. */
int gguf_key_cmp(const void *a, const void *b);

/* An unaligned little-endian number of n bytes. */
uint64_t gguf_load_le(const unsigned char *p, unsigned n);

#endif
