/* The vocabulary: ids, how they are written ("Ġthe"), and the bytes they stand for (" the").
 *
 * Byte-level BPE writes each byte as one printable character: the 188 printable ones of Latin-1 as
 * themselves, the other 68 as U+0100 and up, in order (GPT-2's table). */
#ifndef SLUICE_TEXT_VOCAB_H
#define SLUICE_TEXT_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct err;

#define VOCAB_MAX       (4u << 20)   /* tokens */
#define VOCAB_MAX_BYTES (512u << 20) /* of all texts together */

enum { VOCAB_SET = 1, VOCAB_SPECIAL = 2, VOCAB_ADDED = 4 };

struct vocab_entry {
    uint32_t piece, piece_len; /* in text; a NUL follows */
    uint32_t bytes, bytes_len;
    uint8_t flags;
};

struct vocab {
    struct buf text;
    struct vocab_entry *entry; /* by id */
    uint32_t n, cap;           /* ids are below n; those between may be unset */
    uint32_t n_set;
    int32_t *slot;  /* open hash of pieces: id or -1 */
    uint32_t slots; /* a power of two, at least twice n_set */
};

void vocab_init(struct vocab *v);
void vocab_finish(struct vocab *v);

/* Adds a byte-level piece. flags may hold VOCAB_SPECIAL. ERR_BADMSG for a second one with this id or
 * text, ERR_LIMIT. */
int vocab_add(struct vocab *v, int64_t id, const char *piece, size_t len, unsigned flags,
              struct err *e);
/* Adds a piece that stands for `bytes`, whatever it is written like. */
int vocab_add_raw(struct vocab *v, int64_t id, const char *piece, size_t len, const char *bytes,
                  size_t bytes_len, unsigned flags, struct err *e);
/* Makes an id an added token: its bytes are its text. */
void vocab_mark_added(struct vocab *v, int32_t id, bool special);

/* -1: none. */
int32_t vocab_find(const struct vocab *v, const char *piece, size_t len);
const struct vocab_entry *vocab_get(const struct vocab *v, int64_t id); /* NULL: none */
const char *vocab_piece(const struct vocab *v, const struct vocab_entry *t);
const char *vocab_bytes(const struct vocab *v, const struct vocab_entry *t);

/* The character that stands for a byte. */
uint32_t vocab_byte_char(unsigned char b);
/* The id of the one-byte token, -1: none. */
int32_t vocab_byte_id(const struct vocab *v, unsigned char b);

#endif
