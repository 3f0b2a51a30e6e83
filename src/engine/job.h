/* A request's life inside the engine: from engine_submit to the scheduler's "gone". Internal to
 * src/engine. Engine thread only, except `mail` while the job travels to it. */
#ifndef SLUICE_ENGINE_JOB_H
#define SLUICE_ENGINE_JOB_H

#include "engine/engine.h"

enum mail_kind {
    MAIL_SUBMIT,    /* a new job */
    MAIL_PULLED,    /* its pull ended */
    MAIL_LEASE_END, /* its lease ended */
    MAIL_CANCEL,    /* by id */
    MAIL_RESET,     /* forget the prefix cache */
};

/* A message to the engine thread; embedded where the sender must not fail. */
struct mail {
    struct mail *next;
    enum mail_kind kind;
};

struct job {
    struct mail submit, pulled, lease_end; /* each is posted at most once at a time */
    uint64_t id;
    sched_id sched;
    void *user;
    struct job *hash_next;

    /* the request, until the scheduler has its copy */
    int32_t *prompt;
    uint32_t n_prompt;
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
    int pull_status;
    char pull_why[512]; /* a sentence when pull_status is an error */
    uint64_t pull_bytes;
    double pull_seconds;
    bool pulling;
    bool pull_tried; /* the remote side has heard of this request */

    /* output */
    struct engine_logprobs *logprobs; /* of the token that the running step chose */
    struct engine_logprobs **prompt_logprobs;
    bool prompt_sent;
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

/* Id to job: a fixed table of chains. */
#define JOB_BUCKETS 4096
struct engine_job_table {
    struct job *bucket[JOB_BUCKETS];
    uint32_t n;
};
void engine_job_table_add(struct engine_job_table *t, struct job *j);
void engine_job_table_remove(struct engine_job_table *t, struct job *j);
struct job *engine_job_table_find(const struct engine_job_table *t, uint64_t id); /* NULL */
/* Any job, NULL when empty. */
struct job *engine_job_table_any(const struct engine_job_table *t);

#endif
