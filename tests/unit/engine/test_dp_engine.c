/* Engines as data-parallel instances with shared experts, a process a rank: requests on any of them give
 * the tokens that one process gives, also after one of them has died and come back. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"
#include "comm/group.h"
#include "engine/engine.h"
#include "sys/clock.h"

#define MAX_INSTANCES 4
#define MAX_RANKS     4 /* of an instance */
#define MAX_SLOTS     32
#define MAX_BLOCKS    16
#define N_KINDS       10
#define N_OUT         12
#define PATIENCE      120 /* seconds after which a test gives up: nothing is measured by it */

enum slot_state { FREE, ASKED, RUNNING, ENDED };

struct slot {
    enum slot_state state;
    uint32_t kind;
    int32_t token[N_OUT];
    uint32_t n, n_cached;
    enum finish finish;
    int status;
    char why[300];
    /* transfer: asks for a prefill that is held, and its answer; or is a decode of one */
    bool produce, consume;
    struct kv_params kv; /* its block ids: */
    uint32_t blocks[MAX_BLOCKS];
    uint32_t n_external;
};

/* What the test and an instance's rank 0 share. */
struct seat {
    pthread_mutex_t lock;
    pthread_cond_t some;
    bool woken, stop, open, apart, broken; /* said: why */
    int status;
    char said[1024];
    struct slot slot[MAX_SLOTS];
    struct engine_stats stats;
};

struct shape {
    const char *model;
    uint32_t dp, tp, pp, head_ranks, n_draft_tokens;
    enum model_dtype dtype;
    bool no_ep, transfer, overlap;
};

struct run {
    struct shape s;
    uint16_t port;
    struct seat *seat; /* [MAX_INSTANCES] */
    pid_t pid[MAX_INSTANCES][MAX_RANKS];
};

static const char *qwen, *deepseek; /* folders */

/* ---- requests ---- */

static uint32_t make_prompt(uint32_t kind, int32_t *out)
{
    static const uint32_t lengths[N_KINDS] = { 1, 3, 16, 17, 40, 90, 7, 33, 64, 150 };

    for (uint32_t i = 0; i < lengths[kind]; i++)
        out[i] = 2 + (int32_t)((i * 2654435761u + kind * 977) >> 8) % 200;
    return lengths[kind];
}

static uint32_t n_out_of(uint32_t kind)
{
    return kind % 2 ? N_OUT : 3;
}

static struct sampling sampling_of(uint32_t kind)
{
    struct sampling sp;

    sampling_init(&sp);
    sp.max_tokens = n_out_of(kind);
    sp.ignore_eos = true;
    sp.temperature = kind % 3 == 1 ? 0.8f : 0;
    sp.seed = 40 + kind;
    return sp;
}

/* ---- a process ---- */

