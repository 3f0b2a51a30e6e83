/* The inside of an engine, shared by the files of src/engine.
 *
 * Threads: fields under "core" belong to the engine thread (after it has ended, to engine_close);
 * the mailbox, the counters under `lock` and the transfer object may be used by any. */
#ifndef SLUICE_ENGINE_INTERNAL_H
#define SLUICE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/status.h"
#include "engine/bubble.h"
#include "engine/dp.h"
#include "engine/engine.h"
#include "engine/job.h"
#include "engine/kv_lead.h"
#include "engine/kv_push.h"
#include "engine/mailbox.h"
#include "engine/pipe.h"
#include "engine/plan_wire.h"
#include "engine/ranks.h"
#include "engine/worker.h"

#define ENGINE_SAMPLES 1024 /* step sizes and pull times kept for the next scrape */

struct reset_mail {
    struct mail mail;
    void *user;
};

/* Figures for one histogram: a ring that overwrites its oldest. */
struct samples {
    double v[ENGINE_SAMPLES];
    uint32_t head, n;
};

/* What came from another rank, on its way to the engine thread. */
struct box {
    struct mail mail;
    struct buf bytes;
    atomic_bool full;
};

/* A plan in flight. */
struct flight_of {
    const struct plan *plan; /* the scheduler's, or empty */
    double t0;
    struct plan empty; /* of a step that only other instances have work for */
};

struct engine {
    struct kernels *kernels;
    struct ranks *ranks;
    struct rank_facts facts; /* of this rank */
    struct model *model;
    struct kv_layout layout;
    void *pool;
    bool pool_from_link;         /* transfer_memory_alloc, else the kernel table's alloc */
    struct kv_lead *kv_lead;     /* rank 0, where there is transfer */
    struct kv_follow *kv_follow; /* the other ranks then */
    struct kv_push *push; /* what of its prompts goes out while it is computed; NULL: nothing */
    struct engine_kv_options kv;
    struct sched_config sched_config;
    char engine_id[TRANSFER_ID_MAX];
    char kv_host[KV_PARAMS_HOST_MAX];
    double step_delay;
    uint64_t scratch_bytes; /* of the activations, about */
    void (*timeline)(void *arg, const struct engine_step_times *t);
    void *timeline_arg;

    struct engine_job_table jobs; /* locks itself */
    struct inbox inbox;
    struct outbox outbox;
    pthread_t thread;
    bool running; /* the thread exists */
    atomic_bool stop, closing;
    atomic_uint_fast64_t next_id;

    struct dp *dp; /* rank 0, where there is a data-parallel group */
    bool dp_in_step;
    uint32_t dp_first; /* this instance's first rank in the group of all */

    struct pipe *pipe; /* NULL: alone */
    struct box *box;   /* [n_boxes] filled by the pipe's thread, in turn */
    uint32_t n_boxes, next_box;
    struct mail broken_mail, leave_mail;
    char lost[RANKS_WHY_MAX]; /* what broken_mail says; final when is_lost is set */
    atomic_bool is_lost;
    char broken_why[RANKS_WHY_MAX];
    atomic_bool broken; /* for good; broken_why is final */

    /* core */
    struct sched *sched;
    struct worker *worker;
    struct step_choice *choice; /* [max_seqs]: what the running step gave */
    struct plan_writer *writer; /* rank 0 of several */
    struct buf plan_bytes;
    struct plan_reader *reader; /* the others */
    struct result_writer result;
    struct flight_of *flight; /* a ring of max_inflight */
    uint32_t first_flight, n_flights;
    uint64_t dropped; /* seq of the last plan whose result is not waited for any more */
    uint64_t n_empty; /* plans without work that were run */

    pthread_mutex_t lock; /* the rest */
    struct engine_stats stats;
    struct bubble bubble;
    double busy_since; /* 0: idle */
    struct samples step_sizes, pull_times;
};

/* engine.c */
/* What all ranks do to open: everything but the scheduler. Leaves the half-built to engine_close. */
int engine_open_part(struct engine *e, const struct engine_options *opt, struct err *err);
struct plan_limits engine_plan_limits(const struct engine *e);

/* stage.c */
/* Runs this rank's part of a plan: on the states that the stage before has made, which are waited for, and
 * passes its own on. times: of the stages so far, this one's the last. 0, or a sentence. */
int engine_stage_run(struct engine *e, const struct plan *p, struct step_choice *out,
                     const struct worker_sink *sink, struct pipe_time *times, uint32_t *n_times,
                     struct err *err);
