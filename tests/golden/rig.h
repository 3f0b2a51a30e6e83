/* What the golden tests stand on: a loaded model with a small paged KV pool, sequences that hold
 * blocks of it, and steps that feed them tokens. Failures to set up end the program: a test has
 * nothing to say without its model. */
#ifndef SLUICE_TESTS_GOLDEN_RIG_H
#define SLUICE_TESTS_GOLDEN_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/kernel.h"
#include "kv/layout.h"
#include "model/model.h"

struct rig_options {
    const char *path;
    enum model_dtype dtype;
    const char *kv_dtype;           /* NULL: by dtype */
    uint32_t block_tokens;          /* 0: 16 */
    uint32_t pool_tokens;           /* what all sequences together hold */
    uint32_t max_tokens;            /* rows of a step */
    uint32_t max_logits;            /* rows of logits a call */
    const char *isa;                /* NULL: the best */
    const char *hf_overrides;       /* NULL: none */
    bool mtp;                       /* with the layer for drafts */
    uint64_t shuffle;               /* not 0: blocks are handed out in an order made from it */
    uint32_t threads;               /* 0: as many as there are CPUs */
    uint32_t first_layer, n_layers; /* a stage; 0: all layers */
    struct model_part part;
};

struct rig {
    struct kernels *k;
    struct model *m;
    struct model_work *w;
    struct kv_layout kv;
    unsigned char *pool;
    struct k_kv *planes; /* one a layer */
    uint32_t *order;     /* block ids as they are handed out */
    uint32_t handed;
    uint32_t max_tokens, max_logits;
};

/* One sequence: where its tokens stand in the pool. */
struct rig_seq {
    uint32_t *blocks;
    uint32_t cap, len; /* tokens */
    bool output;       /* what is fed from now on is output, not a prompt */
};

/* n tokens for a sequence. */
struct rig_feed {
    struct rig_seq *seq;
    const int32_t *ids;
    uint32_t n;
};

void rig_open(struct rig *r, const struct rig_options *o);
void rig_close(struct rig *r);

void rig_seq_init(struct rig *r, struct rig_seq *s, uint32_t max_tokens);
void rig_seq_finish(struct rig_seq *s);
/* All blocks are free again. */
void rig_forget(struct rig *r);

/* One step with all feeds side by side; rows stand in the order of the feeds. */
void rig_step(struct rig *r, const struct rig_feed *feeds, uint32_t n_feeds);
/* Logits of n rows of the last step, vocab apart. Borrowed until the next call. */
const float *rig_logits(struct rig *r, const uint32_t *rows, uint32_t n);
/* Feeds ids in steps of at most `chunk` tokens (0: as many as fit) and returns the last logits. */
const float *rig_prefill(struct rig *r, struct rig_seq *s, const int32_t *ids, uint32_t n,
                         uint32_t chunk);

uint32_t argmax(const float *x, uint32_t n); /* lowest index wins a tie */

/* Where the test data stand: shared's copy of golden/<name> if there is one, else the small one in
 * tests/data/golden. NULL if neither has it. Static buffer, valid until the next call. */
const char *golden_path(const char *name);
/* The model file, or exit 77 (skipped) if it is not on this machine. */
const char *golden_model(void);

/* A golden that is read whole: exits with a sentence if it cannot be. */
struct golden;
struct golden *golden_open(const char *path);
void golden_close(struct golden *g);
/* NULL if there is no such tensor. n: its elements. */
const float *golden_f32(const struct golden *g, const char *name, size_t *n);
const int32_t *golden_i32(const struct golden *g, const char *name, size_t *n);

/* How many tensors have names that begin so. */
uint32_t golden_count(const struct golden *g, const char *prefix);

/* Largest absolute difference, and root of the mean square. */
double max_diff(const float *a, const float *b, size_t n);
double rms_diff(const float *a, const float *b, size_t n);

/* Counts a failure and prints the sentence unless ok. */
void expect(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int failures(void); /* the exit status: 0 or 1 */

#endif
