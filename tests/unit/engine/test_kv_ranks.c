/* KV transfer led by rank 0 over ranks that are all here: real transfers over connections, and a queue in
 * place of the pipe between the ranks of an instance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../transfer/instance.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/kv_lead.h"
#include "engine/kv_push.h"
#include "engine/kv_wire.h"
#include "sys/clock.h"

#define TRACKS 8

static const uint32_t p_blocks[5] = { 7, 33, 12, 5, 60 };
static const uint32_t d_blocks[5] = { 50, 2, 31, 9, 17 };

struct letter {
    struct letter *next;
    struct crew *crew;
    uint32_t from, to;
    size_t n;
    _Alignas(8) unsigned char data[];
};

/* The address of one rank, as its post_arg. */
struct desk {
    struct crew *crew;
    uint32_t rank;
};

/* An instance: rank 0 leads, the others follow. */
struct crew {
    struct instance in;
    struct desk desk[INSTANCE_RANKS_MAX];
    struct kv_lead *lead;
    struct kv_follow *follow[INSTANCE_RANKS_MAX];
    struct kv_push *push[INSTANCE_RANKS_MAX];
    uint32_t deaf; /* a rank whose messages are lost; 0: none */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct letter *first, **last;
    bool stop;
    int n_ended;
    struct kv_track *ended[TRACKS];
};

static int post(void *arg, uint32_t to, const void *data, size_t n)
{
    struct desk *d = arg;
    struct crew *c = d->crew;
    struct letter *m = malloc(sizeof *m + n);

    *m = (struct letter){ .crew = c, .from = d->rank, .to = to, .n = n };
    memcpy(m->data, data, n);
    pthread_mutex_lock(&c->lock);
    *c->last = m;
    c->last = &m->next;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return 0;
}

