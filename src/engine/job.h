/* A request's life inside the engine: from engine_submit to the scheduler's "gone". Internal to
 * src/engine. Engine thread only, except mail while it travels, and what the table's lock guards. */
#ifndef SLUICE_ENGINE_JOB_H
#define SLUICE_ENGINE_JOB_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/kv_lead.h"

enum mail_kind {
    MAIL_SUBMIT,    /* a new job */
    MAIL_PULLED,    /* its pull ended */
    MAIL_LEASE_END, /* its lease ended */
    MAIL_CANCEL,    /* its client wants it to end */
    MAIL_RESET,     /* forget the prefix cache */
    MAIL_BOX,       /* a plan or a result from another rank */
    MAIL_BROKEN,    /* the ranks are not together any more */
    MAIL_LEAVE,     /* a rank other than 0: the end */
};

/* A message to the engine thread; embedded where the sender must not fail. */
struct mail {
    struct mail *next;
    enum mail_kind kind;
};

#define JOB_STEP_TOKENS (1 + SPEC_MAX_TOKENS) /* of one step */

struct job {
    struct mail submit, pulled, lease_end, cancel; /* each is posted at most once at a time */
    uint64_t id;
    sched_id sched;
    void *user;
    struct job *hash_next;

    /* under the table's lock */
    bool canceling; /* the cancel is on its way to the engine thread */
    bool gone;      /* all else is over: the cancel's arrival destroys it */
    enum finish cancel_finish;

    /* the request, until the scheduler has its copy */
    int32_t *prompt;             /* and the output tokens that came with it */
    uint32_t n_prompt, n_output; /* the latter of the former */
    bool give_back;
    struct sampling sampling;
    void *salt;
    size_t salt_len;
    int64_t priority;

    /* transfer */
    enum sched_role role;
    struct kv_params kv; /* as the request gave it */
    char transfer_id[TRANSFER_ID_MAX];
    unsigned char digest[TRANSFER_PROMPT_BYTES]; /* of the prompt; where kv.transfer_id is given */
    bool expected;                               /* PRODUCE: consumers may wait for it by name */
    struct kv_track pull, lease;
    uint64_t pull_bytes; /* of the ranks, where DONE is still to be said */
    double pull_seconds;
    bool pulling;
    bool pull_tried; /* the remote side has heard of this request */

    /* output */
    /* Of the tokens that the running step chose: output index i at i % JOB_STEP_TOKENS. */
    struct engine_logprobs *logprobs[JOB_STEP_TOKENS];
    struct engine_logprobs **prompt_logprobs;
    bool prompt_sent;
    bool lost;  /* there was no memory for some of it */
    bool ended; /* ENGINE_END is out */
    int32_t last_token;
    double t_arrive, t_start, t_first, t_last;
    uint32_t n_prefill;
    int status;
    char *why; /* of FINISH_ERROR; owned */
};

/* Copies the request. *out is destroyed with engine_job_destroy. ERR_NOMEM. */
int engine_job_create(struct job **out, const struct engine_request *r);
void engine_job_destroy(struct job *j); /* NULL is fine */
/* Keeps the first reason. */
void engine_job_fail(struct job *j, int status, const char *why);

/* Id to job: a fixed table of chains, so that any thread can cancel without memory. */
#define JOB_BUCKETS 4096
struct engine_job_table {
    pthread_mutex_t lock;
    struct job *bucket[JOB_BUCKETS];
};
void engine_job_table_init(struct engine_job_table *t);
void engine_job_table_finish(struct engine_job_table *t);
void engine_job_table_add(struct engine_job_table *t, struct job *j);
/* Removes and destroys it, or leaves that to the cancel that is on its way. */
void engine_job_table_end(struct engine_job_table *t, struct job *j);
/* Any thread: the cancel mail that must be posted now; NULL if the id is unknown, or it is on its way. Of
 * two wishes FINISH_ABORT counts. */
struct mail *engine_job_table_cancel(struct engine_job_table *t, uint64_t id, enum finish finish);
/* The cancel mail of j has come. False: j was only waiting for it, and is destroyed. */
bool engine_job_table_canceled(struct engine_job_table *t, struct job *j, enum finish *finish);

#endif
