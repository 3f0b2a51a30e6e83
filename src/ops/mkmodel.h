/* Makes a checkpoint with seeded random, well-scaled weights for a configuration: for tests,
 * benchmarks, and rehearsals of topologies whose real model is too big to fetch. */
#ifndef SLUICE_OPS_MKMODEL_H
#define SLUICE_OPS_MKMODEL_H

#include <stdbool.h>
#include <stdint.h>

struct err;

enum mkmodel_layout {
    MKMODEL_BF16,
    MKMODEL_FP8,  /* e4m3 with a scale for each 128 x 128, as DeepSeek publishes */
    MKMODEL_W8A8, /* ModelSlim's newer layout: attention static, feed-forward dynamic */
};

struct mkmodel_options {
    const char *config; /* a config.json */
    const char *out;    /* a folder: not there, or empty */
    enum mkmodel_layout layout;
    uint64_t seed;
    const char *tokenizer; /* whose tokenizer it gets: a folder or a .gguf file; NULL: none */
    uint64_t max_shard_bytes;
    uint32_t threads; /* 0: one for each CPU of this process */
    bool force;       /* replace a checkpoint that stands in out */
    bool quiet;       /* no progress line */
};

/* The bytes depend on the configuration, the layout and the seed alone. Nothing is left behind on
 * failure. ERR_NOTFOUND, ERR_BADMSG, ERR_UNSUPPORTED, ERR_EXISTS, ERR_IO, ERR_NOMEM. */
int mkmodel(const struct mkmodel_options *opt, struct err *e);

#endif
