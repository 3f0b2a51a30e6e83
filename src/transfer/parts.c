#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "transfer/internal.h"

/* A pull names the producer's rank 0; its bytes come in parts, each from the rank that has it. The
 * whole has ended when all parts have, and the first part that fails ends the others. Each part
 * reads the lease on its own rank and says so when it has finished; DONE, which ends the lease, is
 * said once, to rank 0. */

static struct job *make_part(const struct job *whole, const struct rank_part *r)
{
    struct job *j = calloc(1, sizeof *j);
    const struct transfer_rank *at = &whole->conn->ranks[r->rank];

    if (!j)
        return NULL;
    j->kind = JOB_PART;
    j->state = JOB_NEW;
    strcpy(j->host, r->rank == 0 ? whole->host : at->host);
    j->port = r->rank == 0 ? whole->port : at->port;
    strcpy(j->engine_id, whole->conn->peer.engine_id);
    strcpy(j->lease, whole->lease);
    memcpy(j->prompt, whole->prompt, sizeof j->prompt);
    j->by_name = whole->by_name;
    j->src = whole->by_name ? NULL : whole->src;
    j->n_src = whole->by_name ? 0 : whole->n_src;
    j->dst = whole->dst;
    j->n_dst = whole->n_dst;
    j->src_tokens = whole->src_tokens;
    j->first = whole->first;
    j->n_tokens = whole->n_tokens;
    j->started = whole->started;
    j->progress = whole->progress;
    j->part = *r;
    return j;
}

static void add(struct transfer *t, struct job *whole, struct job *part)
{
    uint32_t end = part->part.first_layer + part->part.n_layers;

    part->whole = whole;
    part->id = ++t->next_job;
    part->next = t->jobs;
    t->jobs = part;
    whole->n_left++;
    if (whole->end_layer < end)
        whole->end_layer = end;
}

static struct job *next_new(const struct transfer *t, uint64_t whole)
{
    struct job *j = t->jobs;

    while (j && (j->kind != JOB_PART || j->state != JOB_NEW || j->whole->id != whole))
        j = j->next;
    return j;
}

/* One that fails at once takes the whole and all others with it. */
static void start_all(struct transfer *t, uint64_t whole)
{
    struct job *j;

    while ((j = next_new(t, whole)))
        job_start(t, j);
}

/* Makes all parts before the first is started. */
static int make_all(struct transfer *t, struct job *whole, const struct rank_part *parts,
                    uint32_t n)
{
    whole->state = JOB_SPLIT;
    for (uint32_t i = 0; i < n; i++) {
        struct job *j = make_part(whole, &parts[i]);

        if (!j)
            return ERR_NOMEM;
        j->is_only = n == 1 && parts[i].rank == 0 && !whole->keep;
        add(t, whole, j);
    }
    return 0;
}

void parts_begin(struct transfer *t, struct job *whole)
{
    const struct conn *c = whole->conn;
    struct rank_part *parts = malloc(c->n_ranks * sizeof *parts);
    /* By request, and differently for the ranks of one consumer. */
    uint32_t seed = lease_hash(whole->lease) + t->opt.rank, n = 0;
    uint64_t id = whole->id;
    struct err e = { "out of memory" };
    int st = ERR_NOMEM;

    if (parts)
        st = ranks_plan(parts, &n, c->ranks, &c->peer.shape, &t->opt.layout, seed, &e);
    if (st == 0 && (st = make_all(t, whole, parts, n)) < 0)
        err_set(&e, st, "out of memory");
    free(parts);
    if (st < 0)
        job_fail(t, whole, st, e.text);
    else
        start_all(t, id);
}

/* Layers of this side that the producer does not have: what stood in the blocks before must not
 * count. */
static void clear_rest(const struct transfer *t, const struct job *whole)
{
    const struct kv_layout *own = &t->opt.layout;
    struct plan_range r = {
        .first_layer = whole->end_layer,
        .n_layers = own->first_layer + own->n_layers - whole->end_layer,
        .first_head = own->first_head,
        .n_heads = own->kv_heads,
        .first_token = whole->first,
        .n_tokens = whole->n_tokens,
        .cell_tokens = own->block_tokens < whole->src_tokens ? own->block_tokens
                                                             : whole->src_tokens,
    };
    struct plan p;
    int st;

    if (r.n_layers == 0)
        return;
    st = plan_init(&p, own, &r, whole->dst, whole->n_dst);
    assert(st == 0); /* the same blocks and tokens as the parts had */
    (void)st;
    for (uint64_t piece = 0; piece < p.n_pieces; piece++)
        plan_clear(&p, t->opt.pool, piece);
}

void parts_ended(struct transfer *t, struct job *whole, bool was_done)
{
    assert(whole->n_left > 0);
    if (--whole->n_left > 0)
        return;
    clear_rest(t, whole);
    if (was_done || whole->keep) {
        job_finish(t, whole, 0, NULL);
        return;
    }
    whole->fetched = true;
    job_start(t, whole); /* the connection to rank 0 again, which is there as a rule */
}

static struct job *any_part(const struct transfer *t, const struct job *whole)
{
    struct job *j = t->jobs;

    while (j && j->whole != whole)
        j = j->next;
    return j;
}

void parts_drop(struct transfer *t, struct job *whole)
{
    struct job *j;

    while ((j = any_part(t, whole)))
        job_drop(t, j);
}
