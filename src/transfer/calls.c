#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sys/clock.h"
#include "transfer/internal.h"

/* ---- producer's calls ---- */

/* What was said of the lease before it began. Under the lock. */
static void name_lease(struct transfer *t, struct lease *l)
{
    struct await a;

    await_hold(&t->awaits, l->id, &a);
    t->awaits_changed = true;
    if (!a.coming)
        return;
    l->named = true;
    memcpy(l->prompt, a.prompt, sizeof l->prompt);
    if (a.given_up)
        lease_end(l, LEASE_ABORTED);
}

static int check_hold(const struct transfer *t, const uint32_t *blocks, uint32_t n_blocks,
                      uint32_t n_tokens)
{
    const struct kv_layout *l = &t->opt.layout;

    if (!t->opt.produce || n_tokens > (uint64_t)n_blocks * l->block_tokens)
        return ERR_INVAL;
    for (uint32_t i = 0; i < n_blocks; i++)
        if (blocks[i] >= l->n_blocks)
            return ERR_RANGE;
    return 0;
}

int transfer_hold(struct transfer *t, const char *id, const uint32_t *blocks, uint32_t n_blocks,
                  uint32_t n_tokens, uint64_t user)
{
    struct lease *grown;
    int st = check_hold(t, blocks, n_blocks, n_tokens);

    if (st < 0)
        return st;
    pthread_mutex_lock(&t->lock);
    if ((grown = lease_find_growing(&t->leases, id))) {
        grown->user = user;
        lease_complete(grown, clock_now() + t->opt.lease_seconds);
        pthread_mutex_unlock(&t->lock);
        link_wake(t->link);
        return 0;
    }
    st = lease_add(&t->leases, id, blocks, n_blocks, n_tokens, user,
                   clock_now() + t->opt.lease_seconds);
    if (st == 0) {
        name_lease(t, lease_find(&t->leases, id));
        t->stats.leases_total++;
    }
    t->stats.leases = t->leases.n;
    pthread_mutex_unlock(&t->lock);
    if (st == 0)
        link_wake(t->link); /* its deadline may be the next */
    return st;
}

int transfer_grow(struct transfer *t, const char *id, const uint32_t *blocks, uint32_t n_blocks,
                  uint32_t n_tokens, uint32_t done, uint64_t user)
{
    int st = check_hold(t, blocks, n_blocks, n_tokens);

    if (st < 0)
        return st;
    pthread_mutex_lock(&t->lock);
    st = lease_grow(&t->leases, id, blocks, n_blocks, n_tokens, user, t->opt.layout.n_layers, done);
    if (st == 0) {
        name_lease(t, lease_find_growing(&t->leases, id));
        t->stats.leases_total++;
    }
    t->stats.leases = t->leases.n;
    pthread_mutex_unlock(&t->lock);
    if (st == 0)
        link_wake(t->link); /* who waits for it can be served */
    return st;
}

int transfer_grown(struct transfer *t, const char *id, uint32_t layer, uint32_t n_tokens)
{
    struct lease *l;
    bool is_read = false;

    pthread_mutex_lock(&t->lock);
    l = lease_find_growing(&t->leases, id);
    if (l) {
        lease_grown(l, layer, n_tokens);
        is_read = l->readers > 0;
    }
    pthread_mutex_unlock(&t->lock);
    if (is_read)
        link_wake(t->link);
    return l ? 0 : ERR_NOTFOUND;
}

void transfer_stop_growing(struct transfer *t, const char *id)
{
    struct lease *l;

    pthread_mutex_lock(&t->lock);
    l = lease_find_growing(&t->leases, id);
    if (l) {
        lease_end(l, LEASE_ABORTED);
        lease_complete(l, 0);
    }
    pthread_mutex_unlock(&t->lock);
    if (l)
        link_wake(t->link);
}

