/* Experts on several ranks against one process: each rank runs requests of its own, some ranks have
 * nothing to do in some steps or in all, and every state and logit has the bits that it has where the
 * request is alone in one process that holds everything. With tensor parallelism beside it sums are
 * taken in another order: then within a limit, and equal on all ranks.
 *
 *     golden_experts MODEL
 *
 * Exit 77 (skipped) where the model is not on this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "peers.h"
#include "rig.h"

static const struct model_case {
    const char *name;
    bool mtp;
    double limit;   /* of states and logits with tensor parallelism, float32 */
    uint32_t crowd; /* hidden size, where a large step is tried */
} cases[] = {
    { "qwen3_moe_tiny", false, 5e-5, 0 },
    { "deepseek_v2_tiny", false, 5e-5, 0 },
    { "deepseek_v2_lite_tiny", false, 5e-5, 0 },
    { "deepseek_v3_tiny", true, 5e-5, 128 },
    { "deepseek_v3_tiny_fp8", false, 5e-5, 0 },
    { "deepseek_v3_tiny_w8a8", false, 2, 0 }, /* an int8 rounded the other way may change experts */
    { "deepseek_v3_mini_w8a8_v1", true, 2, 0 },
};

static const struct model_case *test;
static char path[4096];

/* Tokens of each step of an instance's request; the last steps are output. */
#define N_STEPS   7
#define FIRST_OUT 4
static const uint32_t lengths[][N_STEPS] = {
    { 70, 1, 40, 0, 1, 1, 1 },
    { 0, 0, 0, 0, 0, 0, 0 },
    { 1, 33, 0, 50, 1, 0, 1 },
    { 0, 0, 90, 17, 0, 1, 1 },
};
#define N_SCRIPTS (sizeof lengths / sizeof lengths[0])
#define MAX_ROWS  128u
#define MAX_LAST  3u /* so many last rows of a step have their logits compared */

/* What an instance's steps gave. */
struct trace {
    float *states; /* [rows][hidden], of all steps */
    float *logits; /* [step][MAX_LAST][vocab] */
    float *drafts; /* the same of the layer for drafts */
    size_t n_states, n_logits;
};

static void trace_init(struct trace *t, const struct rig *r)
{
    const struct model_config *c = model_config(r->m);

    t->n_states = (size_t)N_STEPS * MAX_ROWS * c->hidden;
    t->n_logits = (size_t)N_STEPS * MAX_LAST * c->vocab;
    t->states = calloc(t->n_states, sizeof *t->states);
    t->logits = calloc(t->n_logits, sizeof *t->logits);
    t->drafts = calloc(t->n_logits, sizeof *t->drafts);
}

static void trace_finish(struct trace *t)
{
    free(t->states);
    free(t->logits);
    free(t->drafts);
}

static int32_t id_at(uint32_t script, uint32_t at, uint32_t vocab)
{
    return (int32_t)(rand_uniform(41 + script, at, 3) * vocab);
}

typedef float *logits_fn(const struct model *m, struct model_work *w, const uint32_t *rows,
                         uint32_t n_rows, size_t *ld);

/* Logits of the last rows of n, as many at a time as this rank has room for; where ranks share the
 * head, until none of them has any. */
static void last_logits(struct rig *r, logits_fn *fn, uint32_t n, float *out)
{
    uint32_t vocab = model_config(r->m)->vocab, rows[MAX_LAST], left = n < MAX_LAST ? n : MAX_LAST;
    size_t ld;

    do {
        uint32_t take = left < r->max_logits ? left : r->max_logits;
        const float *x;

        for (uint32_t i = 0; i < take; i++)
            rows[i] = n - left + i;
        x = fn(r->m, r->w, rows, take, &ld);
        expect(ld == vocab, "rows of logits are %zu apart", ld);
        memcpy(out, x, (size_t)take * vocab * sizeof *out);
        out += (size_t)take * vocab;
        left -= take;
    } while (left > 0 || model_head_more(r->w));
}

/* Drafts of all n rows of a step, the last of which is the sequence's newest. */
static void draft(struct rig *r, const struct rig_seq *s, uint32_t n, uint32_t script, float *out)
{
    uint32_t vocab = model_config(r->m)->vocab, pos[MAX_ROWS];
    const struct k_seq seq = { 0, n, s->len - n, s->blocks };
    int32_t ids[MAX_ROWS];
    const struct model_batch b = { .n = n, .ids = ids, .pos = pos, .seqs = &seq, .n_seqs = n > 0 };

    for (uint32_t i = 0; i < n; i++) {
        pos[i] = seq.pos + i;
        ids[i] = id_at(script, pos[i] + 1, vocab);
    }
    model_draft(r->m, r->w, &r->planes[model_config(r->m)->n_layers], &b, NULL);
    last_logits(r, model_draft_logits, n, out);
}

