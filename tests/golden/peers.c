#include "peers.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A machine that is busy with other things may keep a thread waiting for long. */
#define PATIENCE 300

/* What a rank shows the others until all have read it. */
struct shown {
    const void *data;
    const size_t *at, *bytes;
    size_t n;
};

struct ring {
    uint32_t size;
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    uint32_t here;
    uint64_t round;
    struct shown shown[PEERS_MAX];
};

static struct ring *ring_create(uint32_t size)
{
    struct ring *r = calloc(1, sizeof *r);

    assert(r && size <= PEERS_MAX);
    r->size = size;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->all_here, NULL);
    return r;
}

static void ring_destroy(struct ring *r)
{
    if (!r)
        return;
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->all_here);
    free(r);
}

static void meet(struct ring *r)
{
    struct timespec until;
    uint64_t round;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE;
    pthread_mutex_lock(&r->lock);
    round = r->round;
    if (++r->here == r->size) {
        r->here = 0;
        r->round++;
        pthread_cond_broadcast(&r->all_here);
    }
    while (r->round == round)
        if (pthread_cond_timedwait(&r->all_here, &r->lock, &until) != 0) {
            printf("FAILED: %u of %u ranks came to an exchange\n", r->here, r->size);
            exit(1);
        }
    pthread_mutex_unlock(&r->lock);
}

/* Shows what this rank has; when it returns all have shown theirs. */
static void show(struct ring *r, uint32_t rank, struct shown s)
{
    r->shown[rank] = s;
    meet(r);
}

/* sum[i] = over the ranks, in their order, of x[from + i] */
static float *sum_of(const struct ring *r, size_t from, size_t n)
{
    float *sum = malloc((n ? n : 1) * sizeof *sum);

    assert(sum);
    for (uint32_t s = 0; s < r->size; s++)
        for (size_t i = 0; i < n; i++) {
            float x = ((const float *)r->shown[s].data)[from + i];

            assert(r->shown[s].n == r->shown[0].n);
            sum[i] = s ? sum[i] + x : x;
        }
    return sum;
}

static void all_reduce(void *arg, float *x, size_t n)
{
    struct peers *p = arg;
    float *sum;

    p->calls++;
    show(p->tp, p->tp_rank, (struct shown){ .data = x, .n = n });
    sum = sum_of(p->tp, 0, n);
    meet(p->tp);
    memcpy(x, sum, n * sizeof *x);
    free(sum);
}

static void reduce_scatter(void *arg, float *out, const float *x, size_t n)
{
    struct peers *p = arg;
    float *sum;

    p->calls++;
    show(p->tp, p->tp_rank, (struct shown){ .data = x, .n = n });
    sum = sum_of(p->tp, p->tp_rank * n, n);
    meet(p->tp);
    memcpy(out, sum, n * sizeof *out);
    free(sum);
}

static void all_gather(void *arg, void *all, const void *part, size_t bytes)
{
    struct peers *p = arg;

    p->calls++;
    show(p->tp, p->tp_rank, (struct shown){ .data = part, .n = bytes });
    for (uint32_t s = 0; s < p->tp->size; s++) {
        assert(p->tp->shown[s].n == bytes);
        if (s != p->tp_rank)
            memcpy((char *)all + s * bytes, p->tp->shown[s].data, bytes);
    }
    meet(p->tp);
    memmove((char *)all + p->tp_rank * bytes, part, bytes); /* its own place, mostly */
}

static void all_to_all(struct ring *r, uint32_t rank, struct shown mine, void *recv,
                       const size_t *recv_at, const size_t *recv_bytes)
{
    show(r, rank, mine);
    for (uint32_t s = 0; s < r->size; s++) {
        const struct shown *from = &r->shown[s];

        if (from->bytes[rank] != recv_bytes[s]) {
            printf("FAILED: rank %u of %u sends %zu bytes to rank %u, which expects %zu\n", s,
                   r->size, from->bytes[rank], rank, recv_bytes[s]);
            exit(1);
        }
        memcpy((char *)recv + recv_at[s], (const char *)from->data + from->at[rank], recv_bytes[s]);
    }
    meet(r);
}

static void exchange(void *arg, const void *send, const size_t *send_at, const size_t *send_bytes,
                     void *recv, const size_t *recv_at, const size_t *recv_bytes)
{
    struct peers *p = arg;

    p->calls++;
    all_to_all(p->experts, p->ep_rank, (struct shown){ send, send_at, send_bytes, 0 }, recv,
               recv_at, recv_bytes);
}

static void exchange_head(void *arg, const void *send, const size_t *send_at,
                          const size_t *send_bytes, void *recv, const size_t *recv_at,
                          const size_t *recv_bytes)
{
    struct peers *p = arg;

    p->calls++;
    all_to_all(p->head, p->head_rank, (struct shown){ send, send_at, send_bytes, 0 }, recv, recv_at,
               recv_bytes);
}

void peers_open(struct peers_world *w, uint32_t dp, uint32_t tp, uint32_t head)
{
    *w = (struct peers_world){ .dp = dp, .tp = tp, .head = head, .n = dp * tp };
    assert(w->n <= PEERS_MAX && (head == 0 || (tp == 1 && dp % head == 0)));
    w->experts = ring_create(w->n);
    for (uint32_t i = 0; i < dp; i++)
        w->tp_rings[i] = ring_create(tp);
    for (uint32_t i = 0; head && i < dp / head; i++)
        w->head_rings[i] = ring_create(head);
    for (uint32_t i = 0; i < w->n; i++)
        w->rank[i] = (struct peers){
            .tp = w->tp_rings[i / tp],
            .experts = w->experts,
            .head = head ? w->head_rings[i / head] : NULL,
            .tp_rank = i % tp,
            .ep_rank = i,
            .head_rank = head ? i % head : 0,
            .verbs = { &w->rank[i], all_reduce, reduce_scatter, all_gather, exchange,
                       exchange_head },
        };
}

void peers_close(struct peers_world *w)
{
    for (uint32_t i = 0; i < PEERS_MAX; i++) {
        ring_destroy(w->tp_rings[i]);
        ring_destroy(w->head_rings[i]);
    }
    ring_destroy(w->experts);
}

struct model_part peers_part(struct peers_world *w, uint32_t rank, bool with_experts)
{
    return (struct model_part){
        .tp_rank = rank % w->tp,
        .tp_size = w->tp,
        .ep_rank = with_experts ? rank : 0,
        .ep_size = with_experts ? w->n : 1,
        .head_rank = w->head ? rank % w->head : 0,
        .head_size = w->head,
        .peers = &w->rank[rank].verbs,
    };
}

struct call {
    void (*fn)(void *arg, uint32_t rank);
    void *arg;
    uint32_t rank;
};

static void *begin(void *arg)
{
    const struct call *c = arg;

    c->fn(c->arg, c->rank);
    return NULL;
}

void peers_run(const struct peers_world *w, void (*fn)(void *arg, uint32_t rank), void *arg)
{
    struct call calls[PEERS_MAX];
    pthread_t threads[PEERS_MAX];

    for (uint32_t i = 0; i < w->n; i++) {
        calls[i] = (struct call){ fn, arg, i };
        if (pthread_create(&threads[i], NULL, begin, &calls[i]) != 0) {
            printf("FAILED: cannot start a thread\n");
            exit(1);
        }
    }
    for (uint32_t i = 0; i < w->n; i++)
        pthread_join(threads[i], NULL);
}