static void *carry(void *arg)
{
    struct crew *c = arg;

    pthread_mutex_lock(&c->lock);
    while (!c->stop || c->first) {
        struct letter *m = c->first;

        if (!m) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        if (!(c->first = m->next))
            c->last = &c->first;
        pthread_mutex_unlock(&c->lock);
        if (m->to == 0)
            kv_lead_arrived(c->lead, m->from, m->data, m->n);
        else if (m->to != c->deaf)
            kv_follow_arrived(c->follow[m->to], m->data, m->n);
        free(m);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void on_ended(void *arg, struct kv_track *t)
{
    struct crew *c = arg;

    pthread_mutex_lock(&c->lock);
    assert_true(c->n_ended < TRACKS);
    c->ended[c->n_ended++] = t;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void crew_init(struct crew *c, bool produce, uint32_t pp, uint32_t tp, uint32_t heads)
{
    memset(c, 0, sizeof *c);
    instance_init(&c->in, produce, pp, tp, heads, produce ? 16 : 32, true);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->last = &c->first;
}

/* Its ranks' pools, and what the ranks other than 0 need before they are told to begin. */
static void crew_prepare(struct crew *c)
{
    for (uint32_t r = 0; r < c->in.n; r++) {
        struct side *s = &c->in.rank[r];
        uint64_t bytes = kv_layout_pool_bytes(&s->opt.layout);
        struct kv_follow_options o = { .post = post, .post_arg = &c->desk[r] };
        struct err e;
        void *p;

        assert_int_equal(kv_push_create(&c->push[r], 2, s->opt.layout.first_layer, &e), 0);
        o.push = c->push[r];
        assert_int_equal(transfer_memory_alloc(&p, bytes, &e), 0);
        s->pool = p;
        memset(p, 0xee, bytes);
        s->opt.pool = p;
        c->desk[r] = (struct desk){ c, r };
        o.transfer = s->opt;
        o.transfer.engine_id = "made by rank 0";
        if (r > 0)
            assert_int_equal(kv_follow_create(&c->follow[r], &o, &e), 0);
    }
    assert_int_equal(pthread_create(&c->thread, NULL, carry, c), 0);
}

static int crew_open(struct crew *c, double seconds, struct err *e)
{
    const struct kv_lead_options o = { .transfer = c->in.rank[0].opt,
                                       .n = c->in.n,
                                       .seconds = seconds,
                                       .post = post,
                                       .post_arg = &c->desk[0],
                                       .push = c->push[0],
                                       .ended = on_ended,
                                       .arg = c };

    return kv_lead_open(&c->lead, &o, e);
}

static void crew_start(struct crew *c, bool produce, uint32_t pp, uint32_t tp, uint32_t heads)
{
    struct err e = { "" };

    crew_init(c, produce, pp, tp, heads);
    crew_prepare(c);
    if (crew_open(c, SIDE_SECONDS, &e) < 0)
        fail_msg("%s", e.text);
}

static void crew_finish(struct crew *c)
{
    kv_lead_close(c->lead);
    for (uint32_t r = 1; r < c->in.n; r++)
        kv_follow_close(c->follow[r]);
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    kv_lead_destroy(c->lead);
    for (uint32_t r = 0; r < c->in.n; r++) {
        struct side *s = &c->in.rank[r];

        kv_follow_destroy(c->follow[r]);
        kv_push_destroy(c->push[r]);
        transfer_memory_free(s->pool, kv_layout_pool_bytes(&s->opt.layout));
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->changed);
    }
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
}

static void wait_ended(struct crew *c, int n, const struct kv_track *t)
{
    double until = clock_now() + SIDE_SECONDS;

    pthread_mutex_lock(&c->lock);
    while (c->n_ended < n && clock_now() < until) {
        pthread_mutex_unlock(&c->lock);
        clock_sleep(0.002);
        pthread_mutex_lock(&c->lock);
    }
    assert_true(c->n_ended >= n);
    assert_ptr_equal(c->ended[n - 1], t);
    pthread_mutex_unlock(&c->lock);
}

static void fill_all(struct crew *p, uint32_t n_tokens)
{
    for (uint32_t r = 0; r < p->in.n; r++)
        instance_fill(&p->in.rank[r].opt.layout, p->in.rank[r].pool, p_blocks, n_tokens);
}

static struct transfer_source source(const struct crew *p, const char *name)
{
    return (struct transfer_source){
        .host = "127.0.0.1",
        .port = kv_lead_port(p->lead),
        .engine_id = "engine-p",
        .transfer_id = name,
        .blocks = p_blocks,
        .n_blocks = 5,
        .block_tokens = 16,
    };
}

static uint64_t bytes_of(const struct crew *d, uint32_t n_tokens)
{
    uint64_t n = 0;

    for (uint32_t r = 0; r < d->in.n; r++)
        n += (uint64_t)n_tokens * kv_layout_token_bytes(&d->in.rank[r].opt.layout);
    return n;
}

static bool all_equal(const struct crew *d, uint32_t n_tokens)
{
    for (uint32_t r = 0; r < d->in.n; r++)
        if (!instance_equal(&d->in.rank[r].opt.layout, d->in.rank[r].pool, d_blocks, 0, n_tokens))
            return false;
    return true;
}

static void check_stats(struct crew *p, struct crew *d, uint64_t bytes)
{
    struct transfer_stats ps, ds;

    kv_lead_stats(p->lead, &ps);
    kv_lead_stats(d->lead, &ds);
    assert_int_equal(ds.bytes_received, bytes);
    assert_int_equal(ps.bytes_sent, bytes);
    assert_int_equal(ps.leases, 0);
    assert_int_equal(ps.leases_total, 1);
    assert_int_equal(ds.pulls, 0);
    assert_int_equal(ds.matching, 1);
    assert_int_equal(ps.protocol_errors + ds.protocol_errors + ds.checksum_errors, 0);
}

/* One prompt of 80 tokens from P to D: every rank of D has its part, DONE is said once, the lease ends on
 * every rank of P. */
static void one_pair(uint32_t p_pp, uint32_t p_tp, uint32_t d_pp, uint32_t d_tp, uint32_t heads,
                     bool named)
{
    static const unsigned char prompt[TRANSFER_PROMPT_BYTES] = { 9, 8, 7 };
    static struct crew p, d;
    struct kv_track lease = { .name = "x" }, pull = { .name = "x" };
    struct transfer_source src;

    crew_start(&p, true, p_pp, p_tp, heads);
    crew_start(&d, false, d_pp, d_tp, heads);
    fill_all(&p, 80);
    src = source(&p, "x");
    if (named) {
        src.prompt = prompt;
        src.n_blocks = 0;
        assert_int_equal(kv_lead_expect(p.lead, "x", prompt), 0);
    } else {
        assert_int_equal(kv_lead_hold(p.lead, &lease, p_blocks, 5, 80), 0);
    }
    assert_int_equal(kv_lead_pull(d.lead, &pull, &src, d_blocks, 3, 0, 80), 0);
    if (named)
        assert_int_equal(kv_lead_hold(p.lead, &lease, p_blocks, 5, 80), 0);
    wait_ended(&d, 1, &pull);
    assert_string_equal(pull.status < 0 ? pull.why : "", "");
    assert_int_equal(pull.bytes, bytes_of(&d, 80));
    assert_true(all_equal(&d, 80));
    assert_int_equal(kv_lead_owes_done(&pull), d.in.n > 1);
    if (d.in.n > 1) {
        assert_int_equal(p.n_ended, 0);
        assert_int_equal(kv_lead_done(d.lead, &pull, &src), 0);
        wait_ended(&d, 2, &pull);
        assert_int_equal(pull.status, 0);
        assert_false(kv_lead_owes_done(&pull));
    }
    wait_ended(&p, 1, &lease);
    check_stats(&p, &d, bytes_of(&d, 80));
    crew_finish(&d);
    crew_finish(&p);
}

static void every_pair(void **state)
{
    static const uint32_t p[][2] = { { 1, 1 }, { 2, 1 }, { 1, 3 }, { 2, 3 } };
    static const uint32_t d[][2] = { { 1, 1 }, { 1, 3 }, { 2, 1 } };

    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < 3; k++)
            one_pair(p[i][0], p[i][1], d[k][0], d[k][1], i % 2 ? 3 : 0, (i + k) % 2);
}

/* ---- pushed ---- */

#define PUSHED_ID 7

static struct transfer *transfer_of(struct crew *c, uint32_t rank)
{
    return rank == 0 ? kv_lead_transfer(c->lead) : kv_follow_transfer(c->follow[rank]);
}

/* The plan of a chunk, on one rank. False: nothing of it is pushed. */
static bool begin_chunk(struct crew *p, uint32_t rank, uint32_t first, uint32_t end)
{
    const struct plan_entry entries[2] = {
        { .id = 3, .n = 1 },
        { .id = PUSHED_ID, .start = first, .n = end - first, .blocks = p_blocks, .n_blocks = 5 }
    };
    const struct plan plan = { .n_entries = 2, .entries = entries };

    return kv_push_begin(p->push[rank], transfer_of(p, rank), &plan);
}

static void tell_layers(struct crew *p, uint32_t rank)
{
    const struct kv_layout *l = &p->in.rank[rank].opt.layout;

    for (uint32_t i = 0; i < l->n_layers; i++)
        kv_push_layer(p->push[rank], l->first_layer + i);
}

/* P's ranks are about to compute the first chunk of a prompt that D waits for. */
static void begin_push(struct crew *p, struct crew *d, struct kv_track *pull,
                       struct transfer_source *src)
{
    static const unsigned char prompt[TRANSFER_PROMPT_BYTES] = { 9, 8, 7 };
    double until = clock_now() + SIDE_SECONDS;

    fill_all(p, 80);
    *src = source(p, "x");
    src->prompt = prompt;
    src->n_blocks = 0;
    assert_int_equal(kv_lead_expect(p->lead, "x", prompt), 0);
    assert_false(begin_chunk(p, 0, 0, 48));
    kv_lead_grow(p->lead, "x", PUSHED_ID, 80);
    assert_int_equal(kv_lead_pull(d->lead, pull, src, d_blocks, 3, 0, 80), 0);
    for (uint32_t r = 0; r < p->in.n; r++)
        while (!begin_chunk(p, r, 0, 48)) { /* the news of it may be on its way */
            assert_true(clock_now() < until);
            clock_sleep(0.002);
        }
}

/* All is there before the prompt is held. */
static void one_push(uint32_t p_pp, uint32_t p_tp, uint32_t d_pp, uint32_t d_tp, uint32_t heads)
{
    static struct crew p, d;
    struct kv_track lease = { .name = "x" }, pull = { .name = "x" };
    struct transfer_source src;
    struct transfer_stats st;

    crew_start(&p, true, p_pp, p_tp, heads);
    crew_start(&d, false, d_pp, d_tp, heads);
    begin_push(&p, &d, &pull, &src);
    for (uint32_t r = 0; r < p.in.n; r++) {
        tell_layers(&p, r);
        assert_int_equal(d.n_ended, 0);
        assert_true(begin_chunk(&p, r, 48, 80));
        tell_layers(&p, r);
    }
    wait_ended(&d, 1, &pull);
    assert_string_equal(pull.status < 0 ? pull.why : "", "");
    assert_true(all_equal(&d, 80));
    if (kv_lead_owes_done(&pull)) {
        assert_int_equal(kv_lead_done(d.lead, &pull, &src), 0);
        wait_ended(&d, 2, &pull);
        assert_int_equal(pull.status, 0);
    }
    assert_int_equal(p.n_ended, 0);
    assert_int_equal(kv_lead_hold(p.lead, &lease, p_blocks, 5, 80), 0);
    wait_ended(&p, 1, &lease);
    assert_false(begin_chunk(&p, 0, 48, 80));
    kv_lead_stats(p.lead, &st);
    assert_int_equal(st.bytes_sent, bytes_of(&d, 80));
    check_stats(&p, &d, bytes_of(&d, 80));
    crew_finish(&d);
    crew_finish(&p);
}

static void every_push(void **state)
{
    static const uint32_t p[][2] = { { 1, 1 }, { 2, 1 }, { 1, 3 } };
    static const uint32_t d[][2] = { { 1, 1 }, { 1, 3 } };

    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 2; k++)
            one_push(p[i][0], p[i][1], d[k][0], d[k][1], (i + k) % 2 ? 3 : 0);
}