static void run_step(struct rig *r, struct rig_seq *s, uint32_t script, uint32_t step,
                     struct trace *t)
{
    const struct model_config *c = model_config(r->m);
    size_t logits = (size_t)step * MAX_LAST * c->vocab;
    uint32_t n = lengths[script][step];
    int32_t ids[MAX_ROWS];
    struct rig_feed feed = { s, ids, n };

    for (uint32_t i = 0; i < n; i++)
        ids[i] = id_at(script, s->len + i, c->vocab);
    s->output = step >= FIRST_OUT;
    rig_step(r, &feed, n > 0);
    memcpy(t->states + (size_t)step * MAX_ROWS * c->hidden, model_states(r->w),
           (size_t)n * c->hidden * sizeof *t->states);
    last_logits(r, model_logits, n, t->logits + logits);
    if (test->mtp)
        draft(r, s, n, script, t->drafts + logits);
}

static void run_script(struct rig *r, uint32_t script, struct trace *t)
{
    struct rig_seq s;

    trace_init(t, r);
    rig_seq_init(r, &s, 256);
    for (uint32_t step = 0; step < N_STEPS; step++)
        run_step(r, &s, script, step, t);
    rig_seq_finish(&s);
}

struct world {
    struct peers_world peers;
    enum model_dtype dtype;
    bool apart, overlap, narrow, spread;
    uint32_t head;            /* ranks that share the head; 0: none */
    const struct trace *want; /* [N_SCRIPTS] */
    struct trace got[PEERS_MAX];
    uint64_t weight_bytes; /* of rank 0 */
};

static struct rig_options options_of(enum model_dtype dtype)
{
    return (struct rig_options){
        .path = path,
        .dtype = dtype,
        .pool_tokens = 512,
        .max_tokens = MAX_ROWS,
        .max_logits = MAX_LAST,
        .mtp = test->mtp,
        .threads = 1,
    };
}

/* The most rows that the script needs: a rank has room for so many only, and much more may come. */
static uint32_t least_rows(uint32_t script)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < N_STEPS; i++)
        most = lengths[script][i] > most ? lengths[script][i] : most;
    return most;
}

static void run_rank(void *arg, uint32_t rank)
{
    struct world *w = arg;
    uint32_t script = rank / w->peers.tp % N_SCRIPTS;
    struct rig_options o = options_of(w->dtype);
    struct rig r;

    o.part = peers_part(&w->peers, rank, w->apart);
    o.part.overlap_shared_expert = w->overlap;
    o.part.sequence_parallel = w->spread;
    o.threads = 1 + (rank == 0); /* rank 0 with a team */
    if (w->narrow) {
        o.max_tokens = least_rows(script);
        o.max_logits = 1 + rank % MAX_LAST;
    }
    rig_open(&r, &o);
    run_script(&r, script, &w->got[rank]);
    if (rank == 0)
        w->weight_bytes = model_weight_bytes(r.m);
    rig_close(&r);
}

static void compare(const struct world *w, const char *what, uint32_t rank, const float *got,
                    const float *want, size_t n, double limit)
{
    double d;

    if (limit == 0) {
        expect(memcmp(got, want, n * sizeof *got) == 0,
               "dp %u, tp %u, dtype %d: %s of rank %u differ by up to %g", w->peers.dp, w->peers.tp,
               w->dtype, what, rank, max_diff(got, want, n));
        return;
    }
    d = max_diff(got, want, n);
    if (d > limit / 4)
        printf("dp %u, tp %u: %s of rank %u differ by %.2e\n", w->peers.dp, w->peers.tp, what, rank,
               d);
    expect(d <= limit, "dp %u, tp %u: %s of rank %u differ by %g", w->peers.dp, w->peers.tp, what,
           rank, d);
}

static void compare_traces(const struct world *w, uint32_t rank, const struct trace *want,
                           double limit)
{
    const struct trace *got = &w->got[rank];

    compare(w, "states", rank, got->states, want->states, want->n_states, limit);
    compare(w, "logits", rank, got->logits, want->logits, want->n_logits, limit);
    compare(w, "drafts", rank, got->drafts, want->drafts, want->n_logits, limit);
}

/* What the ranks give; their traces are the caller's to free. */
static void run_world(struct world *w, uint32_t dp, uint32_t tp)
{
    double limit = tp > 1 ? test->limit : 0;

    peers_open(&w->peers, dp, tp, w->head);
    peers_run(&w->peers, run_rank, w);
    for (uint32_t i = 0; i < w->peers.n; i++) {
        compare_traces(w, i, &w->want[i / tp % N_SCRIPTS], limit);
        if (i % tp)
            compare_traces(w, i, &w->got[i - i % tp], 0);
        expect(!w->apart || w->peers.rank[i].calls > 0, "rank %u exchanged nothing", i);
    }
    peers_close(&w->peers);
}

