/* Tensor parallelism and pipeline stages: the ranks are threads of this process, each with a model of
 * its own part. Stages give the bits of one process; tensor-parallel ranks sum in another order, stay
 * within the goldens' limits, and give the same bits every time. */
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "peers.h"
#include "rig.h"

#define MAX_TOKENS 300
#define N_GREEDY   16
#define MAX_RUNS   6
#define LOGIT_ROWS 7

/* One sequence: its prompt in chunks, then tokens one by one. */
struct run {
    const int32_t *prompt, *output;
    uint32_t n_prompt, n_output, chunk;
    bool drafts; /* after the prompt, a draft behind each position */
};

/* How a model is shared out, and what it is to compute. */
struct shape {
    const char *path;
    enum model_dtype dtype;
    uint32_t pp, tp, threads;
    const uint32_t *layers; /* [pp]; NULL: evenly */
    bool sequence_parallel, mtp;
    const struct run *runs;
    uint32_t n_runs;
};

/* Rows on their way to the next stage. */
struct slot {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    const float *rows; /* NULL: empty */
};

/* Logits of the last row of each step (and of all rows of drafts), in order. */
struct result {
    float *logits;
    uint32_t n, vocab;
    uint64_t weight_bytes[PEERS_MAX];
};

struct world {
    const struct shape *shape;
    struct peers_world peers;
    struct slot slots[PEERS_MAX]; /* of the rank that they go to */
    struct result *out;
};

/* ---- one rank ---- */

