/* A head that several data-parallel ranks share: each has some of the vocabulary. The chosen rows
 * of all ranks go to every rank, which multiplies them by its part; the parts of a row's logits come
 * back to where the row is. All ranks of the head take part in each call, those without rows too.
 *
 *     notices   how many rows each rank has, and how many of each rank's it can take at a time
 *     rounds    rows, and parts of logits; mostly one */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/blocks.h"
#include "model/parcels.h"

/* What a rank tells the others. */
struct notice {
    uint32_t rows, room;
};

struct head_travel {
    struct notice notice, *notices; /* of this rank, of all */
    uint32_t room;                  /* rows of each rank in a round */
    float *taken;                   /* [head_size * room][hidden]: of all ranks */
    float *made;                    /* [head_size * room][this rank's part] */
    float *parts;                   /* [head_size][room][the largest part] */
    uint32_t *same;                 /* [room]: 0, 1, 2 .. */
    struct parcels out, in, back_out, back_in;
    bool more;
};

/* A call, and the round of it. */
struct round {
    const struct model *m;
    struct model_work *w;
    const struct norm *norm;
    const struct k_matrix *head;
    const uint32_t *rows;
    uint32_t n;           /* rows of this rank in the call */
    uint32_t from, count; /* of these, the ones of the round */
    uint32_t taken;       /* rows of all ranks in the round */
};

/* ---- memory ---- */

static int create_lists(struct head_travel *t, const struct model *m)
{
    struct parcels *parcels[] = { &t->out, &t->in, &t->back_out, &t->back_in };
    int st = 0;

    t->notices = calloc(m->part.head_size, sizeof *t->notices);
    t->same = m->k->alloc(m->k, t->room * sizeof *t->same);
    if (!t->notices || !t->same)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < t->room; i++)
        t->same[i] = i;
    for (size_t i = 0; st == 0 && i < sizeof parcels / sizeof parcels[0]; i++)
        st = parcels_create(parcels[i], m->part.head_size);
    return st;
}

uint32_t head_travel_rows(const struct model *m, uint32_t max_logit_rows)
{
    uint32_t most = K_MAX_TOKENS / m->part.head_size;

    return m->part.head_size * (max_logit_rows < most ? max_logit_rows : most);
}

int head_travel_create(struct model_work *w)
{
    const struct model *m = w->m;
    uint32_t rows = head_travel_rows(m, w->max_logit_rows);
    struct head_travel *t = w->head_travel = calloc(1, sizeof *t);

    if (!t)
        return ERR_NOMEM;
    t->room = rows / m->part.head_size;
    t->taken = work_rows(m, rows, m->cfg.hidden);
    t->made = work_rows(m, rows, m->head_ids.n);
    t->parts = work_rows(m, rows, part_head_ids(m, 0).n);
    return t->taken && t->made && t->parts ? create_lists(t, m) : ERR_NOMEM;
}

void head_travel_destroy(const struct model_work *w)
{
    const struct model *m = w->m;
    struct head_travel *t = w->head_travel;
    uint32_t rows;

    if (!t)
        return;
    rows = m->part.head_size * t->room;
    work_rows_free(m, t->taken, rows, m->cfg.hidden);
    work_rows_free(m, t->made, rows, m->head_ids.n);
    work_rows_free(m, t->parts, rows, part_head_ids(m, 0).n);
    m->k->free(m->k, t->same, t->room * sizeof *t->same);
    parcels_destroy(&t->out);
    parcels_destroy(&t->in);
    parcels_destroy(&t->back_out);
    parcels_destroy(&t->back_in);
    free(t->notices);
    free(t);
}

/* ---- notices ---- */

static void exchange(const struct model *m, const void *send, const struct parcels *out, void *recv,
                     const struct parcels *in)
{
    const struct model_peers *p = m->part.peers;

    m->k->sync(m->k);
    p->exchange_head(p->arg, send, out->at, out->bytes, recv, in->at, in->bytes);
}

/* False if they cannot be what was told: an exchange has failed. */
static bool are_plausible(const struct round *r)
{
    const struct head_travel *t = r->w->head_travel;
    uint32_t most = K_MAX_TOKENS / r->m->part.head_size;

    if (memcmp(&t->notices[r->m->part.head_rank], &t->notice, sizeof t->notice) != 0)
        return false;
    for (uint32_t i = 0; i < r->m->part.head_size; i++)
        if (t->notices[i].room < 1 || t->notices[i].room > most ||
            t->notices[i].rows > K_MAX_TOKENS)
            return false;
    return true;
}

