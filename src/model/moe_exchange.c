/* Experts that are on several ranks. A slice of tokens is routed at home. Its rows, sorted by
 * expert, are sorted by rank too; they travel to the ranks that have their experts, are sorted anew
 * among everyone's, and what becomes of them travels back to the same places. So the sum of a
 * token's choices is that of one process, in the same order.
 *
 *     notices   each rank tells all others how many rows it has for each expert; so all know how
 *               many rounds it takes until no rank gets more than it has room for
 *     rounds    rows, and what became of them
 *
 * A rank without tokens takes part as long as another has some. The team's run ends before each
 * exchange, since the sizes of what follows are not known before. Where an exchange has failed
 * (whoever made the peers knows) notices are zeros or parts of what was told: nothing of them is
 * believed that does not fit the buffers. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/courier.h"
#include "model/moe.h"

/* A layer's experts for one slice. */
struct trip {
    const struct model *m;
    struct model_work *w;
    const struct moe *y;
    uint32_t id;
    uint32_t n;       /* rows of the step */
    struct share own; /* of these, the ones that are routed here */
    struct share slice;
    uint32_t rounds, round;
    uint32_t taken; /* rows that came in this round */
    bool more;      /* a rank has another slice */
    bool ahead;     /* the shared expert's first half is done */
};

static uint32_t notice_size(const struct model *m)
{
    return MOE_NOTICE + m->cfg.experts;
}

/* ---- memory ---- */

static int create_lists(struct moe_travel *t, const struct model *m, uint32_t rows)
{
    uint32_t ranks = m->part.ep_size;
    int st;

    t->token = calloc(rows, sizeof *t->token);
    t->first = calloc(m->experts.n + 1, sizeof *t->first);
    t->notice = calloc(notice_size(m), sizeof *t->notice);
    t->notices = calloc((size_t)ranks * notice_size(m), sizeof *t->notices);
    t->place = m->k->alloc(m->k, rows * sizeof *t->place);
    if (!t->token || !t->first || !t->notice || !t->notices || !t->place)
        return ERR_NOMEM;
    st = parcels_create(&t->out, ranks);
    return st < 0 ? st : parcels_create(&t->in, ranks);
}

int moe_travel_create(struct moe_work *w, const struct model *m, bool shared)
{
    struct moe_travel *t = w->travel = calloc(1, sizeof *t);
    int st;

    if (!t)
        return ERR_NOMEM;
    t->sent = work_rows(m, w->slice * m->cfg.experts_per_token, m->cfg.hidden);
    t->taken = work_rows(m, w->rows, m->cfg.hidden);
    if (!t->sent || !t->taken)
        return ERR_NOMEM;
    if ((st = create_lists(t, m, w->rows)) < 0 ||
        (st = m->k->routes_create(m->k, &t->routes, w->rows, m->experts.n, 1)) < 0)
        return st;
    return shared && m->part.overlap_shared_expert ? courier_create(&t->courier) : 0;
}

void moe_travel_destroy(const struct model *m, const struct moe_work *w)
{
    struct moe_travel *t = w->travel;

    if (!t)
        return;
    courier_destroy(t->courier);
    work_rows_free(m, t->sent, w->slice * m->cfg.experts_per_token, m->cfg.hidden);
    work_rows_free(m, t->taken, w->rows, m->cfg.hidden);
    m->k->free(m->k, t->place, w->rows * sizeof *t->place);
    if (t->routes)
        m->k->routes_destroy(m->k, t->routes);
    free(t->token);
    free(t->first);
    free(t->notice);
    free(t->notices);
    parcels_destroy(&t->out);
    parcels_destroy(&t->in);
    free(t);
}

/* ---- notices ---- */

static const uint32_t *notice_of(const struct trip *t, uint32_t rank)
{
    return t->w->moe->travel->notices + (size_t)rank * notice_size(t->m);
}

/* Rows that rank `from` has for the experts of rank `to`. */
static uint32_t rows_between(const struct trip *t, uint32_t from, uint32_t to)
{
    uint32_t each = t->m->experts.n, sum = 0;
    const uint32_t *rows = notice_of(t, from) + MOE_NOTICE + to * each;

    for (uint32_t e = 0; e < each; e++)
        sum += rows[e];
    return sum;
}

static void write_notice(const struct trip *t)
{
    const struct moe_work *e = t->w->moe;
    uint32_t *notice = e->travel->notice;

    notice[MOE_MORE] = t->slice.from + t->slice.n < t->own.from + t->own.n;
    notice[MOE_ROOM] = e->rows;
    for (uint32_t i = 0; i < t->m->cfg.experts; i++)
        notice[MOE_NOTICE + i] = e->routes->first[i + 1] - e->routes->first[i];
}

static bool is_plausible(const struct trip *t, const uint32_t *notice)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < t->m->cfg.experts; i++)
        sum += notice[MOE_NOTICE + i];
    return notice[MOE_MORE] <= 1 && notice[MOE_ROOM] >= t->m->part.ep_size &&
           notice[MOE_ROOM] <= K_MAX_TOKENS && sum <= K_MAX_TOKENS;
}