static void give(struct slot *s, const float *rows)
{
    pthread_mutex_lock(&s->lock);
    s->rows = rows;
    pthread_cond_broadcast(&s->moved);
    while (s->rows)
        pthread_cond_wait(&s->moved, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static void take(struct slot *s, float *rows, size_t bytes)
{
    pthread_mutex_lock(&s->lock);
    while (!s->rows)
        pthread_cond_wait(&s->moved, &s->lock);
    memcpy(rows, s->rows, bytes);
    s->rows = NULL;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

struct rank {
    struct world *w;
    struct rig rig;
    uint32_t id, stage;
};

static bool is_last(const struct rank *r)
{
    return r->stage + 1 == r->w->shape->pp;
}

static void keep(struct rank *r, const float *logits, uint32_t rows)
{
    struct result *out = r->w->out;

    if (r->id % r->w->shape->tp != 0)
        return;
    memcpy(out->logits + (size_t)out->n * out->vocab, logits,
           (size_t)rows * out->vocab * sizeof *logits);
    out->n += rows;
}

static void step(struct rank *r, struct rig_seq *seq, const int32_t *ids, uint32_t n)
{
    const struct rig_feed feed = { seq, ids, n };
    const uint32_t last = n - 1;
    size_t bytes = (size_t)n * model_config(r->rig.m)->hidden * sizeof(float);

    if (r->stage > 0)
        take(&r->w->slots[r->id], model_states(r->rig.w), bytes);
    rig_step(&r->rig, &feed, 1);
    if (is_last(r))
        keep(r, rig_logits(&r->rig, &last, 1), 1);
    else
        give(&r->w->slots[r->id + r->w->shape->tp], model_states(r->rig.w));
}

/* Two drafts: behind each position of the prompt but the last, and behind the last of these. */
static void draft(struct rank *r, struct rig_seq *seq, const int32_t *ids, uint32_t n)
{
    static const uint32_t pos[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    const struct k_kv *plane = &r->rig.planes[r->rig.kv.n_layers - 1];
    struct k_seq s = { 0, n - 2, 0, seq->blocks };
    struct model_batch b = { n - 2, ids + 1, pos, &s, 1, NULL };
    const uint32_t last = n - 3, first = 0;
    size_t ld;

    if (!is_last(r))
        return;
    model_draft(r->rig.m, r->rig.w, plane, &b, NULL);
    keep(r, model_draft_logits(r->rig.m, r->rig.w, pos, n - 2, &ld), n - 2);
    s = (struct k_seq){ 0, 1, n - 2, seq->blocks };
    b = (struct model_batch){ 1, ids + n - 1, pos + n - 2, &s, 1, NULL };
    model_draft(r->rig.m, r->rig.w, plane, &b, &last);
    keep(r, model_draft_logits(r->rig.m, r->rig.w, &first, 1, &ld), 1);
}

static void follow(struct rank *r, const struct run *run)
{
    uint32_t chunk = run->chunk ? run->chunk : MAX_TOKENS;
    struct rig_seq seq;

    rig_seq_init(&r->rig, &seq, run->n_prompt + run->n_output);
    for (uint32_t at = 0; at < run->n_prompt; at += chunk)
        step(r, &seq, run->prompt + at, run->n_prompt - at < chunk ? run->n_prompt - at : chunk);
    if (run->drafts)
        draft(r, &seq, run->prompt, run->n_prompt);
    seq.output = true;
    for (uint32_t i = 0; i < run->n_output; i++)
        step(r, &seq, &run->output[i], 1);
    rig_seq_finish(&seq);
    rig_forget(&r->rig);
}

static void open_part(struct rank *r, uint32_t n_layers)
{
    const struct shape *s = r->w->shape;
    uint32_t first = 0, n = n_layers;
    struct rig_options o = {
        .path = s->path,
        .dtype = s->dtype,
        .pool_tokens = 2 * MAX_TOKENS,
        .max_tokens = MAX_TOKENS,
        .max_logits = LOGIT_ROWS,
        .mtp = s->mtp,
        .threads = s->threads ? s->threads : 1,
    };

    for (uint32_t i = 0; i <= r->stage; i++) {
        first += i ? n : 0;
        n = s->layers ? s->layers[i] : n_layers / s->pp + (i < n_layers % s->pp);
    }
    o.first_layer = first;
    o.n_layers = n;
    if (s->tp > 1) {
        o.part = peers_part(&r->w->peers, r->id, false);
        o.part.sequence_parallel = s->sequence_parallel;
    }
    rig_open(&r->rig, &o);
}

static void be_rank(void *arg, uint32_t id)
{
    struct world *w = arg;
    const struct shape *s = w->shape;
    struct rank r = { .w = w, .id = id, .stage = id / s->tp };
    struct model_config c;
    struct err e = { 0 };

    expect(model_read_config(&c, s->path, NULL, &e) == 0, "%s", e.text);
    open_part(&r, c.n_layers);
    w->out->weight_bytes[id] = model_weight_bytes(r.rig.m);
    for (uint32_t i = 0; i < s->n_runs; i++)
        follow(&r, &s->runs[i]);
    rig_close(&r.rig);
}

/* ---- a shape ---- */

static uint32_t rows_of(const struct run *r)
{
    uint32_t chunk = r->chunk ? r->chunk : MAX_TOKENS;

    return (r->n_prompt + chunk - 1) / chunk + r->n_output + (r->drafts ? r->n_prompt - 1 : 0);
}

static struct result compute(const struct shape *s)
{
    struct world w = { .shape = s };
    struct model_config c;
    struct result out = { 0 };
    struct err e = { 0 };
    uint32_t rows = 0;

    expect(model_read_config(&c, s->path, NULL, &e) == 0, "%s", e.text);
    for (uint32_t i = 0; i < s->n_runs; i++)
        rows += rows_of(&s->runs[i]);
    out.vocab = c.vocab;
    out.logits = calloc((size_t)rows * c.vocab, sizeof *out.logits);
    w.out = &out;
    peers_open(&w.peers, s->pp, s->tp, 0);
    for (uint32_t i = 0; i < PEERS_MAX; i++) {
        pthread_mutex_init(&w.slots[i].lock, NULL);
        pthread_cond_init(&w.slots[i].moved, NULL);
    }
    peers_run(&w.peers, be_rank, &w);
    for (uint32_t i = 0; i < PEERS_MAX; i++) {
        pthread_mutex_destroy(&w.slots[i].lock);
        pthread_cond_destroy(&w.slots[i].moved);
    }
    peers_close(&w.peers);
    return out;
}

static void drop(struct result *r)
{
    free(r->logits);
    *r = (struct result){ 0 };
}

static void same_bits(const char *what, const struct result *a, const struct result *b)
{
    size_t n = (size_t)a->n * a->vocab;

    expect(a->n == b->n && memcmp(a->logits, b->logits, n * sizeof *a->logits) == 0,
           "%s: %u and %u rows of logits, which differ by %g", what, a->n, b->n,
           a->n == b->n ? max_diff(a->logits, b->logits, n) : NAN);
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static double median_diff(const float *a, const float *b, size_t n)
{
    float *d = malloc(n * sizeof *d);
    double median;

    for (size_t i = 0; i < n; i++)
        d[i] = fabsf(a[i] - b[i]);
    qsort(d, n, sizeof *d, by_size);
    median = (double)d[n / 2];
    free(d);
    return median;
}

static void near(const char *what, const struct result *got, const struct result *want,
                 double limit, bool median)
{
    size_t n = (size_t)want->n * want->vocab;
    double d = got->n != want->n ? NAN
               : median          ? median_diff(got->logits, want->logits, n)
                                 : max_diff(got->logits, want->logits, n);

    printf("%-28s %s %.2e (at most %.2e)\n", what, median ? "median" : "max", d, limit);
    expect(d <= limit, "%s: %u rows of logits (of %u) differ by %g (at most %g)", what, got->n,
           want->n, d, limit);
}

/* ---- the tiny models ---- */

static const struct model_case {
    const char *name;
    bool mtp;
    /* int8 activations with a scale a token: each rank has that of its own columns, so that the
     * integers differ from those of one process; the median is held then. */
    bool int8;
    uint32_t tp[3]; /* 0: no more */
} cases[] = {
    { "llama_tiny", false, false, { 2, 4 } },
    { "llama_bias_tiny", false, false, { 2 } },
    { "qwen2_tiny", false, false, { 2, 6 } },
    { "qwen3_tiny", false, false, { 2, 6 } },
    { "qwen3_moe_tiny", false, false, { 2, 4 } },
    { "deepseek_v2_tiny", false, false, { 2, 4 } },
    { "deepseek_v2_lite_tiny", false, false, { 2, 4 } },
    { "deepseek_v3_tiny", true, false, { 2, 4 } },
    { "deepseek_v3_tiny_fp8", false, false, { 2, 4 } },
    { "deepseek_v3_tiny_w8a8", false, true, { 2, 4 } },
    { "deepseek_v3_mini_w8a8_v1", true, true, { 2, 4 } },
};

static const int32_t *ids_of(const struct golden *g, const char *prompt, const char *what,
                             uint32_t *n)
{
    char key[64];
    size_t len = 0;
    const int32_t *ids;

    snprintf(key, sizeof key, "%s.%s", prompt, what);
    ids = golden_i32(g, key, &len);
    *n = (uint32_t)len;
    return ids;
}

static uint32_t make_runs(struct run *runs, const struct golden *g, bool mtp)
{
    static const struct {
        const char *prompt;
        uint32_t chunk;
    } what[] = { { "p1", 0 }, { "p7", 0 }, { "p7", 3 }, { "p70", 0 }, { "p70", 13 } };
    uint32_t n = 0;

    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++) {
        struct run r = { .chunk = what[i].chunk, .drafts = mtp && i == 1 };

        r.prompt = ids_of(g, what[i].prompt, "ids", &r.n_prompt);
        r.output = ids_of(g, what[i].prompt, "greedy", &r.n_output);
        if (r.prompt && r.output)
            runs[n++] = r;
    }
    return n;
}

/* The logits after p1 and p70 as the golden has them, and greedy tokens. */
static void check_golden(const char *what, const struct golden *g, const struct shape *s,
                         const struct result *r, double limit)
{
    uint32_t row = 0;

    for (uint32_t i = 0; i < s->n_runs; i++) {
        const struct run *run = &s->runs[i];
        const char *key = run->n_prompt == 70 ? "p70.logits_last" : "p1.logits";
        uint32_t out = row + rows_of(run) - run->n_output - 1;
        size_t n = 0;
        const float *want = run->n_prompt == 7 ? NULL : golden_f32(g, key, &n);

        if (want)
            expect(max_diff(r->logits + (size_t)out * r->vocab, want, r->vocab) <= limit,
                   "%s: %s differs by %g (at most %g)", what, key,
                   max_diff(r->logits + (size_t)out * r->vocab, want, r->vocab), limit);
        for (uint32_t t = 0; !run->drafts && t < run->n_output; t++)
            expect((int32_t)argmax(r->logits + (size_t)(out + t) * r->vocab, r->vocab) ==
                       run->output[t],
                   "%s: token %u after %u differs", what, t, run->n_prompt);
        row += rows_of(run);
    }
}

/* Stages at both number formats, against one process. */
static void check_stages(struct shape s)
{
    static const enum model_dtype dtypes[] = { MODEL_DTYPE_FLOAT32, MODEL_DTYPE_AUTO };

    for (size_t i = 0; i < 2; i++) {
        struct shape one = s, two = s;
        struct result a, b;

        one.dtype = two.dtype = dtypes[i];
        two.pp = 2;
        a = compute(&one);
        b = compute(&two);
        same_bits(i ? "two stages at auto" : "two stages", &b, &a);
        drop(&a);
        drop(&b);
    }
}

/* The same once more with more threads, with a share of the rows between the blocks, and in two
 * stages: the bits are those of a. */
static void check_same(const struct shape *s, const struct result *a)
{
    static const struct {
        const char *what;
        uint32_t threads, pp;
        bool sequence_parallel;
    } ways[] = {
        { "the same again, with more threads", 2, 1, false },
        { "two stages of tensor-parallel ranks", 1, 2, false },
        { "sequence parallel", 1, 1, true },
        { "sequence parallel, two stages", 2, 2, true },
    };

    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct shape t = *s;
        struct result b;

        t.threads = ways[i].threads;
        t.pp = ways[i].pp;
        t.sequence_parallel = ways[i].sequence_parallel;
        b = compute(&t);
        same_bits(ways[i].what, &b, a);
        drop(&b);
    }
}

static void check_tensor(struct shape s, const struct model_case *m, const struct golden *g,
                         const struct result *one, uint32_t tp)
{
    char what[64];
    struct result a;

    s.tp = tp;
    snprintf(what, sizeof what, "tp %u", tp);
    a = compute(&s);
    near(what, &a, one, m->int8 ? 0.12 : 2e-4, m->int8);
    if (!m->int8)
        check_golden(what, g, &s, &a, 2e-4);
    check_same(&s, &a);
    drop(&a);
}

/* At auto ranks round activations as one process does, but after sums in another order: they are as
 * far from float32 as one process is. */
static void check_tensor_auto(struct shape s, const struct result *exact, uint32_t tp)
{
    size_t n = (size_t)exact->n * exact->vocab;
    struct result one, a;
    char what[64];

    s.dtype = MODEL_DTYPE_AUTO;
    one = compute(&s);
    s.tp = tp;
    a = compute(&s);
    snprintf(what, sizeof what, "tp %u at auto", tp);
    near(what, &a, exact, 0.01 + 1.5 * median_diff(one.logits, exact->logits, n), true);
    check_same(&s, &a);
    drop(&one);
    drop(&a);
}

static void check_tiny(const struct model_case *m)
{
    char path[64];
    struct golden *g;
    struct run runs[MAX_RUNS];
    char *model;
    struct shape s = { .pp = 1, .tp = 1, .mtp = m->mtp, .runs = runs };
    struct result one;

    snprintf(path, sizeof path, "goldens/%s.safetensors", m->name);
    g = golden_open(golden_path(path));
    snprintf(path, sizeof path, "models/%s", m->name);
    s.path = model = strdup(golden_path(path));
    s.dtype = MODEL_DTYPE_FLOAT32;
    s.n_runs = make_runs(runs, g, m->mtp);
    one = compute(&s);
    if (!m->int8)
        check_golden("one process", g, &s, &one, 2e-4);
    check_stages(s);
    for (uint32_t i = 0; i < 3 && m->tp[i]; i++)
        check_tensor(s, m, g, &one, m->tp[i]);
    check_tensor_auto(s, &one, m->tp[0]);
    drop(&one);
    free(model);
    golden_close(g);
}

/* ---- the real model: 9 heads, 3 KV heads, blocks of 32 ---- */

#define N_PROMPTS 3
#define N_OUTPUT  6
#define MAX_IDS   120

static int32_t *ids_in(const json_t *list, uint32_t *n)
{
    int32_t *ids = calloc(json_array_size(list) + 1, sizeof *ids);

    *n = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static uint32_t real_runs(struct run *runs)
{
    static const uint32_t chunks[N_PROMPTS] = { 0, 16, 7 };
    json_t *j = json_load_file(golden_path("smollm2/greedy.json"), 0, NULL), *prompt;
    uint32_t n = 0;
    size_t i;

    expect(j != NULL, "no smollm2/greedy.json");
    json_array_foreach(json_object_get(j, "prompts"), i, prompt)
    {
        if (n == N_PROMPTS || json_integer_value(json_object_get(prompt, "n_ids")) > MAX_IDS)
            continue;
        runs[n].prompt = ids_in(json_object_get(prompt, "ids"), &runs[n].n_prompt);
        runs[n].output = ids_in(json_object_get(prompt, "greedy"), &runs[n].n_output);
        runs[n].n_output = N_OUTPUT;
        runs[n].chunk = chunks[n];
        n++;
    }
    json_decref(j);
    return n;
}

/* Each rank's weights are its share, within 5 percent; those of all together one model's. */
static void check_share(const char *what, const struct result *r, uint32_t n, uint64_t one)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        double share = (double)r->weight_bytes[i] / (double)one * n;

        sum += r->weight_bytes[i];
        expect(share > 0.95 && share < 1.05, "%s: rank %u has %.3f of its share", what, i, share);
    }
    expect(fabs((double)sum / (double)one - 1) < 0.01, "%s: ranks have %.3f of the weights", what,
           (double)sum / (double)one);
}

static void check_real_stages(const struct shape *one, const struct result *a)
{
    /* the head is as large as 12 layers */
    static const uint32_t two[] = { 21, 9 }, three[] = { 14, 14, 2 };
    uint64_t sum = 0;
    struct shape s = *one;
    struct result b;

    s.pp = 2;
    s.layers = two;
    b = compute(&s);
    same_bits("smollm2: two stages", &b, a);
    for (uint32_t i = 0; i < 2; i++)
        sum += b.weight_bytes[i];
    expect(sum == a->weight_bytes[0], "two stages have %llu bytes of weights, one %llu",
           (unsigned long long)sum, (unsigned long long)a->weight_bytes[0]);
    check_share("two stages", &b, 2, a->weight_bytes[0]);
    drop(&b);
    s.pp = 3;
    s.layers = three;
    b = compute(&s);
    same_bits("smollm2: three stages", &b, a);
    drop(&b);
}

/* Against exact, the logits of float32 in one process: at auto three ranks round activations to int8
 * as one does, but after sums in another order, and are as far off as one is. */
static void check_real_type(struct shape one, const struct result *exact, double limit)
{
    bool is_auto = one.dtype == MODEL_DTYPE_AUTO;
    struct shape s = one;
    struct result a = compute(&one), b, c;

    check_real_stages(&one, &a);
    if (is_auto)
        limit *= median_diff(a.logits, exact->logits, (size_t)a.n * a.vocab);
    s.tp = 3;
    b = compute(&s);
    near("smollm2: tp 3", &b, exact, limit, is_auto);
    check_share("tp 3", &b, 3, a.weight_bytes[0]);
    s.sequence_parallel = true;
    s.pp = 2;
    c = compute(&s);
    same_bits("smollm2: tp 3, two stages, sequence parallel", &c, &b);
    drop(&a);
    drop(&b);
    drop(&c);
}

static void check_real(void)
{
    struct run runs[N_PROMPTS] = { 0 };
    struct shape one = { .path = golden_model(), .pp = 1, .tp = 1, .runs = runs };
    struct result exact;

    one.n_runs = real_runs(runs);
    one.dtype = MODEL_DTYPE_FLOAT32;
    exact = compute(&one);
    check_real_type(one, &exact, 5e-4);
    one.dtype = MODEL_DTYPE_AUTO;
    check_real_type(one, &exact, 1.25);
    drop(&exact);
    for (uint32_t i = 0; i < one.n_runs; i++) {
        free((void *)(uintptr_t)runs[i].prompt);
        free((void *)(uintptr_t)runs[i].output);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "smollm2") == 0) {
        check_real();
        return failures();
    }
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof cases[0]; i++) {
        char path[64];

        if (strcmp(cases[i].name, argv[1]) != 0)
            continue;
        snprintf(path, sizeof path, "models/%s", cases[i].name);
        if (!golden_path(path)) {
            printf("skipped: no %s\n", path);
            return 77;
        }
        check_tiny(&cases[i]);
        return failures();
    }
    printf("usage: golden_ranks MODEL\n");
    return 2;
}