static int on_notify(void *arg)
{
    struct seat *s = arg;

    pthread_mutex_lock(&s->lock);
    s->woken = true;
    pthread_cond_broadcast(&s->some);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

static void take_event(struct seat *s, struct engine_event *ev)
{
    struct slot *t = ev->user;

    pthread_mutex_lock(&s->lock);
    if (ev->kind == ENGINE_TOKEN && t->n < N_OUT)
        t->token[t->n++] = ev->token;
    if (ev->kind == ENGINE_END) {
        t->finish = ev->finish;
        t->status = ev->status;
        t->n_cached = ev->n_cached;
        t->n_external = ev->n_external;
        if (ev->kv && ev->kv->n_blocks <= MAX_BLOCKS) {
            t->kv = *ev->kv;
            memcpy(t->blocks, ev->kv->remote_block_ids, t->kv.n_blocks * sizeof t->blocks[0]);
        }
        snprintf(t->why, sizeof t->why, "%s", ev->why ? ev->why : "");
        t->state = ENDED;
    }
    pthread_mutex_unlock(&s->lock);
    engine_event_finish(ev);
}

static void submit(struct engine *e, struct seat *s, struct slot *t)
{
    struct sampling sp = sampling_of(t->kind);
    int32_t prompt[256];
    struct engine_request r = {
        .prompt = prompt, .n_prompt = make_prompt(t->kind, prompt), .sampling = &sp, .user = t
    };
    struct err err = { "" };
    uint64_t id;
    int st;

    t->kv.remote_block_ids = t->blocks;
    t->kv.output_ids = NULL;
    if (t->produce) {
        t->kv.do_remote_decode = true;
        sp.max_tokens = 1;
    }
    if (t->produce || t->consume)
        r.kv = &t->kv;
    if ((st = engine_submit(e, &r, &id, &err)) == 0)
        return;
    pthread_mutex_lock(&s->lock);
    t->status = st;
    t->finish = FINISH_ERROR;
    snprintf(t->why, sizeof t->why, "%.299s", err.text);
    t->state = ENDED;
    pthread_mutex_unlock(&s->lock);
}

/* Sleeps until there is something to do; then what was asked since is running. */
static bool take_orders(struct engine *e, struct seat *s)
{
    bool asked[MAX_SLOTS], go;
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&s->lock);
    if (!s->woken && !s->stop)
        pthread_cond_timedwait(&s->some, &s->lock, &until);
    s->woken = false;
    go = !s->stop;
    for (int i = 0; i < MAX_SLOTS; i++)
        if ((asked[i] = s->slot[i].state == ASKED))
            s->slot[i].state = RUNNING;
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < MAX_SLOTS; i++)
        if (asked[i])
            submit(e, s, &s->slot[i]);
    return go;
}

static void serve(struct engine *e, struct seat *s)
{
    struct engine_event ev[32];
    struct engine_stats st;
    char why[300] = "";
    uint32_t n;

    while (take_orders(e, s)) {
        const char *broken = engine_broken(e);
        bool apart = !broken && engine_is_apart(e, why, sizeof why);

        while ((n = engine_events(e, ev, 32)))
            for (uint32_t i = 0; i < n; i++)
                take_event(s, &ev[i]);
        engine_stats(e, &st);
        pthread_mutex_lock(&s->lock);
        s->stats = st;
        s->apart = apart;
        s->broken = broken != NULL;
        snprintf(s->said, sizeof s->said, "%s", broken ? broken : apart ? why : "");
        pthread_cond_broadcast(&s->some);
        pthread_mutex_unlock(&s->lock);
    }
}

static struct engine_options options(const struct run *r, uint32_t instance, uint32_t rank)
{
    const struct shape *s = &r->s;

    return (struct engine_options){
        .model = { .path = s->model, .dtype = s->dtype, .mtp = s->n_draft_tokens > 0 },
        .kernel = { .threads = 1 },
        .sched = { .block_tokens = 16,
                   .n_blocks = 96,
                   .max_batched_tokens = 64,
                   .max_seqs = 8,
                   .max_model_len = 256,
                   .max_inflight = s->pp > 1 ? s->pp + 1 : 1,
                   .chunked_prefill = true,
                   .prefix_caching = true },
        .n_draft_tokens = s->n_draft_tokens,
        .ranks = { .pp = s->pp,
                   .tp = s->tp,
                   .rank = rank,
                   .host = "127.0.0.1",
                   .master_host = "127.0.0.1",
                   .listen_fd = -1,
                   .secret = "s",
                   .meet_seconds = PATIENCE,
                   .step_seconds = PATIENCE,
                   .expert_parallel = !s->no_ep,
                   .overlap_shared_expert = s->overlap,
                   .head_ranks = s->head_ranks,
                   .dp_size = s->dp,
                   .dp_rank = instance,
                   .dp_host = "127.0.0.1",
                   .dp_port = r->port },
        .kv = { .produce = s->transfer,
                .consume = s->transfer,
                .host = "127.0.0.1",
                .lease_seconds = PATIENCE,
                .pull_timeout = PATIENCE,
                .connect_timeout = 10,
                .checksums = true },
        .notify = on_notify,
        .notify_arg = &r->seat[instance],
    };
}