static void free_world(struct world *w)
{
    for (uint32_t i = 0; i < w->peers.n; i++)
        trace_finish(&w->got[i]);
}

static void check_world(struct world *w, uint32_t dp, uint32_t tp)
{
    run_world(w, dp, tp);
    free_world(w);
}

/* Each rank has its share of the experts, and everything else. */
static void check_shares(enum model_dtype dtype, uint64_t whole, uint64_t half, uint64_t quarter)
{
    expect(half < whole && 3 * (whole - half) == 2 * (whole - quarter),
           "dtype %d: %llu bytes of weights, %llu on one of two ranks, %llu on one of four", dtype,
           (unsigned long long)whole, (unsigned long long)half, (unsigned long long)quarter);
}

/* Ranks with little room take more rounds; their number is that of the exchanges. */
static void check_rounds(const struct world *plain, uint64_t whole)
{
    struct world w = *plain;
    uint64_t calls, half;

    check_world(&w, 2, 1);
    half = w.weight_bytes;
    w = *plain;
    check_world(&w, 4, 1);
    check_shares(plain->dtype, whole, half, w.weight_bytes);
    calls = w.peers.rank[0].calls;
    w = *plain;
    w.narrow = true;
    check_world(&w, 4, 1);
    expect(w.peers.rank[0].calls > calls, "dtype %d: %llu exchanges, %llu with little room",
           plain->dtype, (unsigned long long)calls, (unsigned long long)w.peers.rank[0].calls);
}

static void check_options(const struct world *plain)
{
    struct world w = *plain;

    w.narrow = w.overlap = true;
    check_world(&w, 4, 1);
    w.head = 2;
    check_world(&w, 4, 1);
    w = *plain;
    w.apart = false;
    w.head = 4;
    check_world(&w, 4, 1);
}

/* Tensor parallel besides; with a share of the rows on each rank the bits are the same. */
static void check_tensor(const struct world *plain, uint32_t dp)
{
    struct world w = *plain, spread = *plain;

    run_world(&w, dp, 2);
    spread.spread = spread.overlap = true;
    run_world(&spread, dp, 2);
    for (uint32_t i = 0; i < w.peers.n; i++)
        compare_traces(&spread, i, &w.got[i], 0);
    free_world(&w);
    free_world(&spread);
}

static void check_worlds(enum model_dtype dtype, const struct trace *want, uint64_t whole)
{
    struct world plain = { .dtype = dtype, .want = want, .apart = true };

    check_rounds(&plain, whole);
    check_options(&plain);
    if (dtype != MODEL_DTYPE_FLOAT32)
        return;
    check_tensor(&plain, 1);
    check_tensor(&plain, 2);
    plain.apart = false;
    check_tensor(&plain, 1);
}

static void check_dtype(enum model_dtype dtype)
{
    struct rig_options o = options_of(dtype);
    struct trace want[N_SCRIPTS];
    uint64_t whole;
    struct rig r;

    rig_open(&r, &o);
    for (uint32_t i = 0; i < N_SCRIPTS; i++) {
        run_script(&r, i, &want[i]);
        rig_forget(&r);
    }
    whole = model_weight_bytes(r.m);
    rig_close(&r);
    check_worlds(dtype, want, whole);
    for (uint32_t i = 0; i < N_SCRIPTS; i++)
        trace_finish(&want[i]);
}

/* More tokens than are routed together on rank 0, few on rank 1: the slices of both are as many. */
#define CROWD     3u
#define CROWD_IDS 1500u

struct crowd {
    struct peers_world peers;
    enum model_dtype dtype;
    float
        *got[3]; /* [rows][hidden]: of the two ranks, and of one process with the rows of rank 0 */
};

static float *run_crowd(const struct crowd *c, struct model_part part, uint32_t n)
{
    struct rig_options o = options_of(c->dtype);
    struct rig_feed feeds[CROWD];
    struct rig_seq seqs[CROWD];
    int32_t *ids = malloc(CROWD_IDS * sizeof *ids);
    struct rig r;
    float *out;

    o.part = part;
    o.max_tokens = CROWD * CROWD_IDS;
    o.pool_tokens = CROWD * (CROWD_IDS + 16);
    rig_open(&r, &o);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = id_at(7, i, model_config(r.m)->vocab);
    for (uint32_t i = 0; i < CROWD; i++) {
        rig_seq_init(&r, &seqs[i], n);
        feeds[i] = (struct rig_feed){ &seqs[i], ids, n };
    }
    rig_step(&r, feeds, CROWD);
    out = malloc((size_t)CROWD * n * model_config(r.m)->hidden * sizeof *out);
    memcpy(out, model_states(r.w), (size_t)CROWD * n * model_config(r.m)->hidden * sizeof *out);
    for (uint32_t i = 0; i < CROWD; i++)
        rig_seq_finish(&seqs[i]);
    rig_close(&r);
    free(ids);
    return out;
}

