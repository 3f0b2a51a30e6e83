/* Byte-pair encoding of one word: its bytes become tokens, then the adjacent pair of the lowest rank
 * is merged, the leftmost first, until no pair has a rank. In time n log n of the word's length. */
#ifndef SLUICE_TEXT_BPE_H
#define SLUICE_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct ids;
struct vocab;

#define BPE_MAX_MERGES (8u << 20)

struct bpe_merge {
    int32_t left, right;
    uint32_t rank; /* BPE_NO_RANK: an empty slot */
    int32_t id;    /* what the pair becomes */
};

struct bpe {
    const struct vocab *vocab;
    struct bpe_merge *slot; /* open hash of pairs */
    uint32_t slots, n;      /* slots: a power of two, at least twice n */
    int32_t byte_id[256];   /* -1: the byte has no token and vanishes */
    int32_t unk;            /* for such bytes; -1: none */
    bool fuse_unk;          /* a run of them gives one unk */
    bool ignore_merges;     /* a word that is a token is that token */
};

/* Scratch memory of one encoding. */
struct bpe_work {
    struct bpe_symbol *symbol;
    uint64_t *heap;
    char *piece;
    size_t cap, piece_cap;
};

/* Room for n merges; the vocabulary is borrowed and complete. */
int bpe_init(struct bpe *b, const struct vocab *vocab, size_t n, struct err *e);
void bpe_finish(struct bpe *b);

/* Adds the merge of the next rank. ERR_BADMSG when left, right or their concatenation is no token. */
int bpe_add(struct bpe *b, const char *left, size_t left_len, const char *right, size_t right_len,
            struct err *e);
/* The same from "left right". */
int bpe_add_line(struct bpe *b, const char *line, size_t len, struct err *e);

/* Appends the ids of a word. ERR_NOMEM. */
int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *word, size_t len,
               struct ids *out);
void bpe_work_finish(struct bpe_work *w);

#endif