static void live(const struct run *r, uint32_t instance, uint32_t rank, int listen_fd,
                 uint16_t master_port)
{
    struct engine_options o = options(r, instance, rank);
    struct seat *s = &r->seat[instance];
    struct err err = { "" };
    struct engine *e;
    int st;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody */
    o.ranks.listen_fd = listen_fd;
    o.ranks.master_port = master_port;
    if (rank > 0) {
        st = engine_worker_serve(&o, &err);
        if (st < 0)
            fprintf(stderr, "instance %u, rank %u: %s\n", instance, rank, err.text);
        exit(st < 0);
    }
    st = engine_open(&e, &o, &err);
    pthread_mutex_lock(&s->lock);
    snprintf(s->said, sizeof s->said, "%s", err.text);
    s->status = st;
    s->open = true;
    pthread_mutex_unlock(&s->lock);
    if (st == 0) {
        serve(e, s);
        engine_close(e);
    }
    exit(0);
}

/* ---- the test's side ---- */

static void listen_any(int *fd, uint16_t *port)
{
    struct err e = { "" };

    if (group_listen(fd, port, "127.0.0.1", 0, &e) < 0)
        fail_msg("%s", e.text);
}

static uint16_t free_port(void)
{
    uint16_t port;
    int fd;

    listen_any(&fd, &port);
    close(fd);
    return port;
}

static void seat_init(struct seat *s)
{
    pthread_mutexattr_t m;
    pthread_condattr_t c;

    memset(s, 0, sizeof *s);
    pthread_mutexattr_init(&m);
    pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->lock, &m);
    pthread_condattr_init(&c);
    pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&s->some, &c);
}

static uint32_t n_ranks(const struct run *r)
{
    return r->s.pp * r->s.tp;
}

static void start(struct run *r, uint32_t instance)
{
    uint16_t port = 0;
    int fd = -1;

    seat_init(&r->seat[instance]);
    if (n_ranks(r) > 1)
        listen_any(&fd, &port);
    for (uint32_t k = n_ranks(r); k-- > 0;) {
        fflush(NULL);
        r->pid[instance][k] = fork();
        assert_true(r->pid[instance][k] >= 0);
        if (r->pid[instance][k] == 0)
            live(r, instance, k, k == 0 ? fd : -1, port);
    }
    if (fd >= 0)
        close(fd);
}

static void all_open(struct run *r)
{
    double until = clock_now() + PATIENCE;

    for (uint32_t i = 0; i < r->s.dp; i++) {
        struct seat *s = &r->seat[i];
        bool open = false;

        while (!open && clock_now() < until) {
            pthread_mutex_lock(&s->lock);
            open = s->open;
            pthread_mutex_unlock(&s->lock);
            if (!open)
                clock_sleep(0.01);
        }
        if (!open || s->status < 0)
            fail_msg("instance %u: %s", i, open ? s->said : "does not open");
    }
}

static void open_run(struct run *r, const struct shape *s)
{
    *r = (struct run){ .s = *s, .port = free_port() };
    r->s.tp = s->tp ? s->tp : 1;
    r->s.pp = s->pp ? s->pp : 1;
    r->seat = mmap(NULL, MAX_INSTANCES * sizeof *r->seat, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(r->seat, MAP_FAILED);
    for (uint32_t i = s->dp; i-- > 0;)
        start(r, i);
    all_open(r);
}

static void reap(struct run *r, uint32_t instance, bool well)
{
    for (uint32_t k = 0; k < n_ranks(r); k++) {
        int status;

        assert_int_equal(waitpid(r->pid[instance][k], &status, 0), r->pid[instance][k]);
        if (well)
            assert_int_equal(status, 0);
    }
}

static void close_run(struct run *r)
{
    for (uint32_t i = 0; i < r->s.dp; i++) {
        pthread_mutex_lock(&r->seat[i].lock);
        r->seat[i].stop = true;
        pthread_cond_broadcast(&r->seat[i].some);
        pthread_mutex_unlock(&r->seat[i].lock);
    }
    for (uint32_t i = 0; i < r->s.dp; i++)
        reap(r, i, true);
    munmap(r->seat, MAX_INSTANCES * sizeof *r->seat);
}

/* The slot, or NULL if all are taken. */
static struct slot *ask_for(struct run *r, uint32_t instance, const struct slot *what)
{
    struct seat *s = &r->seat[instance];
    struct slot *free_slot = NULL;

    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < MAX_SLOTS && !free_slot; i++)
        if (s->slot[i].state == FREE)
            free_slot = &s->slot[i];
    if (free_slot) {
        *free_slot = *what;
        free_slot->state = ASKED;
        s->woken = true;
        pthread_cond_broadcast(&s->some);
    }
    pthread_mutex_unlock(&s->lock);
    return free_slot;
}

