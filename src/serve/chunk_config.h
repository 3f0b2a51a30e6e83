/* The keys of --additional-config that say how prompts are cut into chunks:
 * scheduler_config.profiling_chunk_config (also at the top level, where it stood before) and
 * scheduler_config.short_request_first_config. JSON in, the scheduler's settings out; pure. */
#ifndef SLUICE_SERVE_CHUNK_CONFIG_H
#define SLUICE_SERVE_CHUNK_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "sched/sched.h"

struct err;

/* What of the other options counts here. */
struct chunk_config_place {
    uint32_t pp; /* --pipeline-parallel-size */
    uint32_t max_batched_tokens;
    bool chunked_prefill;
    bool priority; /* --scheduling-policy priority */
    bool
        balance; /* VLLM_ASCEND_BALANCE_SCHEDULING is on; the keys that stand for it are read here */
};

#define CHUNK_CONFIG_NOTES 8

struct chunk_config {
    struct sched_chunks chunks;
    struct sched_short_first short_first;
    struct chunk_config_note { /* for the log */
        bool warning;
        char text[256];
    } note[CHUNK_CONFIG_NOTES];
    uint32_t n_notes;
};

/* additional: the whole object, or NULL. With `enabled` false or missing everything is off, whatever else is
 * set. Else ERR_INVAL with a sentence that names the key: an unknown one, a value of the wrong kind or out of
 * range, or another option that does not go with it. */
int chunk_config_read(struct chunk_config *out, const json_t *additional,
                      const struct chunk_config_place *at, struct err *e);

#endif
