/* A request's logits depend on its own tokens only: not on how the prompt is cut into steps, not
 * on the pool's block size or which blocks it was given, not on what else is in the step.
 * Compared bit by bit, every position, at both dtypes.
 *
 *     golden_invariance smollm2 | MODEL   a tiny one (exit 77 where it is not on this machine) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "model/blocks.h"
#include "rig.h"

#define N_IDS 150u
#define STEP  256u

static int32_t ids[N_IDS];
static const char *path;
static uint32_t vocab;

static void make_ids(uint64_t seed)
{
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(rand_uniform(seed, i, 1) * vocab);
}

static void open_rig(struct rig *r, enum model_dtype dtype, uint32_t block, uint64_t shuffle)
{
    struct rig_options o = {
        .path = path,
        .dtype = dtype,
        .block_tokens = block,
        .pool_tokens = 8 * N_IDS,
        .max_tokens = STEP,
        .max_logits = N_IDS,
        .shuffle = shuffle,
    };

    rig_open(r, &o);
    vocab = model_config(r->m)->vocab;
}

/* Logits of rows [from, from + n) of the last step into out. */
static void keep(struct rig *r, float *out, uint32_t from, uint32_t n)
{
    uint32_t rows[N_IDS];

    for (uint32_t i = 0; i < n; i++)
        rows[i] = from + i;
    memcpy(out, rig_logits(r, rows, n), (size_t)n * vocab * sizeof *out);
}

/* The prompt in steps of `chunk`, all logits to out. */
static void run_chunks(struct rig *r, uint32_t chunk, float *out)
{
    struct rig_seq s;

    rig_seq_init(r, &s, N_IDS);
    for (uint32_t at = 0; at < N_IDS; at += chunk) {
        struct rig_feed f = { &s, ids + at, N_IDS - at < chunk ? N_IDS - at : chunk };

        rig_step(r, &f, 1);
        keep(r, out + (size_t)at * vocab, 0, f.n);
    }
    rig_seq_finish(&s);
    rig_forget(r);
}

static void check_same(const float *want, const float *got, const char *what, uint32_t value,
                       enum model_dtype dtype)
{
    size_t n = (size_t)N_IDS * vocab;

    expect(memcmp(want, got, n * sizeof *want) == 0, "%s: %s %u changes logits by up to %g",
           dtype == MODEL_DTYPE_AUTO ? "auto" : "float32", what, value, max_diff(want, got, n));
}

/* The prompt's chunks beside a sequence that decodes and others that prefill. */
static void run_with_neighbours(struct rig *r, float *out)
{
    struct rig_seq s, decode, other, third;

    rig_seq_init(r, &s, N_IDS);
    rig_seq_init(r, &decode, N_IDS);
    rig_seq_init(r, &other, N_IDS);
    rig_seq_init(r, &third, N_IDS);
    rig_prefill(r, &decode, ids + 3, 40, 0);
    for (uint32_t at = 0; at < N_IDS; at += 50) {
        struct rig_feed f[] = {
            { &decode, ids + at, 1 },
            { &other, ids + 1, 33 },
            { &s, ids + at, 50 },
            { &third, ids + 20, 17 },
        };

        rig_step(r, f, 4);
        keep(r, out + (size_t)at * vocab, 34, 50);
    }
    rig_seq_finish(&s);
    rig_seq_finish(&decode);
    rig_seq_finish(&other);
    rig_seq_finish(&third);
    rig_forget(r);
}

static void check_dtype(enum model_dtype dtype)
{
    static const uint32_t chunks[] = { 1, 7, 16, 100 }, blocks[] = { 16, 32, 128 };
    float *want, *got;
    struct rig r;

    open_rig(&r, dtype, 16, 0);
    make_ids(7);
    want = malloc((size_t)N_IDS * vocab * sizeof *want);
    got = malloc((size_t)N_IDS * vocab * sizeof *got);
    run_chunks(&r, N_IDS, want);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        run_chunks(&r, chunks[i], got);
        check_same(want, got, "chunks of", chunks[i], dtype);
    }
    rig_close(&r);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        open_rig(&r, dtype, blocks[i], 1 + i);
        run_chunks(&r, N_IDS, got);
        check_same(want, got, "blocks of", blocks[i], dtype);
        run_chunks(&r, 49, got);
        check_same(want, got, "chunks of 49 in blocks of", blocks[i], dtype);
        run_with_neighbours(&r, got);
        check_same(want, got, "neighbours in blocks of", blocks[i], dtype);
        rig_close(&r);
    }
    free(want);
    free(got);
}

/* A step of more rows than are routed, or attended to in the latents' space, together: three
 * sequences beside each other, and each alone. */
#define CROWD     3u
#define CROWD_IDS 1500u