static struct slot *ask(struct run *r, uint32_t instance, uint32_t kind)
{
    return ask_for(r, instance, &(struct slot){ .kind = kind });
}

/* Waits until the slot has ended (its copy is returned, the slot is free) or has n tokens. */
static struct slot await(struct run *r, uint32_t instance, struct slot *t, uint32_t n)
{
    struct seat *s = &r->seat[instance];
    double until = clock_now() + PATIENCE;
    struct slot copy;

    for (;;) {
        pthread_mutex_lock(&s->lock);
        copy = *t;
        if (copy.state == ENDED)
            t->state = FREE;
        pthread_mutex_unlock(&s->lock);
        if (copy.state == ENDED || copy.n >= n)
            return copy;
        if (clock_now() > until)
            fail_msg("instance %u: a request of kind %u has %u tokens after %d s (%s)", instance,
                     copy.kind, copy.n, PATIENCE, s->said);
        clock_sleep(0.002);
    }
}

static struct slot outcome(struct run *r, uint32_t instance, struct slot *t)
{
    return await(r, instance, t, UINT32_MAX);
}

/* ---- what one process says ---- */

static void ask_alone(struct slot out[N_KINDS], const struct shape *s)
{
    struct shape alone = *s;
    struct run r;

    alone.dp = 1;
    alone.head_ranks = 0;
    alone.n_draft_tokens = 0;
    open_run(&r, &alone);
    for (uint32_t k = 0; k < N_KINDS; k++) {
        out[k] = outcome(&r, 0, ask(&r, 0, k));
        assert_int_equal(out[k].n, n_out_of(k));
    }
    close_run(&r);
}

static void assert_same(const struct slot *got, const struct slot *want)
{
    const struct slot *w = &want[got->kind];

    if (got->finish != w->finish || got->n != w->n)
        fail_msg("kind %u: %u tokens, finish %d: %s", got->kind, got->n, (int)got->finish,
                 got->why);
    assert_memory_equal(got->token, w->token, w->n * sizeof w->token[0]);
}

static struct engine_dp_stats figures(struct run *r, uint32_t instance)
{
    struct seat *s = &r->seat[instance];
    struct engine_dp_stats out;

    pthread_mutex_lock(&s->lock);
    out = s->stats.dp;
    pthread_mutex_unlock(&s->lock);
    return out;
}

/* All instances made the same steps. */
static void assert_in_step(struct run *r)
{
    double until = clock_now() + PATIENCE;

    for (uint32_t i = 1; i < r->s.dp; i++)
        while (figures(r, i).steps != figures(r, 0).steps) {
            if (clock_now() > until)
                fail_msg("instance %u made %llu steps, instance 0 %llu", i,
                         (unsigned long long)figures(r, i).steps,
                         (unsigned long long)figures(r, 0).steps);
            clock_sleep(0.01);
        }
    assert_true(figures(r, 0).steps > 0);
}

static void same_tokens(const struct shape *s)
{
    struct slot want[N_KINDS], *t[MAX_INSTANCES][N_KINDS], got;
    struct run r;

    ask_alone(want, s);
    open_run(&r, s);
    /* the cold group, by its last instance; then all at once, each with a part of the kinds; then all */
    got = outcome(&r, s->dp - 1, ask(&r, s->dp - 1, 1));
    assert_same(&got, want);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < s->dp; i++)
            for (uint32_t k = 0; k < N_KINDS; k++)
                if (round || k % s->dp == i)
                    t[i][k] = ask(&r, i, k);
        for (uint32_t i = 0; i < s->dp; i++)
            for (uint32_t k = 0; k < N_KINDS; k++)
                if (round || k % s->dp == i) {
                    got = outcome(&r, i, t[i][k]);
                    assert_same(&got, want);
                }
    }
    assert_in_step(&r);
    close_run(&r);
}

