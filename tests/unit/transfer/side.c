#include "side.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "sys/clock.h"

static void on_event(void *arg, const struct transfer_event *ev)
{
    struct side *s = arg;

    pthread_mutex_lock(&s->lock);
    if (s->n < SIDE_EVENTS_MAX)
        s->events[s->n++] = *ev;
    if (ev->why)
        snprintf(s->why, sizeof s->why, "%s", ev->why);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void side_init(struct side *s, bool produce, uint32_t block_tokens, bool shared)
{
    memset(s, 0, sizeof *s);
    s->shared = shared;
    s->opt = (struct transfer_options){
        .host = "127.0.0.1",
        .produce = produce,
        .consume = !produce,
        .secret = "sesame",
        .engine_id = produce ? "engine-p" : "engine-d",
        .fingerprint = "model",
        .kv_dtype = "float16",
        .lease_seconds = 60,
        .pull_timeout = 10,
        .connect_timeout = 5,
        .checksums = true,
        .batch_blocks = 7,
        .layout = { .planes = 2,
                    .n_layers = 3,
                    .first_layer = 4,
                    .kv_heads = 3,
                    .head_dim = 16,
                    .elem_bytes = 2,
                    .block_tokens = block_tokens,
                    .n_blocks = 64 },
    };
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
}

static void fill(struct side *s, uint64_t bytes)
{
    uint64_t x = 88172645463325252ull;

    for (uint64_t i = 0; i < bytes; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        s->pool[i] = s->opt.produce ? (unsigned char)x : 0xee;
    }
}

int side_try_start(struct side *s, struct err *e)
{
    uint64_t bytes = kv_layout_pool_bytes(&s->opt.layout);
    void *p;

    if (s->shared)
        assert_int_equal(transfer_memory_alloc(&p, bytes, e), 0);
    else
        p = malloc(bytes);
    assert_non_null(p);
    s->pool = p;
    fill(s, bytes);
    s->opt.pool = p;
    return transfer_create(&s->t, &s->opt, on_event, s, e);
}

void side_start(struct side *s)
{
    struct err e = { 0 };

    if (side_try_start(s, &e) < 0)
        fail_msg("%s", e.text);
}

void side_finish(struct side *s)
{
    transfer_destroy(s->t);
    if (s->shared)
        transfer_memory_free(s->pool, kv_layout_pool_bytes(&s->opt.layout));
    else
        free(s->pool);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
}

static void wait_change(struct side *s, double until)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += 1;
    pthread_cond_timedwait(&s->changed, &s->lock, &ts);
    if (clock_now() > until)
        fail_msg("no event within %.0f s", SIDE_SECONDS);
}

int side_count(struct side *s)
{
    int n;

    pthread_mutex_lock(&s->lock);
    n = s->n;
    pthread_mutex_unlock(&s->lock);
    return n;
}

struct transfer_event side_event(struct side *s, int n)
{
    double until = clock_now() + SIDE_SECONDS;
    struct transfer_event ev;

    pthread_mutex_lock(&s->lock);
    while (s->n <= n)
        wait_change(s, until);
    ev = s->events[n];
    pthread_mutex_unlock(&s->lock);
    return ev;
}

struct transfer_event side_wait(struct side *s, enum transfer_event_kind kind, uint64_t user)
{
    for (int n = 0;; n++) {
        struct transfer_event ev = side_event(s, n);

        if (ev.kind == kind && ev.user == user)
            return ev;
    }
}

void side_wait_idle(struct side *s)
{
    double until = clock_now() + SIDE_SECONDS;
    struct transfer_stats st;

    do {
        transfer_stats(s->t, &st);
        if (clock_now() > until)
            fail_msg("not idle: %u leases, %u pulls", st.leases, st.pulls);
        clock_sleep(0.001);
    } while (st.leases > 0 || st.pulls > 0);
}

struct transfer_source side_source(const struct side *p, const char *id, const uint32_t *blocks,
                                   uint32_t n_blocks)
{
    return (struct transfer_source){
        .host = "127.0.0.1",
        .port = transfer_port(p->t),
        .engine_id = p->opt.engine_id,
        .transfer_id = id,
        .blocks = blocks,
        .n_blocks = n_blocks,
        .block_tokens = p->opt.layout.block_tokens,
    };
}

uint64_t side_offset(const struct kv_layout *l, uint32_t layer, uint32_t kv, const uint32_t *blocks,
                     uint32_t head, uint32_t token, uint32_t dim)
{
    uint64_t block = blocks[token / l->block_tokens], in = token % l->block_tokens;
    uint64_t base = ((((uint64_t)l->planes * layer + kv) * l->n_blocks + block) * l->kv_heads +
                     head) *
                    l->block_tokens * l->head_dim;
    bool keys = l->planes == 2 && kv == 0; /* values and latents stand token by token */
    uint64_t at = keys ? (in / 16 * l->head_dim + dim) * 16 + in % 16 : in * l->head_dim + dim;

    return (base + at) * l->elem_bytes;
}

bool side_equal(const struct side *p, const uint32_t *pb, const struct side *d, const uint32_t *db,
                uint32_t first, uint32_t n)
{
    const struct kv_layout *l = &p->opt.layout;
    uint64_t wrong = 0;

    uint32_t n_layers = l->n_layers < d->opt.layout.n_layers ? l->n_layers : d->opt.layout.n_layers;

    for (uint32_t plane = 0; plane < l->planes * n_layers; plane++)
        for (uint32_t head = 0; head < l->kv_heads; head++)
            for (uint32_t token = first; token < n; token++)
                for (uint32_t dim = 0; dim < l->head_dim; dim++) {
                    uint64_t a = side_offset(l, plane / l->planes, plane % l->planes, pb, head,
                                             token, dim);
                    uint64_t b = side_offset(&d->opt.layout, plane / l->planes, plane % l->planes,
                                             db, head, token, dim);

                    wrong += memcmp(p->pool + a, d->pool + b, l->elem_bytes) != 0;
                }
    return wrong == 0;
}

uint64_t side_written(const struct side *d)
{
    uint64_t bytes = kv_layout_pool_bytes(&d->opt.layout), n = 0;

    for (uint64_t i = 0; i < bytes; i++)
        n += d->pool[i] != 0xee;
    return n;
}

static int count_entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

int count_fds(void)
{
    return count_entries("/proc/self/fd");
}

int count_threads(void)
{
    return count_entries("/proc/self/task");
}