/* The prefill fails in the middle: D's ranks hear of it, and nothing is left. */
static void a_push_is_dropped(void **state)
{
    static struct crew p, d;
    struct kv_track pull = { .name = "x" };
    double until = clock_now() + SIDE_SECONDS;
    struct transfer_source src;
    struct transfer_stats st;

    (void)state;
    crew_start(&p, true, 2, 1, 2);
    crew_start(&d, false, 1, 2, 2);
    begin_push(&p, &d, &pull, &src);
    tell_layers(&p, 0);
    kv_lead_drop(p.lead, "x");
    assert_false(begin_chunk(&p, 0, 48, 80));
    wait_ended(&d, 1, &pull);
    assert_true(pull.status < 0);
    while (begin_chunk(&p, 1, 48, 80)) /* the news of it may be on its way */
        assert_true(clock_now() < until);
    kv_lead_stats(p.lead, &st);
    while (st.leases > 0 || st.waiting > 0) {
        assert_true(clock_now() < until);
        clock_sleep(0.002);
        kv_lead_stats(p.lead, &st);
    }
    assert_int_equal(p.n_ended, 0);
    crew_finish(&d);
    crew_finish(&p);
}

/* A rank of P that cannot hold ends the lease on all, and D's pull fails, on all. */
static void a_rank_cannot_hold(void **state)
{
    static struct crew p, d;
    struct kv_track lease = { .name = "x" }, pull = { .name = "x" };
    struct kv_wire hold = { .kind = KV_HOLD, .id = 1000, .name = "x" };
    struct transfer_source src;
    struct transfer_stats st;
    size_t n;
    void *bytes;

    (void)state;
    log_set_level(LOG_OFF);
    crew_start(&p, true, 2, 1, 2);
    crew_start(&d, false, 1, 2, 2);
    hold.u.ask.n_src = 5;
    hold.u.ask.n_tokens = 80;
    bytes = kv_wire_make(&n, &hold, p_blocks, NULL);
    kv_follow_arrived(p.follow[1], bytes, n); /* the name is taken there */
    free(bytes);
    src = source(&p, "x");
    assert_int_equal(kv_lead_hold(p.lead, &lease, p_blocks, 5, 80), 0);
    wait_ended(&p, 1, &lease);
    assert_int_equal(kv_lead_pull(d.lead, &pull, &src, d_blocks, 3, 0, 80), 0);
    wait_ended(&d, 1, &pull);
    assert_true(pull.status < 0);
    assert_false(kv_lead_owes_done(&pull));
    kv_lead_stats(p.lead, &st);
    assert_int_equal(st.leases, 0);
    crew_finish(&d);
    crew_finish(&p);
}