/* ---- tests ---- */

static void need(const char *model)
{
    char path[600];

    snprintf(path, sizeof path, "%s/config.json", model);
    if (access(path, R_OK) < 0)
        skip();
}

static void qwen_tokens_equal(void **state)
{
    (void)state;
    need(qwen);
    same_tokens(&(struct shape){ .model = qwen, .dp = 2, .dtype = MODEL_DTYPE_FLOAT32 });
    same_tokens(&(struct shape){ .model = qwen, .dp = 4, .dtype = MODEL_DTYPE_AUTO });
}

static void deepseek_tokens_equal(void **state)
{
    (void)state;
    need(deepseek);
    same_tokens(&(struct shape){ .model = deepseek, .dp = 2, .dtype = MODEL_DTYPE_AUTO });
    same_tokens(&(struct shape){ .model = deepseek, .dp = 4, .dtype = MODEL_DTYPE_FLOAT32 });
}

static void drafts(void **state)
{
    (void)state;
    need(deepseek);
    same_tokens(&(struct shape){
        .model = deepseek, .dp = 2, .n_draft_tokens = 2, .dtype = MODEL_DTYPE_FLOAT32 });
}

static void shared_expert_while_rows_travel(void **state)
{
    (void)state;
    need(deepseek);
    same_tokens(
        &(struct shape){ .model = deepseek, .dp = 4, .overlap = true, .dtype = MODEL_DTYPE_AUTO });
}

static void shared_head(void **state)
{
    (void)state;
    need(qwen);
    same_tokens(
        &(struct shape){ .model = qwen, .dp = 4, .head_ranks = 2, .dtype = MODEL_DTYPE_FLOAT32 });
}

static void shared_head_with_drafts(void **state)
{
    (void)state;
    need(deepseek);
    same_tokens(&(struct shape){ .model = deepseek,
                                 .dp = 2,
                                 .head_ranks = 2,
                                 .n_draft_tokens = 2,
                                 .dtype = MODEL_DTYPE_FLOAT32 });
}

static void stages(void **state)
{
    (void)state;
    need(deepseek);
    same_tokens(
        &(struct shape){ .model = deepseek, .dp = 2, .pp = 2, .dtype = MODEL_DTYPE_FLOAT32 });
}

static void tensor_parallel_ranks(void **state)
{
    (void)state;
    need(qwen);
    same_tokens(&(struct shape){ .model = qwen, .dp = 2, .tp = 2, .dtype = MODEL_DTYPE_FLOAT32 });
}

/* A thousand requests with random gaps, on ranks as chance has it. */
static void a_thousand_requests(void **state)
{
    struct shape s = { .model = qwen, .dp = 4, .dtype = MODEL_DTYPE_AUTO };
    struct slot want[N_KINDS], *t[1000] = { NULL };
    uint32_t where[1000], x = 77, first = 0;
    struct run r;

    (void)state;
    need(qwen);
    ask_alone(want, &s);
    open_run(&r, &s);
    for (uint32_t i = 0; i < 1000; i++) {
        x = x * 1664525 + 1013904223;
        where[i] = (x >> 16) % 4;
        /* the short ones; the earliest make room where all places are taken */
        while (!(t[i] = ask(&r, where[i], (x >> 20) % 4 * 2)) && first < i) {
            struct slot got = outcome(&r, where[first], t[first]);

            assert_same(&got, want);
            first++;
        }
        if ((x >> 24) % 8 == 0)
            clock_sleep((x >> 8) % 16 * 0.002);
    }
    for (; first < 1000; first++) {
        struct slot got = outcome(&r, where[first], t[first]);

        assert_same(&got, want);
    }
    assert_in_step(&r);
    close_run(&r);
}

