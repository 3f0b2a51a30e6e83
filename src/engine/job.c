#include "engine/job.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

int engine_job_create(struct job **out, const struct engine_request *r)
{
    struct job *j = calloc(1, sizeof *j);

    if (!j)
        return ERR_NOMEM;
    j->submit.kind = MAIL_SUBMIT;
    j->pulled.kind = MAIL_PULLED;
    j->lease_end.kind = MAIL_LEASE_END;
    j->cancel.kind = MAIL_CANCEL;
    j->user = r->user;
    j->priority = r->priority;
    j->n_output = r->kv ? r->kv->n_output : 0;
    j->n_prompt = r->n_prompt + j->n_output;
    j->give_back = r->give_back;
    j->salt_len = r->salt_len;
    j->last_token = -1;
    sampling_init(&j->sampling);
    j->prompt = malloc(j->n_prompt * sizeof *j->prompt);
    j->salt = malloc(r->salt_len + 1);
    if (!j->prompt || !j->salt || sampling_copy(&j->sampling, r->sampling) < 0 ||
        (r->kv && kv_params_copy(&j->kv, r->kv) < 0)) {
        engine_job_destroy(j);
        return ERR_NOMEM;
    }
    memcpy(j->prompt, r->prompt, r->n_prompt * sizeof *j->prompt);
    if (j->n_output)
        memcpy(j->prompt + r->n_prompt, j->kv.output_ids, j->n_output * sizeof *j->prompt);
    if (r->salt_len)
        memcpy(j->salt, r->salt, r->salt_len);
    if (r->sampling->prompt_logprobs >= 0) {
        j->prompt_logprobs = calloc(r->n_prompt, sizeof *j->prompt_logprobs);
        if (!j->prompt_logprobs) {
            engine_job_destroy(j);
            return ERR_NOMEM;
        }
    }
    *out = j;
    return 0;
}

void engine_job_destroy(struct job *j)
{
    if (!j)
        return;
    engine_prompt_free(j->prompt_logprobs, j->n_prompt);
    sampling_finish(&j->sampling);
    kv_params_finish(&j->kv);
    for (int i = 0; i < JOB_STEP_TOKENS; i++)
        free(j->logprobs[i]);
    free(j->prompt);
    free(j->salt);
    free(j->why);
    free(j);
}

void engine_job_fail(struct job *j, int status, const char *why)
{
    if (j->status < 0)
        return;
    j->status = status;
    j->why = strdup(why); /* without memory the status must do */
}

static struct job **slot(struct engine_job_table *t, uint64_t id)
{
    return &t->bucket[id % JOB_BUCKETS];
}

void engine_job_table_init(struct engine_job_table *t)
{
    pthread_mutex_init(&t->lock, NULL);
}

void engine_job_table_finish(struct engine_job_table *t)
{
    pthread_mutex_destroy(&t->lock);
}

void engine_job_table_add(struct engine_job_table *t, struct job *j)
{
    struct job **head = slot(t, j->id);

    pthread_mutex_lock(&t->lock);
    j->hash_next = *head;
    *head = j;
    pthread_mutex_unlock(&t->lock);
}

void engine_job_table_end(struct engine_job_table *t, struct job *j)
{
    struct job **p = slot(t, j->id);
    bool canceling;

    pthread_mutex_lock(&t->lock);
    while (*p != j) {
        assert(*p);
        p = &(*p)->hash_next;
    }
    *p = j->hash_next;
    j->gone = true;
    canceling = j->canceling;
    pthread_mutex_unlock(&t->lock);
    if (!canceling)
        engine_job_destroy(j);
}

struct mail *engine_job_table_cancel(struct engine_job_table *t, uint64_t id, enum finish finish)
{
    struct mail *post = NULL;
    struct job *j;

    pthread_mutex_lock(&t->lock);
    j = *slot(t, id);
    while (j && j->id != id)
        j = j->hash_next;
    if (j && (!j->canceling || finish == FINISH_ABORT))
        j->cancel_finish = finish;
    if (j && !j->canceling)
        post = &j->cancel;
    if (j)
        j->canceling = true;
    pthread_mutex_unlock(&t->lock);
    return post;
}

bool engine_job_table_canceled(struct engine_job_table *t, struct job *j, enum finish *finish)
{
    bool gone;

    pthread_mutex_lock(&t->lock);
    j->canceling = false;
    *finish = j->cancel_finish;
    gone = j->gone;
    pthread_mutex_unlock(&t->lock);
    if (gone)
        engine_job_destroy(j);
    return !gone;
}
