/* The inside of an engine, shared by the files of src/engine.
 *
 * Threads: fields under "core" belong to the engine thread (after it has ended, to engine_close);
 * the mailbox, the counters under `lock` and the transfer object may be used by any. */
#ifndef SLUICE_ENGINE_INTERNAL_H
#define SLUICE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/job.h"
#include "engine/mailbox.h"
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

struct engine {
    struct kernels *kernels;
    struct model *model;
    struct kv_layout layout;
    void *pool;
    bool pool_from_link; /* transfer_memory_alloc, else the kernel table's alloc */
    struct transfer *transfer;
    struct engine_kv_options kv;
    struct sched_config sched_config;
    char engine_id[TRANSFER_ID_MAX];
    char kv_host[KV_PARAMS_HOST_MAX];
    double step_delay;
    uint64_t scratch_bytes; /* of the activations, about */

    struct engine_job_table jobs; /* locks itself */
    struct inbox inbox;
    struct outbox outbox;
    pthread_t thread;
    bool running; /* the thread exists */
    atomic_bool stop, closing;
    atomic_uint_fast64_t next_id;

    /* core */
    struct sched *sched;
    struct worker *worker;
    struct step_choice *choice; /* [max_seqs]: what the running step gave */

    pthread_mutex_t lock; /* the rest */
    struct engine_stats stats;
    double busy_since; /* 0: idle */
    struct samples step_sizes, pull_times;
};

/* core.c */
void *engine_core_thread(void *engine);
/* Handles a list of mail; also used by engine_close when the thread is gone. */
void engine_core_mail(struct engine *e, struct mail *m);
/* Passes on what the scheduler has to say. */
void engine_core_drain(struct engine *e);
void engine_core_publish(struct engine *e);

/* remote.c */
/* Where p says that a prefill is; borrows from p and prompt (its digest, for what is known by name). */
struct transfer_source engine_remote_source(const struct engine *e, const struct kv_params *p,
                                            const unsigned char *prompt);
void engine_remote_event(void *engine, const struct transfer_event *ev); /* comm thread */
void engine_remote_start_pulls(struct engine *e);
void engine_remote_pulled(struct engine *e, struct job *j);
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
/* Fills n_blocks and, where the pool is smaller, max_model_len. */
int engine_memory_plan(struct engine *e, const struct engine_options *opt, struct err *err);
int engine_memory_make_pool(struct engine *e, struct err *err);
void engine_memory_free_pool(struct engine *e);

void engine_samples_add(struct samples *s, double v);

#endif