static void trade_notices(const struct round *r)
{
    struct head_travel *t = r->w->head_travel;
    uint32_t ranks = r->m->part.head_size;
    size_t bytes = sizeof t->notice;

    t->notice = (struct notice){ r->n, t->room };
    memset(t->notices, 0, ranks * bytes);
    for (uint32_t i = 0; i < ranks; i++) {
        parcels_set(&t->out, i, 0, bytes);
        parcels_set(&t->in, i, i * bytes, bytes);
    }
    exchange(r->m, &t->notice, &t->out, t->notices, &t->in);
    if (!are_plausible(r))
        memset(t->notices, 0, ranks * bytes);
    t->more = false;
    for (uint32_t i = 0; i < ranks; i++)
        t->more = t->more || t->notices[i].rows > 0;
}

/* ---- a round ---- */

static uint32_t rows_of(uint32_t all, uint32_t from, uint32_t most)
{
    uint32_t left = all > from ? all - from : 0;

    return left < most ? left : most;
}

/* Where everything stands in the round of at most `most` rows a rank. */
static void place_rows(struct round *r, uint32_t most)
{
    const struct head_travel *t = r->w->head_travel;
    size_t row = r->m->cfg.hidden * sizeof(float), part = r->m->head_ids.n * sizeof(float);
    size_t at = 0;

    r->count = rows_of(r->n, r->from, most);
    r->taken = 0;
    for (uint32_t i = 0; i < r->m->part.head_size; i++) {
        uint32_t n = rows_of(t->notices[i].rows, r->from, most);
        size_t theirs = part_head_ids(r->m, i).n * sizeof(float);

        parcels_set(&t->out, i, r->from * row, r->count * row);
        parcels_set(&t->in, i, r->taken * row, n * row);
        parcels_set(&t->back_out, i, r->taken * part, n * part);
        parcels_set(&t->back_in, i, at, r->count * theirs);
        r->taken += n;
        at += r->count * theirs;
    }
}

/* [team] */
static void choose_rows(void *arg)
{
    const struct round *r = arg;
    uint32_t hidden = r->m->cfg.hidden;

    r->m->k->gather(r->m->k, r->w->head_x, hidden, r->w->x, hidden, r->rows, r->n, hidden);
}

/* [team] */
static void make_parts(void *arg)
{
    const struct round *r = arg;
    const struct model *m = r->m;
    const struct head_travel *t = r->w->head_travel;
    uint32_t hidden = m->cfg.hidden;

    m->k->act_norm(m->k, r->w->head_act, t->taken, hidden, r->norm->gain, r->norm->bias, r->taken,
                   hidden, m->cfg.norm_eps);
    work_linear(m->k, t->made, m->head_ids.n, r->w->head_act, r->head, r->taken, false);
}

/* [team] The parts of each row side by side. */
static void join_parts(void *arg)
{
    const struct round *r = arg;
    const struct model *m = r->m;
    const struct head_travel *t = r->w->head_travel;
    float *to = r->w->logits + (size_t)r->from * m->cfg.vocab;

    for (uint32_t i = 0; i < m->part.head_size; i++) {
        struct share ids = part_head_ids(m, i);
        const float *part = t->parts + t->back_in.at[i] / sizeof *part;

        m->k->gather(m->k, to + ids.from, m->cfg.vocab, part, ids.n, t->same, r->count, ids.n);
    }
}

static void run_round(struct round *r)
{
    const struct head_travel *t = r->w->head_travel;

    exchange(r->m, r->w->head_x, &t->out, t->taken, &t->in);
    if (r->taken > 0)
        r->m->k->run(r->m->k, make_parts, r);
    exchange(r->m, t->made, &t->back_out, t->parts, &t->back_in);
    if (r->count > 0)
        r->m->k->run(r->m->k, join_parts, r);
}

void head_exchange(const struct model *m, struct model_work *w, const struct norm *norm,
                   const struct k_matrix *head, const uint32_t *rows, uint32_t n)
{
    struct round r = { .m = m, .w = w, .norm = norm, .head = head, .rows = rows, .n = n };
    const struct head_travel *t = w->head_travel;
    uint32_t most = t->room, longest = 0;

    if (n > 0)
        m->k->run(m->k, choose_rows, &r);
    trade_notices(&r);
    for (uint32_t i = 0; t->more && i < m->part.head_size; i++) {
        longest = longest > t->notices[i].rows ? longest : t->notices[i].rows;
        most = most < t->notices[i].room ? most : t->notices[i].room;
    }
    for (; r.from < longest; r.from += most) {
        place_rows(&r, most);
        run_round(&r);
    }
}

bool model_head_more(const struct model_work *w)
{
    return w->head_travel && w->head_travel->more;
}