int transfer_expect(struct transfer *t, const char *id,
                    const unsigned char prompt[TRANSFER_PROMPT_BYTES])
{
    int st;

    if (!t->opt.produce)
        return ERR_INVAL;
    pthread_mutex_lock(&t->lock);
    st = lease_find(&t->leases, id) ? ERR_EXISTS : await_expect(&t->awaits, id, prompt);
    t->awaits_changed = true; /* who waits already may have another prompt */
    pthread_mutex_unlock(&t->lock);
    if (st == 0)
        link_wake(t->link);
    return st;
}

void transfer_drop(struct transfer *t, const char *id)
{
    pthread_mutex_lock(&t->lock);
    await_drop(&t->awaits, id, clock_now() + t->opt.pull_timeout);
    t->awaits_changed = true;
    pthread_mutex_unlock(&t->lock);
    link_wake(t->link);
}

int transfer_abort_hold(struct transfer *t, const char *id)
{
    static const unsigned char any_prompt[TRANSFER_PROMPT_BYTES];
    const struct await *a;
    struct lease *l;
    bool found;

    pthread_mutex_lock(&t->lock);
    l = lease_find(&t->leases, id);
    a = await_find(&t->awaits, id);
    found = l || (a && a->coming);
    if (l)
        lease_end(l, LEASE_ABORTED);
    else if (found)
        await_give_up(&t->awaits, id, any_prompt, HUGE_VAL);
    pthread_mutex_unlock(&t->lock);
    if (!found)
        return ERR_NOTFOUND;
    link_wake(t->link);
    return 0;
}

/* ---- consumer's calls ---- */

static int copy_text(char *out, size_t cap, const char *text)
{
    size_t n = text ? strlen(text) : 0;

    if (n >= cap)
        return ERR_TOOLONG;
    memcpy(out, text ? text : "", n + 1);
    return 0;
}

static int make_job(struct job **out, enum job_kind kind, const struct transfer_source *src)
{
    struct job *j = calloc(1, sizeof *j);
    int st;

    if (!j)
        return ERR_NOMEM;
    j->kind = kind;
    j->started = clock_now();
    if (src && ((st = copy_text(j->host, sizeof j->host, src->host)) < 0 ||
                (st = copy_text(j->engine_id, sizeof j->engine_id, src->engine_id)) < 0 ||
                (st = copy_text(j->lease, sizeof j->lease, src->transfer_id)) < 0)) {
        job_free(j);
        return st;
    }
    j->port = src ? src->port : 0;
    j->by_name = src && src->prompt;
    if (j->by_name)
        memcpy(j->prompt, src->prompt, sizeof j->prompt);
    *out = j;
    return 0;
}

/* Into the mailbox. Takes j, also on failure. */
static int post(struct transfer *t, struct job *j)
{
    /* However many pulls there are, they can still be canceled. */
    uint32_t max = j->kind == JOB_CANCEL ? 2 * TRANSFER_JOBS_MAX : TRANSFER_JOBS_MAX;
    int st = 0;

    pthread_mutex_lock(&t->lock);
    if (t->n_jobs >= max) {
        st = ERR_LIMIT;
    } else {
        t->n_jobs++;
        if (j->kind == JOB_PULL)
            t->stats.pulls++;
        *t->inbox_end = j;
        t->inbox_end = &j->next;
    }
    pthread_mutex_unlock(&t->lock);
    if (st < 0)
        job_free(j);
    else
        link_wake(t->link);
    return st;
}

static int copy_blocks(uint32_t **out, uint32_t *n_out, const uint32_t *blocks, uint32_t n)
{
    *out = malloc((n + 1ull) * sizeof *blocks);
    if (!*out)
        return ERR_NOMEM;
    if (n > 0)
        memcpy(*out, blocks, n * sizeof *blocks);
    *n_out = n;
    return 0;
}