/* One rank of D is not told, so that its part never ends: the ranks that fall apart end it. */
static void ranks_fall_apart(void **state)
{
    static struct crew p, d;
    struct kv_track lease = { .name = "x" }, pull = { .name = "x" };
    struct transfer_source src;

    (void)state;
    crew_start(&p, true, 2, 1, 2);
    crew_start(&d, false, 1, 2, 2);
    fill_all(&p, 80);
    src = source(&p, "x");
    d.deaf = 1;
    p.deaf = 1;
    assert_int_equal(kv_lead_hold(p.lead, &lease, p_blocks, 5, 80), 0);
    assert_int_equal(kv_lead_pull(d.lead, &pull, &src, d_blocks, 3, 0, 80), 0);
    clock_sleep(0.1);
    assert_int_equal(d.n_ended + p.n_ended, 0);
    assert_false(kv_lead_is_overdue(d.lead, clock_now(), 60));
    assert_true(kv_lead_is_overdue(d.lead, clock_now() + 70, 60));
    assert_false(kv_lead_is_overdue(d.lead, clock_now() + 70.5, 60)); /* looked a moment ago */
    kv_lead_renew(d.lead, clock_now() + 75);
    assert_false(kv_lead_is_overdue(d.lead, clock_now() + 80, 60));
    assert_true(kv_lead_is_overdue(d.lead, clock_now() + 140, 60));
    assert_false(kv_lead_is_overdue(p.lead, clock_now() + 1000, 60)); /* a lease may stand */
    kv_lead_broken(d.lead, "rank 1 has ended");
    wait_ended(&d, 1, &pull);
    assert_int_equal(pull.status, ERR_CLOSED);
    assert_string_equal(pull.why, "rank 1 has ended");
    assert_int_equal(kv_lead_pull(d.lead, &pull, &src, d_blocks, 3, 0, 80), ERR_CLOSED);
    kv_lead_broken(p.lead, "rank 1 has ended");
    wait_ended(&p, 1, &lease);
    crew_finish(&d);
    crew_finish(&p);
}