static void run_crowd_rank(void *arg, uint32_t rank)
{
    struct crowd *c = arg;

    c->got[rank] = run_crowd(c, peers_part(&c->peers, rank, true), rank ? 2 : CROWD_IDS);
}

static void check_crowd(enum model_dtype dtype, uint32_t hidden)
{
    struct crowd c = { .dtype = dtype };

    peers_open(&c.peers, 2, 1, 0);
    peers_run(&c.peers, run_crowd_rank, &c);
    c.got[2] = run_crowd(&c, (struct model_part){ 0 }, CROWD_IDS);
    expect(memcmp(c.got[0], c.got[2], (size_t)CROWD * CROWD_IDS * hidden * sizeof(float)) == 0,
           "dtype %d: states of %u tokens in slices differ by up to %g", dtype, CROWD * CROWD_IDS,
           max_diff(c.got[0], c.got[2], (size_t)CROWD * CROWD_IDS * hidden));
    for (uint32_t i = 0; i < CROWD; i++) /* equal prompts: the first two rows of each */
        expect(memcmp(c.got[1] + (size_t)i * 2 * hidden, c.got[2], 2 * hidden * sizeof(float)) == 0,
               "dtype %d: states beside a large step differ", dtype);
    for (size_t i = 0; i < 3; i++)
        free(c.got[i]);
    peers_close(&c.peers);
}

/* ---- exchanges that fail ---- */

struct liar {
    int kind;
    uint64_t calls;
};

static void fill(struct liar *l, unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(rand_uniform(5, l->calls, i) * (l->kind == 2 ? 256 : 3));
}

/* What a failed exchange may leave: nothing, bytes that mean nothing, or this rank's own part as it
 * should be and numbers that could be notices. */
static void lie(void *arg, const void *send, const size_t *send_at, const size_t *send_bytes,
                void *recv, const size_t *recv_at, const size_t *recv_bytes)
{
    struct liar *l = arg;

    l->calls++;
    for (uint32_t r = 0; l->kind > 0 && r < 4; r++)
        fill(l, (unsigned char *)recv + recv_at[r], recv_bytes[r]);
    if (l->kind == 3 && send_bytes[1] == recv_bytes[1])
        memcpy((unsigned char *)recv + recv_at[1], (const unsigned char *)send + send_at[1],
               send_bytes[1]);
}

static void fail_step(struct rig *r, uint32_t n)
{
    int32_t ids[40] = { 0 };
    uint32_t row = 0;
    struct rig_seq s;
    struct rig_feed feed = { &s, ids, n };

    rig_seq_init(r, &s, 40);
    rig_step(r, &feed, n > 0);
    rig_logits(r, &row, n > 0);
    rig_seq_finish(&s);
    rig_forget(r);
}

/* Rank 1 of 4 whose exchanges fail: steps end, and nothing is touched that is not there. */
static void check_failures(void)
{
    for (int kind = 0; kind < 4; kind++) {
        struct liar l = { .kind = kind };
        const struct model_peers peers = { .arg = &l, .exchange = lie, .exchange_head = lie };
        struct rig_options o = options_of(MODEL_DTYPE_FLOAT32);
        struct rig r;

        o.part = (struct model_part){
            .ep_rank = 1, .ep_size = 4, .head_rank = 1, .head_size = 4, .peers = &peers
        };
        rig_open(&r, &o);
        for (uint32_t n = 0; n < 40; n += 13)
            fail_step(&r, n);
        expect(l.calls > 0, "nothing was exchanged");
        rig_close(&r);
    }
}

int main(int argc, char **argv)
{
    const char *found;

    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, argv[1]) == 0)
            test = &cases[i];
    if (!test) {
        printf("usage: golden_experts MODEL\n");
        return 2;
    }
    snprintf(path, sizeof path, "models/%s", test->name);
    if (!(found = golden_path(path))) {
        printf("skipped: no %s\n", path);
        return 77;
    }
    snprintf(path, sizeof path, "%s", found);
    check_dtype(MODEL_DTYPE_FLOAT32);
    check_dtype(MODEL_DTYPE_AUTO);
    check_failures();
    if (test->crowd)
        check_crowd(MODEL_DTYPE_AUTO, test->crowd);
    return failures();
}