static double cpu_seconds(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &t), 0);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void idle_ranks_sleep(void **state)
{
    struct shape s = { .model = qwen, .dp = 4, .dtype = MODEL_DTYPE_AUTO };
    double before[MAX_INSTANCES];
    struct slot got;
    struct run r;

    (void)state;
    need(qwen);
    open_run(&r, &s);
    got = outcome(&r, 3, ask(&r, 3, 5));
    assert_int_equal(got.finish, FINISH_LENGTH);
    clock_sleep(0.3);
    for (uint32_t i = 0; i < 4; i++)
        before[i] = cpu_seconds(r.pid[i][0]);
    clock_sleep(2);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(cpu_seconds(r.pid[i][0]) - before[i] < 0.04);
    close_run(&r);
}

static void wait_together(struct run *r, uint32_t instance, bool together, uint64_t meetings)
{
    double until = clock_now() + PATIENCE;
    struct seat *s = &r->seat[instance];
    bool is;

    do {
        pthread_mutex_lock(&s->lock);
        s->woken = true; /* so that it tells */
        pthread_cond_broadcast(&s->some);
        is = s->apart != together && s->stats.dp.meetings >= meetings;
        pthread_mutex_unlock(&s->lock);
        if (clock_now() > until)
            fail_msg("instance %u is still %s (%s)", instance, together ? "apart" : "together",
                     s->said);
        clock_sleep(0.01);
    } while (!is);
}

/* A prefill on one instance, the decode on another. */
static void transfer(struct run *r, uint32_t from, uint32_t to, uint32_t kind,
                     const struct slot *want)
{
    struct slot d = { .kind = kind, .consume = true }, got;
    struct slot p = outcome(r, from,
                            ask_for(r, from, &(struct slot){ .kind = kind, .produce = true }));

    if (p.finish != FINISH_LENGTH || !p.kv.do_remote_prefill)
        fail_msg("the prefill at %u: %s", from, p.why);
    d.kv = p.kv;
    memcpy(d.blocks, p.blocks, sizeof d.blocks);
    got = outcome(r, to, ask_for(r, to, &d));
    assert_same(&got, want);
    assert_true(got.n_external + got.n_cached > 0);
}

static void transfer_all_ways(struct run *r, const struct slot *want)
{
    for (uint32_t i = 0; i < r->s.dp; i++)
        for (uint32_t j = 0; j < r->s.dp; j++)
            if (i != j)
                transfer(r, i, j, 3 + (i + 2 * j) % 5, want);
}

/* Rank `who` is killed while all decode; the others' requests fail with its name; it comes back, and all
 * goes on, with the caches of those that lived. */
static void kill_and_return(uint32_t who)
{
    struct shape s = { .model = qwen, .dp = 4, .dtype = MODEL_DTYPE_FLOAT32, .transfer = true };
    struct slot want[N_KINDS], *t[4], got;
    char name[40];
    struct run r;

    ask_alone(want, &s);
    open_run(&r, &s);
    snprintf(name, sizeof name, "data-parallel rank %u", who);
    for (uint32_t i = 0; i < 4; i++) {
        got = outcome(&r, i, ask(&r, i, 9));
        assert_same(&got, want);
    }
    transfer_all_ways(&r, want);
    for (int round = 0; round < 2; round++) { /* some requests run; the next wait */
        kill(r.pid[who][0], SIGSTOP);
        for (uint32_t i = 0; i < 4; i++)
            t[i] = ask(&r, i, 5);
        clock_sleep(0.1);
        kill(r.pid[who][0], SIGKILL);
        reap(&r, who, false);
        for (uint32_t i = 0; i < 4; i++) {
            if (i == who)
                continue;
            got = outcome(&r, i, t[i]);
            assert_int_equal(got.finish, FINISH_ERROR);
            assert_int_equal(got.status, ERR_CLOSED);
            if (!strstr(got.why, name))
                fail_msg("'%s' does not name %s", got.why, name);
            wait_together(&r, i, false, 0);
            got = outcome(&r, i, ask(&r, i, 5));
            assert_int_equal(got.status, ERR_BUSY);
            assert_non_null(strstr(got.why, name));
        }
        start(&r, who);
        all_open(&r);
        for (uint32_t i = 0; i < 4; i++)
            wait_together(&r, i, true, i == who ? 1 : 2 + (uint64_t)round);
        for (uint32_t i = 0; i < 4; i++) {
            got = outcome(&r, i, ask(&r, i, 9));
            assert_same(&got, want);
            assert_int_equal(got.n_cached > 0, i != who);
        }
        transfer_all_ways(&r, want);
        assert_in_step(&r);
    }
    close_run(&r);
}