static void canceled(void **state)
{
    static struct crew p, d;
    struct kv_track pull = { .name = "x" };
    static const unsigned char prompt[TRANSFER_PROMPT_BYTES] = { 1 };
    struct transfer_source src;
    struct transfer_stats st;

    (void)state;
    crew_start(&p, true, 1, 2, 2);
    crew_start(&d, false, 1, 2, 2);
    src = source(&p, "x");
    src.prompt = prompt;
    src.n_blocks = 0;
    assert_int_equal(kv_lead_pull(d.lead, &pull, &src, d_blocks, 3, 0, 80), 0); /* waits */
    clock_sleep(0.05);
    kv_lead_cancel(d.lead, &pull);
    wait_ended(&d, 1, &pull);
    assert_int_equal(pull.status, ERR_CANCELED);
    kv_lead_cancel(d.lead, &pull); /* it is over: nothing happens */
    kv_lead_stats(d.lead, &st);
    assert_int_equal(st.pulls, 0);
    crew_finish(&d);
    crew_finish(&p);
}

/* With the whole prompt in D's cache, rank 0 says DONE alone. */
static void nothing_to_fetch(void **state)
{
    static struct crew p, d;
    struct kv_track lease = { .name = "x" }, pull = { .name = "x" };
    struct transfer_source src;

    (void)state;
    crew_start(&p, true, 2, 2, 2);
    crew_start(&d, false, 1, 2, 2);
    src = source(&p, "x");
    assert_int_equal(kv_lead_hold(p.lead, &lease, p_blocks, 5, 80), 0);
    assert_int_equal(kv_lead_pull(d.lead, &pull, &src, d_blocks, 3, 80, 80), 0);
    wait_ended(&d, 1, &pull);
    assert_int_equal(pull.status, 0);
    assert_false(kv_lead_owes_done(&pull));
    wait_ended(&p, 1, &lease);
    crew_finish(&d);
    crew_finish(&p);
}