/* True if nobody gets more than it has room for. */
static bool fits(const struct trip *t, uint32_t rounds)
{
    uint32_t ranks = t->m->part.ep_size;

    for (uint32_t to = 0; to < ranks; to++) {
        uint64_t sum = 0;

        for (uint32_t from = 0; from < ranks; from++)
            sum += (rows_between(t, from, to) + rounds - 1) / rounds;
        if (sum > notice_of(t, to)[MOE_ROOM])
            return false;
    }
    return true;
}

/* What all ranks can know of the slice, from the same numbers. */
static void read_notices(struct trip *t)
{
    const struct moe_travel *v = t->w->moe->travel;
    uint32_t ranks = t->m->part.ep_size;
    size_t bytes = notice_size(t->m) * sizeof *v->notice;
    bool some = false;

    t->more = false;
    t->rounds = 0;
    if (memcmp(notice_of(t, t->m->part.ep_rank), v->notice, bytes) != 0)
        return;
    for (uint32_t r = 0; r < ranks; r++)
        if (!is_plausible(t, notice_of(t, r)))
            return;
    for (uint32_t r = 0; r < ranks; r++) {
        t->more = t->more || notice_of(t, r)[MOE_MORE];
        for (uint32_t to = 0; !some && to < ranks; to++)
            some = rows_between(t, r, to) > 0;
    }
    t->rounds = some;
    while (some && !fits(t, t->rounds))
        t->rounds++;
}

static void exchange(const struct trip *t, const void *send, const struct parcels *out, void *recv,
                     const struct parcels *in)
{
    const struct model_peers *p = t->m->part.peers;

    t->m->k->sync(t->m->k);
    p->exchange(p->arg, send, out->at, out->bytes, recv, in->at, in->bytes);
}

static void trade_notices(struct trip *t)
{
    struct moe_travel *v = t->w->moe->travel;
    uint32_t ranks = t->m->part.ep_size;
    size_t bytes = notice_size(t->m) * sizeof *v->notice;

    write_notice(t);
    for (uint32_t r = 0; r < ranks; r++) {
        parcels_set(&v->out, r, 0, bytes);
        parcels_set(&v->in, r, r * bytes, bytes);
    }
    memset(v->notices, 0, ranks * bytes);
    exchange(t, v->notice, &v->out, v->notices, &v->in);
    read_notices(t);
}

/* ---- rounds ---- */

/* What of n rows travels in this round. */
static struct share in_round(const struct trip *t, uint32_t n)
{
    uint32_t from = (uint32_t)((uint64_t)n * t->round / t->rounds);

    return (struct share){ from, (uint32_t)((uint64_t)n * (t->round + 1) / t->rounds) - from };
}

/* Where the rows of this round stand: those that go among the sorted ones, those that come one
 * rank's after another's. */
static void place_rows(struct trip *t)
{
    const struct moe_work *e = t->w->moe;
    const struct moe_travel *v = e->travel;
    uint32_t ranks = t->m->part.ep_size, self = t->m->part.ep_rank, each = t->m->experts.n;
    size_t bytes = t->m->cfg.hidden * sizeof(float);

    t->taken = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        struct share go = in_round(t, rows_between(t, self, r));
        struct share come = in_round(t, rows_between(t, r, self));

        parcels_set(&v->out, r, (e->routes->first[r * each] + go.from) * bytes, go.n * bytes);
        parcels_set(&v->in, r, t->taken * bytes, come.n * bytes);
        t->taken += come.n;
    }
    assert(t->taken <= e->rows);
}

/* How many of the rows that came from a rank in this round are for each expert here. */
static void count_rows(const struct trip *t, uint32_t rank, uint32_t *count)
{
    uint32_t self = t->m->part.ep_rank, each = t->m->experts.n, from = 0;
    const uint32_t *rows = notice_of(t, rank) + MOE_NOTICE + self * each;
    struct share come = in_round(t, rows_between(t, rank, self));

    for (uint32_t e = 0; e < each; e++) {
        uint32_t low = from > come.from ? from : come.from, end = come.from + come.n;
        uint32_t high = from + rows[e] < end ? from + rows[e] : end;

        count[e] = high > low ? high - low : 0;
        from += rows[e];
    }
}

/* Rows by expert, those of one by rank: counts, first rows, then rows in order. */
static void sort_rows(const struct trip *t)
{
    const struct moe_travel *v = t->w->moe->travel;
    uint32_t ranks = t->m->part.ep_size, each = t->m->experts.n, row = 0;
    uint32_t count[K_MAX_EXPERTS], next[K_MAX_EXPERTS];

    memset(v->first, 0, (each + 1) * sizeof *v->first);
    for (uint32_t r = 0; r < ranks; r++) {
        count_rows(t, r, count);
        for (uint32_t e = 0; e < each; e++)
            v->first[e + 1] += count[e];
    }
    for (uint32_t e = 0; e < each; e++)
        v->first[e + 1] += v->first[e];
    memcpy(next, v->first, each * sizeof *next);
    for (uint32_t r = 0; r < ranks; r++) {
        count_rows(t, r, count);
        for (uint32_t e = 0; e < each; e++)
            for (uint32_t i = 0; i < count[e]; i++) {
                v->place[row] = next[e];
                v->token[next[e]++] = row++;
            }
    }
    t->m->k->routes_given(t->m->k, v->routes, v->token, v->first);
}