/* Rank 0: tells the other ranks of a plan. */
int engine_stage_send(struct engine *e, const struct plan *p, struct err *err);
/* Opens the pipe between ranks, if there are several. */
int engine_stage_open_pipe(struct engine *e, struct err *err);
/* Whether the pipe has found the ranks apart (e->lost says why), now or within the seconds. */
bool engine_stage_is_lost(struct engine *e, double seconds);

/* profile.c */
/* Rank 0, before it serves: finds out how long the stages take, where chunks are planned by that. An error
 * is one of the ranks; what cannot be measured is only logged. */
int engine_profile(struct engine *e, const struct engine_options *opt, struct err *err);

/* dp_engine.c: the data-parallel group. look: takes expert parallelism away where there are no experts.
 * begin: before anything is loaded. gather: all ranks are loaded;
 * meets those of the other instances, where steps are made together. */
int engine_dp_look(struct engine_options *o, struct err *err);
int engine_dp_begin(struct engine *e, const struct engine_options *o, struct err *err);
int engine_dp_gather(struct engine *e, const struct engine_options *o, struct err *err);

/* core.c */
void *engine_core_thread(void *engine);
/* Ends all requests with this error, as the steps in flight do not happen. What is held for a decode
 * elsewhere stays. */
void engine_core_fail_all(struct engine *e, int status, const char *why);
/* The plans in flight have failed: what they name ends with an error, if it has not ended. */
void engine_core_drop_flights(struct engine *e);
/* Handles a list of mail; also used by engine_close when the thread is gone. */
void engine_core_mail(struct engine *e, struct mail *m);
/* Passes on what the scheduler has to say. */
void engine_core_drain(struct engine *e);
void engine_core_publish(struct engine *e);

/* remote.c */
/* Where p says that a prefill is; borrows from p and prompt (its digest, for what is known by name). */
struct transfer_source engine_remote_source(const struct engine *e, const struct kv_params *p,
                                            const unsigned char *prompt);
/* KV transfer, where opt asks for it: what the ranks need before the pipe runs, and rank 0 when it
 * does. */
int engine_remote_begin(struct engine *e, const struct engine_options *opt, struct err *err);
int engine_remote_open(struct engine *e, const struct engine_options *opt, struct err *err);
/* A message between ranks about it. The pipe's thread. */
void engine_remote_arrived(struct engine *e, uint32_t from, const void *data, size_t bytes);
/* Ends the pull of a job that is canceled. */
void engine_remote_cancel(struct engine *e, struct job *j);
void engine_remote_start_pulls(struct engine *e);
void engine_remote_pulled(struct engine *e, struct job *j);
/* The job has left the queue: its first plan is about to be run. */
void engine_remote_started(struct engine *e, struct job *j, sched_id id);
/* This rank's; NULL: none now. The computing thread. */
struct transfer *engine_remote_transfer(const struct engine *e);
/* A prefill that a proxy has named: consumers may ask for it from now on. 0, or why not. */
int engine_remote_expect(struct engine *e, struct job *j);
/* The job ends without having pulled, or without having been held: the other side need not hold its
 * blocks, or wait, any longer. */
void engine_remote_forget(struct engine *e, struct job *j);
/* The job has ended for its client and its blocks wait for a decode elsewhere: makes the lease and
 * the answer. NULL, with the job failed and released, if it cannot be held. */
struct kv_params *engine_remote_hold(struct engine *e, struct job *j);
/* What the request wants of transfer; ERR_INVAL with a sentence if this instance cannot. */
int engine_remote_role(const struct engine *e, const struct kv_params *kv, enum sched_role *role,
                       struct err *err);

/* memory.c: what opt will take, before anything is loaded: a line in the log, and ERR_NOMEM where it
 * cannot fit. */
int engine_memory_check(struct engine *e, const struct engine_options *opt, struct err *err);
/* With the facts of all ranks: ERR_NOMEM where those of this host do not fit together. */
int engine_memory_verdict(const struct engine *e, struct err *err);
/* With the model loaded: the layout of its KV blocks, and what the size of the pool depends on. */
void engine_memory_facts(struct engine *e, const struct engine_options *opt);
/* With the facts of all ranks: n_blocks and, where the pool is smaller, max_model_len. */
int engine_memory_plan(struct engine *e, const struct engine_options *opt, struct err *err);
int engine_memory_make_pool(struct engine *e, struct err *err);
void engine_memory_free_pool(struct engine *e);

void engine_samples_add(struct samples *s, double v);

#endif