/* A rank that cannot begin is named, and one that does not answer. */
static void opening_fails(void **state)
{
    static struct crew busy, p;
    struct err e = { "" };

    (void)state;
    log_set_level(LOG_OFF);
    crew_start(&busy, true, 1, 1, 2);
    crew_init(&p, true, 1, 2, 2);
    p.in.rank[1].opt.port = kv_lead_port(busy.lead);
    crew_prepare(&p);
    assert_true(crew_open(&p, SIDE_SECONDS, &e) < 0);
    assert_non_null(strstr(e.text, "rank 1: "));
    crew_finish(&p);
    crew_init(&p, true, 1, 2, 2);
    p.deaf = 1;
    crew_prepare(&p);
    assert_int_equal(crew_open(&p, 0.1, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.text, "rank 1 did not open"));
    crew_finish(&p);
    crew_finish(&busy);
}

static void messages_are_checked(void **state)
{
    struct kv_wire m = { .kind = KV_PULL, .id = 5, .name = "x", .engine_id = "y" }, got;
    const uint32_t *src, *dst;
    size_t n, all;
    char *bytes;

    (void)state;
    m.u.ask.n_src = 5;
    m.u.ask.n_dst = 3;
    bytes = kv_wire_make(&all, &m, p_blocks, d_blocks);
    assert_int_equal(kv_wire_read(&got, &src, &dst, bytes, all), 0);
    assert_memory_equal(src, p_blocks, sizeof p_blocks);
    assert_memory_equal(dst, d_blocks, 3 * sizeof *d_blocks);
    for (n = 0; n < all; n++)
        assert_int_equal(kv_wire_read(&got, &src, &dst, bytes, n), ERR_BADMSG);
    free(bytes);
    m.u.ask.n_dst = 0;
    bytes = kv_wire_make(&n, &m, p_blocks, NULL);
    ((struct kv_wire *)(void *)bytes)->u.ask.n_src = UINT32_MAX;
    assert_int_equal(kv_wire_read(&got, &src, &dst, bytes, n), ERR_BADMSG);
    ((struct kv_wire *)(void *)bytes)->u.ask.n_src = 5;
    memset(((struct kv_wire *)(void *)bytes)->name, 'a', sizeof m.name);
    assert_int_equal(kv_wire_read(&got, &src, &dst, bytes, n), ERR_BADMSG);
    free(bytes);
    m = (struct kv_wire){ .kind = KV_OPENED };
    bytes = kv_wire_make(&n, &m, NULL, NULL);
    assert_int_equal(kv_wire_read(&got, &src, &dst, bytes, n), 0);
    ((struct kv_wire *)(void *)bytes)->kind = KV_WIRE_KINDS;
    assert_int_equal(kv_wire_read(&got, &src, &dst, bytes, n), ERR_BADMSG);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_checked), cmocka_unit_test(every_pair),
        cmocka_unit_test(every_push),           cmocka_unit_test(a_push_is_dropped),
        cmocka_unit_test(nothing_to_fetch),     cmocka_unit_test(a_rank_cannot_hold),
        cmocka_unit_test(ranks_fall_apart),     cmocka_unit_test(canceled),
        cmocka_unit_test(opening_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