static void carry_out(void *arg)
{
    const struct trip *t = arg;
    const struct moe_travel *v = t->w->moe->travel;

    exchange(t, v->sent, &v->out, v->taken, &v->in);
}

/* [team] */
static void shared_up(void *arg)
{
    const struct trip *t = arg;

    mlp_up(t->m, t->w, &t->y->shared, t->n);
}

/* The rows go; where that is wanted the shared expert begins meanwhile. */
static void send_rows(struct trip *t)
{
    struct courier *courier = t->w->moe->travel->courier;

    if (!courier || t->ahead || t->n == 0 || t->y->shared.ffn == 0) {
        carry_out(t);
        return;
    }
    courier_start(courier, carry_out, t);
    work_run(t->m, t->w, shared_up, t);
    courier_wait(courier);
    t->ahead = true;
}

/* [team] The rows that came through the experts, back to where they stood. */
static void compute_rows(void *arg)
{
    const struct trip *t = arg;
    const struct kernels *k = t->m->k;
    const struct moe_work *e = t->w->moe;
    const struct moe_travel *v = e->travel;
    uint32_t hidden = t->m->cfg.hidden;

    moe_experts(t->m, t->w, t->y, v->taken, v->routes, t->taken);
    k->gather(k, v->taken, hidden, e->out, hidden, v->place, t->taken, hidden);
}

static void run_round(struct trip *t)
{
    const struct moe_travel *v = t->w->moe->travel;

    place_rows(t);
    send_rows(t);
    if (t->taken > 0) {
        sort_rows(t);
        work_run(t->m, t->w, compute_rows, t);
    }
    exchange(t, v->taken, &v->in, v->sent, &v->out);
}

/* ---- slices ---- */

/* By the team, unless there are no rows: it sleeps on where a rank only takes part. */
static void run_rows(struct trip *t, void (*fn)(void *arg), uint32_t rows)
{
    if (rows > 0)
        work_run(t->m, t->w, fn, t);
    else
        fn(t);
}

/* Each tensor-parallel rank has all rows and routes its share of them. */
static uint32_t rows_each(const struct model *m, uint32_t n)
{
    return (n + m->part.tp_size - 1) / m->part.tp_size;
}

/* [team] */
static void begin_slice(void *arg)
{
    const struct trip *t = arg;
    const struct model *m = t->m;
    const struct moe_work *e = t->w->moe;
    const float *x = m->k->act_floats(t->w->act);
    uint32_t hidden = m->cfg.hidden, at = t->slice.from, n = t->slice.n;

    if (at == t->own.from && t->n > 0)
        moe_score(m, t->w, t->y, t->n);
    moe_route(m, t->w, t->y, at, n, t->id);
    m->k->gather(m->k, e->travel->sent, hidden, x + (size_t)at * hidden, hidden, e->routes->token,
                 n * m->cfg.experts_per_token, hidden);
}

/* [team] Sums at home, and after the last slice what follows. */
static void finish_slice(void *arg)
{
    const struct trip *t = arg;
    const struct model *m = t->m;
    struct model_work *w = t->w;
    const struct moe_work *e = w->moe;
    uint32_t hidden = m->cfg.hidden;

    m->k->combine(m->k, w->x + (size_t)t->slice.from * hidden, hidden, e->travel->sent, hidden,
                  e->routes, t->slice.n, hidden, true);
    if (t->more || t->n == 0)
        return;
    if (m->part.tp_size > 1 && !w->spread)
        peers_gather(m, w->x, (size_t)rows_each(m, t->n) * hidden);
    if (t->y->shared.ffn == 0)
        return;
    if (!t->ahead)
        mlp_up(m, w, &t->y->shared, t->n);
    mlp_act(m, w, &t->y->shared, t->n);
    work_output(m, w, t->y->shared.down, NULL, t->n);
}

static struct share own_rows(const struct model *m, uint32_t n)
{
    uint32_t each = rows_each(m, n), from = m->part.tp_rank * each;

    from = from < n ? from : n;
    return (struct share){ from, n - from < each ? n - from : each };
}

void moe_exchange(const struct model *m, struct model_work *w, const struct moe *y, uint32_t n,
                  uint32_t id)
{
    struct trip t = { .m = m, .w = w, .y = y, .id = id, .n = n, .own = own_rows(m, n) };
    uint32_t end = t.own.from + t.own.n, most = w->moe->slice;

    t.slice.from = t.own.from;
    do {
        t.slice.n = end - t.slice.from < most ? end - t.slice.from : most;
        run_rows(&t, begin_slice, t.slice.n);
        trade_notices(&t);
        for (t.round = 0; t.round < t.rounds; t.round++)
            run_round(&t);
        run_rows(&t, finish_slice, t.n);
        t.slice.from += t.slice.n;
    } while (t.more);
}