static void a_rank_dies_and_returns(void **state)
{
    (void)state;
    need(qwen);
    kill_and_return(2);
}

static void rank_0_dies_and_returns(void **state)
{
    (void)state;
    need(qwen);
    kill_and_return(0);
}

/* Of instances of several ranks none knows how far the others came: all end, and say which it was. */
static void instances_of_several_ranks_end(void **state)
{
    struct shape s = { .model = qwen, .dp = 2, .tp = 2, .dtype = MODEL_DTYPE_FLOAT32 };
    double until = clock_now() + PATIENCE;
    struct slot *t, got;
    bool broken = false;
    struct run r;
    int status;

    (void)state;
    need(qwen);
    open_run(&r, &s);
    kill(r.pid[1][1], SIGSTOP); /* in the middle of a step, then */
    t = ask(&r, 0, 9);
    clock_sleep(0.1);
    kill(r.pid[1][1], SIGKILL);
    got = outcome(&r, 0, t);
    assert_int_equal(got.status, ERR_CLOSED);
    assert_non_null(strstr(got.why, "rank 1 of data-parallel rank 1 has ended"));
    for (uint32_t i = 0; i < 2; i++, broken = false)
        while (!broken) {
            pthread_mutex_lock(&r.seat[i].lock);
            broken = r.seat[i].broken;
            pthread_mutex_unlock(&r.seat[i].lock);
            if (clock_now() > until)
                fail_msg("instance %u goes on", i);
            clock_sleep(0.01);
        }
    assert_non_null(strstr(r.seat[1].said, "rank 1 (stage 0, place 1"));
    for (uint32_t i = 0; i < 2; i++) {
        pthread_mutex_lock(&r.seat[i].lock);
        r.seat[i].stop = true;
        pthread_cond_broadcast(&r.seat[i].some);
        pthread_mutex_unlock(&r.seat[i].lock);
    }
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(waitpid(r.pid[i / 2][i % 2], &status, 0), r.pid[i / 2][i % 2]);
    munmap(r.seat, MAX_INSTANCES * sizeof *r.seat);
}

/* Without shared experts each goes its own way, and knows of the others. */
static void independent_instances(void **state)
{
    struct shape s = { .model = qwen, .dp = 2, .dtype = MODEL_DTYPE_AUTO, .no_ep = true };
    struct slot want[N_KINDS], got;
    struct run r;

    (void)state;
    need(qwen);
    ask_alone(want, &s);
    open_run(&r, &s);
    kill(r.pid[0][0], SIGSTOP);
    got = outcome(&r, 1, ask(&r, 1, 5));
    assert_same(&got, want);
    kill(r.pid[0][0], SIGKILL);
    reap(&r, 0, false);
    got = outcome(&r, 1, ask(&r, 1, 6));
    assert_same(&got, want);
    start(&r, 0);
    all_open(&r);
    got = outcome(&r, 0, ask(&r, 0, 6));
    assert_same(&got, want);
    assert_int_equal(figures(&r, 0).size, 2);
    assert_int_equal(figures(&r, 0).steps, 0);
    close_run(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen_tokens_equal),
        cmocka_unit_test(deepseek_tokens_equal),
        cmocka_unit_test(drafts),
        cmocka_unit_test(shared_expert_while_rows_travel),
        cmocka_unit_test(shared_head),
        cmocka_unit_test(shared_head_with_drafts),
        cmocka_unit_test(stages),
        cmocka_unit_test(tensor_parallel_ranks),
        cmocka_unit_test(a_thousand_requests),
        cmocka_unit_test(idle_ranks_sleep),
        cmocka_unit_test(a_rank_dies_and_returns),
        cmocka_unit_test(rank_0_dies_and_returns),
        cmocka_unit_test(instances_of_several_ranks_end),
        cmocka_unit_test(independent_instances),
    };

    assert_true(argc >= 3);
    qwen = argv[1];
    deepseek = argv[2];
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    log_set_level(LOG_WARNING);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