/* Whether the numbers of a pull fit each other and this pool. */
static int check_pull(const struct transfer *t, const struct transfer_source *src,
                      const uint32_t *dst, uint32_t n_dst, uint32_t first, uint32_t n_tokens)
{
    const struct kv_layout *l = &t->opt.layout;
    uint32_t own = l->block_tokens, theirs = src->block_tokens;

    if (!t->opt.consume || first > n_tokens)
        return ERR_INVAL;
    if (first == n_tokens)
        return 0;
    if (theirs == 0 || (own % theirs != 0 && theirs % own != 0))
        return ERR_MISMATCH;
    if (first % own != 0 || first % theirs != 0 || n_tokens > (uint64_t)n_dst * own ||
        (!src->prompt && n_tokens > (uint64_t)src->n_blocks * theirs))
        return ERR_MISMATCH;
    if (n_dst > LEASE_BLOCKS_MAX || src->n_blocks > LEASE_BLOCKS_MAX)
        return ERR_LIMIT;
    for (uint32_t i = first / own; i < n_dst; i++)
        if (dst[i] >= l->n_blocks)
            return ERR_MISMATCH;
    return 0;
}

int transfer_pull(struct transfer *t, const struct transfer_source *src, const uint32_t *dst,
                  uint32_t n_dst, uint32_t first, uint32_t n_tokens, uint64_t user)
{
    struct job *j;
    int st = check_pull(t, src, dst, n_dst, first, n_tokens);

    if (st < 0 || (st = make_job(&j, JOB_PULL, src)) < 0)
        return st;
    j->user = user;
    j->first = first;
    j->n_tokens = n_tokens;
    j->src_tokens = src->block_tokens;
    j->keep = src->keep;
    if ((st = copy_blocks(&j->src, &j->n_src, src->blocks, src->n_blocks)) < 0 ||
        (st = copy_blocks(&j->dst, &j->n_dst, dst, n_dst)) < 0) {
        job_free(j);
        return st;
    }
    return post(t, j);
}

int transfer_done(struct transfer *t, const struct transfer_source *src, uint64_t user)
{
    struct job *j;
    int st = make_job(&j, JOB_PULL, src);

    if (st < 0)
        return st;
    j->user = user;
    j->fetched = true;
    return post(t, j);
}

int transfer_cancel(struct transfer *t, uint64_t user)
{
    struct job *j;
    int st = make_job(&j, JOB_CANCEL, NULL);

    if (st < 0)
        return st;
    j->user = user;
    return post(t, j);
}

int transfer_release_remote(struct transfer *t, const struct transfer_source *src)
{
    struct job *j;
    int st = make_job(&j, JOB_RELEASE, src);

    return st < 0 ? st : post(t, j);
}

int transfer_probe(struct transfer *t, const char *host, uint16_t port, struct err *e)
{
    struct transfer_source src = { .host = host, .port = port };
    struct probe probe = { .over = PTHREAD_COND_INITIALIZER };
    struct job *j;
    int st = make_job(&j, JOB_PROBE, &src);

    if (st < 0)
        return err_set(e, st, "cannot probe %s:%u: %s", host, port, status_text(st));
    j->probe = &probe;
    st = post(t, j);
    if (st < 0)
        return err_set(e, st, "cannot probe %s:%u: too many jobs", host, port);
    pthread_mutex_lock(&t->lock);
    while (!probe.is_over) /* the comm thread bounds this by connect_timeout */
        pthread_cond_wait(&probe.over, &t->lock);
    pthread_mutex_unlock(&t->lock);
    pthread_cond_destroy(&probe.over);
    if (probe.status < 0)
        return err_set(e, probe.status, "%s", probe.e.text);
    return 0;
}

int calls_recheck(struct transfer *t, const char *host, uint16_t port)
{
    struct transfer_source src = { .host = host, .port = port };
    struct job *j;
    int st = make_job(&j, JOB_PROBE, &src);

    return st < 0 ? st : post(t, j);
}

void transfer_stats(struct transfer *t, struct transfer_stats *out)
{
    pthread_mutex_lock(&t->lock);
    *out = t->stats;
    pthread_mutex_unlock(&t->lock);
}
