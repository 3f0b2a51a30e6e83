/* Measures the KV transfer: a producer process and a consumer process on this host, the prompt and the
 * model of the reference case (2,000 tokens of 30 layers, 3 KV heads of 64, float16, blocks of 16
 * tokens: 46 MB), against memcpy of the same bytes in the same run.
 *
 *     kv [--json FILE] [--rounds N]
 *
 * What the steps cost, and why the pull is built as it is:
 * - reading the producer's memory in place is one pass of memcpy on the consumer's core, with the
 *   checksum of what was written taken while it is in the cache; the producer's core takes its
 *   checksums of the next batch meanwhile. So the whole is little more than one memcpy.
 * - 2 MB a message while reading in place: smaller ones pay for wake-ups on each side (512 KB: 4.45 ms
 *   where 2 MB takes 4.1 ms), larger ones gain nothing.
 * - where the scheduler puts both threads on one core the two passes follow one another: 7 ms.
 * - over TCP the bytes are copied four times (gather, kernel, UCX, scatter). */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "figures.h"
#include "sys/clock.h"
#include "transfer/transfer.h"

#define TOKENS     2000
#define POOL_SLACK 4 /* the pool is so many times the prompt, its blocks in random order */
#define ROUNDS_MAX 1000
#define NAME       "bench"

static const struct kv_layout reference = {
    .n_layers = 30,
    .planes = 2,
    .kv_heads = 3,
    .head_dim = 64,
    .elem_bytes = 2,
    .block_tokens = 16,
    .n_blocks = POOL_SLACK * TOKENS / 16,
};

struct side {
    struct transfer *t;
    void *pool;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int pulled, status;
    double seconds;
    char why[512];
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench/kv: %s\n", what);
    exit(1);
}