static void check_crowd(enum model_dtype dtype)
{
    struct rig_options o = {
        .path = path,
        .dtype = dtype,
        .pool_tokens = 2 * CROWD * CROWD_IDS,
        .max_tokens = CROWD * CROWD_IDS,
        .max_logits = CROWD,
    };
    int32_t *crowd = malloc(CROWD * CROWD_IDS * sizeof *crowd);
    uint32_t last[CROWD];
    struct rig_seq s[CROWD], alone;
    struct rig_feed f[CROWD];
    float *want;
    struct rig r;

    rig_open(&r, &o);
    want = malloc((size_t)CROWD * vocab * sizeof *want);
    for (uint32_t i = 0; i < CROWD * CROWD_IDS; i++)
        crowd[i] = (int32_t)(rand_uniform(11, i, 1) * vocab);
    for (uint32_t i = 0; i < CROWD; i++) {
        rig_seq_init(&r, &s[i], CROWD_IDS);
        f[i] = (struct rig_feed){ &s[i], crowd + i * CROWD_IDS, CROWD_IDS };
        last[i] = (i + 1) * CROWD_IDS - 1;
    }
    rig_step(&r, f, CROWD);
    memcpy(want, rig_logits(&r, last, CROWD), (size_t)CROWD * vocab * sizeof *want);
    for (uint32_t i = 0; i < CROWD; i++) {
        const float *got;

        rig_seq_init(&r, &alone, CROWD_IDS);
        got = rig_prefill(&r, &alone, crowd + i * CROWD_IDS, CROWD_IDS, 0);
        expect(memcmp(want + i * vocab, got, vocab * sizeof *got) == 0,
               "dtype %d: sequence %u of a crowd differs by %g", dtype, i,
               max_diff(want + i * vocab, got, vocab));
        rig_seq_finish(&alone);
        rig_seq_finish(&s[i]);
    }
    rig_close(&r);
    free(want);
    free(crowd);
}

/* The prompt in steps of `chunk`, its last logits. */
static void last_logits(struct rig *r, const int32_t *long_ids, uint32_t chunk, float *out)
{
    struct rig_seq s;
    const float *got = NULL;

    rig_seq_init(r, &s, CROWD_IDS);
    for (uint32_t at = 0; at < CROWD_IDS; at += chunk)
        got = rig_prefill(r, &s, long_ids + at, CROWD_IDS - at < chunk ? CROWD_IDS - at : chunk, 0);
    memcpy(out, got, vocab * sizeof *out);
    rig_seq_finish(&s);
    rig_forget(r);
}

/* Latent attention whose keys are expanded piece by piece, as those of a prompt are that is longer than
 * there is room for. */
static void check_parts(void)
{
    static const uint32_t chunks[] = { CROWD_IDS, 700, 513 };
    struct rig_options o = {
        .path = path, .pool_tokens = 2 * CROWD_IDS, .max_tokens = CROWD_IDS, .max_logits = 1
    };
    int32_t *long_ids = malloc(CROWD_IDS * sizeof *long_ids);
    float *want, *got;
    struct rig r;

    rig_open(&r, &o);
    want = malloc(vocab * sizeof *want);
    got = malloc(vocab * sizeof *got);
    for (uint32_t i = 0; i < CROWD_IDS; i++)
        long_ids[i] = (int32_t)(rand_uniform(13, i, 1) * vocab);
    last_logits(&r, long_ids, CROWD_IDS, want);
    for (uint32_t part = KV_PIECE; r.w->mla && part <= 2 * KV_PIECE; part += KV_PIECE) {
        expect(r.w->mla->part > part, "nothing is expanded");
        r.w->mla->part = part;
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            last_logits(&r, long_ids, chunks[i], got);
            expect(memcmp(want, got, vocab * sizeof *got) == 0,
                   "keys in parts of %u, chunks of %u: logits differ by %g", part, chunks[i],
                   max_diff(want, got, vocab));
        }
        r.w->mla->part = r.w->mla->positions;
    }
    rig_close(&r);
    free(want);
    free(got);
    free(long_ids);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "smollm2";
    char tiny[128];

    snprintf(tiny, sizeof tiny, "models/%s", name);
    path = strcmp(name, "smollm2") == 0 ? golden_model() : golden_path(tiny);
    if (!path) {
        printf("skipped: no %s\n", tiny);
        return 77;
    }
    check_dtype(MODEL_DTYPE_FLOAT32);
    check_dtype(MODEL_DTYPE_AUTO);
    if (strcmp(name, "smollm2") != 0) {
        check_crowd(MODEL_DTYPE_FLOAT32);
        check_crowd(MODEL_DTYPE_AUTO);
        check_parts();
    }
    return failures();
}
