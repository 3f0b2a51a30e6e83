/* Step plans and results as bytes, between rank 0 and the other ranks of an instance.
 *
 * A rank keeps what it knows of each request: its tokens, its blocks, how it is sampled. So a plan
 * carries a request in full the first time only, and then what has changed: the tokens that were
 * chosen, blocks that were added. Rank 0 keeps account of what the others know; when there are more
 * requests than places, the one that was planned least recently is forgotten, and sent in full if it
 * comes again.
 *
 * Both ends are of one build; numbers are in the machine's own order. What comes is checked all the
 * same: no plan makes a rank write where it should not. */
#ifndef SLUICE_ENGINE_PLAN_WIRE_H
#define SLUICE_ENGINE_PLAN_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/pipe.h"
#include "engine/worker.h"
#include "sched/sched.h"

struct err;

/* What both ends must agree on. */
struct plan_limits {
    uint32_t max_seqs, max_tokens; /* of a step */
    uint32_t max_model_len;
    uint32_t block_tokens, n_blocks;
    uint32_t vocab;
};

/* ---- rank 0 ---- */

struct plan_writer;
int plan_writer_create(struct plan_writer **out, const struct plan_limits *l, struct err *e);
void plan_writer_destroy(struct plan_writer *w); /* NULL is fine */
/* The request will be planned no more. */
void plan_writer_forget(struct plan_writer *w, sched_id id);
/* Appends the plan's bytes; every plan goes to every rank, in order. ERR_NOMEM, ERR_TOOLONG. */
int plan_write(struct plan_writer *w, const struct plan *p, struct buf *out);

/* ---- the others ---- */

struct plan_reader;
int plan_reader_create(struct plan_reader **out, const struct plan_limits *l, struct err *e);
void plan_reader_destroy(struct plan_reader *r); /* NULL is fine */
/* *out is borrowed until the next call. ERR_BADMSG, ERR_NOMEM; after a failure the reader does not fit its
 * writer any more. */
int plan_read(struct plan_reader *r, const void *bytes, size_t n, const struct plan **out);

/* ---- results ---- */

/* Log-probabilities are written while the step runs (result_sink is given to the worker), then
 * everything that was chosen. */
struct result_writer {
    struct buf b;
    uint32_t n_records;
    const struct plan *plan;
};
void result_writer_init(struct result_writer *w);
void result_writer_finish(struct result_writer *w);
void result_begin(struct result_writer *w, const struct plan *p);
struct worker_sink result_sink(struct result_writer *w);
/* The bytes are in w->b. ERR_NOMEM, ERR_TOOLONG. */
int result_end(struct result_writer *w, const struct step_choice *choice,
               const struct pipe_time *times, uint32_t n_times);

/* The sequence number of the plan that the bytes answer. ERR_BADMSG. */
int result_seq(uint64_t *out, const void *bytes, size_t n);
/* Fills choice (one an entry of p) and times (ENGINE_MAX_STAGES), and tells the sink the
 * log-probabilities. ERR_BADMSG: it does not answer p; what the sink was told before is to be thrown away. */
int result_read(const void *bytes, size_t n, const struct plan *p, uint32_t vocab,
                struct step_choice *choice, const struct worker_sink *sink, struct pipe_time *times,
                uint32_t *n_times);

#endif