static void on_event(void *arg, const struct transfer_event *ev)
{
    struct side *s = arg;

    pthread_mutex_lock(&s->lock);
    if (ev->kind == TRANSFER_PULLED) {
        s->pulled++;
        s->status = ev->status;
        s->seconds = ev->seconds;
        snprintf(s->why, sizeof s->why, "%s", ev->why ? ev->why : "");
    }
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void open_side(struct side *s, bool produce, bool checksums, bool shared)
{
    struct transfer_options opt = {
        .host = "127.0.0.1",
        .produce = produce,
        .consume = !produce,
        .engine_id = NAME,
        .fingerprint = NAME,
        .kv_dtype = "float16",
        .lease_seconds = 60,
        .pull_timeout = 10,
        .connect_timeout = 10,
        .checksums = checksums,
        .layout = reference,
    };
    uint64_t bytes = kv_layout_pool_bytes(&reference);
    struct err e = { 0 };

    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->pool = NULL;
    if (shared ? transfer_memory_alloc(&s->pool, bytes, &e) < 0 : !(s->pool = malloc(bytes)))
        die("out of memory");
    memset(s->pool, produce, bytes);
    opt.pool = s->pool;
    if (transfer_create(&s->t, &opt, on_event, s, &e) < 0)
        die(e.text);
}

static void close_side(struct side *s, bool shared)
{
    transfer_destroy(s->t);
    if (shared)
        transfer_memory_free(s->pool, kv_layout_pool_bytes(&reference));
    else
        free(s->pool);
}

/* A list of blocks in an order that has no neighbours, as a pool in use gives them out. */
static void pick_blocks(uint32_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = i * 7 % reference.n_blocks;
}

/* The child: holds a lease for every byte that it reads. */
static void produce(int in, int out, bool checksums, bool shared)
{
    uint32_t blocks[TOKENS / 16];
    struct side s;
    uint16_t port;
    char id[32];
    int round;

    open_side(&s, true, checksums, shared);
    pick_blocks(blocks, TOKENS / 16);
    port = transfer_port(s.t);
    if (write(out, &port, sizeof port) != sizeof port)
        die("the pipe is broken");
    while (read(in, &round, sizeof round) == sizeof round) {
        snprintf(id, sizeof id, NAME "-%d", round);
        if (transfer_hold(s.t, id, blocks, TOKENS / 16, TOKENS, 0) < 0 ||
            write(out, &round, sizeof round) != sizeof round)
            die("cannot hold");
    }
    close_side(&s, shared);
    _exit(0);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

static double pull_once(struct side *s, uint16_t port, int round, uint32_t first)
{
    uint32_t blocks[TOKENS / 16];
    char id[32];
    struct transfer_source src = {
        .host = "127.0.0.1",
        .port = port,
        .engine_id = NAME,
        .transfer_id = id,
        .blocks = blocks,
        .n_blocks = TOKENS / 16,
        .block_tokens = 16,
    };
    int before = s->pulled;

    pick_blocks(blocks, TOKENS / 16);
    snprintf(id, sizeof id, NAME "-%d", round);
    if (transfer_pull(s->t, &src, blocks, TOKENS / 16, first, TOKENS, 1) < 0)
        die("cannot pull");
    pthread_mutex_lock(&s->lock);
    while (s->pulled == before)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (s->status < 0)
        die(s->why);
    return s->seconds;
}

/* Median seconds of a pull from token `first` on. The first rounds, which touch fresh pages, are not
 * counted. */
static double measure(int rounds, bool checksums, bool shared, uint32_t first)
{
    int down[2], up[2], echo;
    double v[ROUNDS_MAX];
    struct side s;
    uint16_t port;
    pid_t pid;

    if (pipe(down) < 0 || pipe(up) < 0 || (pid = fork()) < 0)
        die("cannot start the producer");
    if (pid == 0) {
        close(down[1]);
        produce(down[0], up[1], checksums, shared);
    }
    open_side(&s, false, checksums, shared);
    if (read(up[0], &port, sizeof port) != sizeof port)
        die("the producer did not start");
    for (int i = -3; i < rounds; i++) {
        if (write(down[1], &i, sizeof i) != sizeof i ||
            read(up[0], &echo, sizeof echo) != sizeof echo)
            die("the pipe is broken");
        v[i < 0 ? 0 : i] = pull_once(&s, port, i, first);
    }
    close_side(&s, shared);
    close(down[0]);
    close(down[1]);
    close(up[0]);
    close(up[1]);
    waitpid(pid, NULL, 0);
    return median(v, rounds);
}

/* memcpy of the same bytes, block by block, in the same order. */
static double measure_memcpy(int rounds)
{
    uint64_t pool = kv_layout_pool_bytes(&reference), block = kv_layout_block_bytes(&reference);
    char *a = malloc(pool), *b = malloc(pool);
    uint32_t blocks[TOKENS / 16];
    double v[ROUNDS_MAX];

    if (!a || !b)
        die("out of memory");
    memset(a, 1, pool);
    memset(b, 2, pool);
    pick_blocks(blocks, TOKENS / 16);
    for (int i = 0; i < rounds; i++) {
        double t0 = clock_now();

        for (uint32_t plane = 0; plane < 2 * reference.n_layers; plane++)
            for (uint32_t k = 0; k < TOKENS / 16; k++) {
                uint64_t at = kv_layout_offset(&reference, plane / 2, plane % 2, blocks[k]);

                memcpy(b + at, a + at, block);
            }
        v[i] = clock_now() - t0;
    }
    free(a);
    free(b);
    return median(v, rounds);
}

/* A byte to another process and back, both asleep: what any message exchange costs at least. */
static double measure_pipe(int rounds)
{
    int down[2], up[2];
    double v[ROUNDS_MAX];
    char byte = 0;
    pid_t pid;

    if (pipe(down) < 0 || pipe(up) < 0 || (pid = fork()) < 0)
        die("cannot start a process");
    if (pid == 0) {
        close(down[1]);
        while (read(down[0], &byte, 1) == 1 && write(up[1], &byte, 1) == 1)
            ;
        _exit(0);
    }
    for (int i = 0; i < rounds; i++) {
        double t0 = clock_now();

        if (write(down[1], &byte, 1) != 1 || read(up[0], &byte, 1) != 1)
            die("the pipe is broken");
        v[i] = clock_now() - t0;
    }
    close(down[0]);
    close(down[1]);
    close(up[0]);
    close(up[1]);
    waitpid(pid, NULL, 0);
    return median(v, rounds);
}

int main(int argc, char **argv)
{
    const char *json = NULL;
    int rounds = 15;
    double copy, round_trip, bytes = TOKENS * (double)kv_layout_token_bytes(&reference);
    struct figure f[5];

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--json") == 0)
            json = argv[i + 1];
        else if (strcmp(argv[i], "--rounds") == 0)
            rounds = atoi(argv[i + 1]);
        else
            die("usage: kv [--json FILE] [--rounds N]");
    }
    if (argc % 2 == 0 || rounds < 1 || rounds > ROUNDS_MAX)
        die("usage: kv [--json FILE] [--rounds N]");
    copy = measure_memcpy(rounds) * 1e3;
    round_trip = measure_pipe(rounds) * 1e3;
    f[0] = (struct figure){ "kv_pull_2000_tokens_shared",         "ms", "memcpy",
                            measure(rounds, true, true, 0) * 1e3, 0,    false };
    f[1] = (struct figure){ "kv_pull_2000_tokens_shared_no_checksums", "ms", "memcpy",
                            measure(rounds, false, true, 0) * 1e3,     0,    false };
    f[2] = (struct figure){
        "kv_pull_2000_tokens_tcp", "ms", "memcpy", measure(rounds, true, false, 0) * 1e3, 0, false
    };
    f[3] = (struct figure){ "kv_bandwidth_shared",     "GB/s", "memcpy",
                            bytes / f[0].value * 1e-6, 0,      false };
    f[4] = (struct figure){
        "kv_done_only", "ms", "pipe round trip", measure(rounds, true, true, TOKENS) * 1e3, 0, false
    };
    for (int i = 0; i < 3; i++)
        f[i].ratio = copy / f[i].value;
    f[3].ratio = f[3].value / (bytes / copy * 1e-6);
    f[4].ratio = round_trip / f[4].value;
    printf("%.1f MB, memcpy %.2f ms (%.1f GB/s), pipe round trip %.4f ms, median of %d\n\n",
           bytes * 1e-6, copy, bytes / copy * 1e-6, round_trip, rounds);
    for (int i = 0; i < 5; i++)
        printf("%-42s %8.3f %-5s %6.2f of %s\n", f[i].name, f[i].value, f[i].unit, f[i].ratio,
               f[i].against);
    if (json && figures_write(json, f, 5) < 0)
        die("cannot write the JSON file");
    return 0;
}
