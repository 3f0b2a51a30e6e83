#include "transfer/transfer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rand.h"
#include "sys/clock.h"
#include "sys/topo.h"
#include "transfer/internal.h"

/* ---- memory ---- */

int transfer_memory_alloc(void **out, size_t bytes, struct err *e)
{
    void *p;

    if (region_alloc(out, bytes, NULL) == 0)
        return 0;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == 0 || p == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "cannot allocate %zu bytes for the KV pool", bytes);
    *out = p;
    return 0;
}

void transfer_memory_free(void *p, size_t bytes)
{
    region_free(p, bytes);
}

/* Contents stay. Nobody else uses the memory yet. */
static void take_pages(void *pool, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    volatile unsigned char *p = pool;

#ifdef MADV_POPULATE_WRITE
    if (madvise(pool, bytes, MADV_POPULATE_WRITE) == 0)
        return; /* half the time of a fault a page; older kernels have it not */
#endif
    for (uint64_t at = 0; at < bytes; at += page)
        p[at] = p[at];
}

/* Gives every page of the pool its memory, so that the first pulls find it: a fault costs several times
 * the copy of the page. Not where that memory may be wanted by others. */
static void touch_pool(const struct transfer *t)
{
    uint64_t bytes = kv_layout_pool_bytes(&t->opt.layout);
    double t0 = clock_now();

    if (!t->opt.consume)
        return;
    if (bytes > TRANSFER_TOUCH_MAX || bytes > topo_memory_available() / 2) {
        log_info("KV pool: memory is taken page by page as it is used; the first pulls into it are "
                 "slower");
        return;
    }
    take_pages(t->opt.pool, bytes);
    log_info("KV pool: %.0f MiB of memory taken in %.2f s, so that pulls need not wait for it",
             (double)bytes / (1 << 20), clock_now() - t0);
}

struct buffer *transfer_buffer(struct transfer *t, size_t bytes)
{
    /* All but the largest have one size, so that any of them serves the next batch. */
    size_t usual = TRANSFER_SENT_BYTES + TRANSFER_SENT_BYTES / 8;
    size_t cap = bytes > usual ? bytes : usual;
    struct buffer *b = t->spare;

    if (b && bytes <= usual) {
        t->spare = b->next;
        t->n_spare--;
        return b;
    }
    b = malloc(sizeof *b + cap);
    if (!b)
        return NULL;
    b->t = t;
    b->cap = cap;
    return b;
}

void transfer_buffer_return(struct buffer *b)
{
    struct transfer *t = b->t;

    if (t->n_spare >= TRANSFER_SPARE_MAX ||
        b->cap > TRANSFER_SENT_BYTES + TRANSFER_SENT_BYTES / 8) {
        free(b);
        return;
    }
    b->next = t->spare;
    t->spare = b;
    t->n_spare++;
}

/* ---- the comm thread ---- */

void transfer_count(struct transfer *t, uint64_t *counter, uint64_t n)
{
    pthread_mutex_lock(&t->lock);
    *counter += n;
    pthread_mutex_unlock(&t->lock);
}

void transfer_emit(struct transfer *t, const struct transfer_event *ev)
{
    if (t->fn)
        t->fn(t->arg, ev);
}

/* Whether there was anything in the mailbox. */
static bool take_inbox(struct transfer *t, double now)
{
    struct job *list, *next;

    pthread_mutex_lock(&t->lock);
    list = t->inbox;
    t->inbox = NULL;
    t->inbox_end = &t->inbox;
    pthread_mutex_unlock(&t->lock);
    for (struct job *j = list; j; j = next) {
        next = j->next;
        pull_take(t, j, now);
    }
    return list != NULL;
}

static bool stopping(struct transfer *t)
{
    bool stop;

    pthread_mutex_lock(&t->lock);
    stop = t->stop;
    pthread_mutex_unlock(&t->lock);
    return stop;
}

static void run_timers(struct transfer *t, double now)
{
    conn_timers(t, now);
    note_timers(t, now);
    pull_timers(t, now);
    serve_timers(t, now);
}

/* Sleeps until the next thing is due. */
static void sleep_until_due(struct transfer *t)
{
    double next = fmin(fmin(conn_next(t), note_next(t)), fmin(pull_next(t), serve_next(t)));

    link_wait(t->link, next == HUGE_VAL ? -1 : fmax(0, next - clock_now()));
}

static void *comm_thread(void *arg)
{
    struct transfer *t = arg;

    while (!stopping(t)) {
        bool busy = link_progress(t->link);

        busy |= take_inbox(t, clock_now());
        busy |= serve_step(t, clock_now());
        run_timers(t, clock_now());
        if (!busy)
            sleep_until_due(t);
    }
    return NULL;
}

/* ---- creation ---- */

/* Rank 0 of a producer knows all others. */
static int check_shape(const struct transfer_options *o, struct err *e)
{
    uint64_t n = (uint64_t)(o->shape.pp ? o->shape.pp : 1) * (o->shape.tp ? o->shape.tp : 1);
    struct err why;

    if (n > TRANSFER_RANKS_MAX || o->rank >= n)
        return err_set(e, ERR_INVAL, "KV transfer: rank %u of %llu; at most %d ranks", o->rank,
                       (unsigned long long)n, TRANSFER_RANKS_MAX);
    if (!o->produce || o->rank > 0 || n == 1)
        return 0;
    if (o->n_ranks != n)
        return err_set(e, ERR_INVAL, "KV transfer: %u of %llu ranks are known", o->n_ranks,
                       (unsigned long long)n);
    for (uint32_t i = 1; i < o->n_ranks; i++)
        if (rank_check(&o->ranks[i], i, &o->layout, &why) < 0)
            return err_set(e, ERR_INVAL, "KV transfer: %s", why.text);
    return 0;
}

static int check_options(const struct transfer_options *o, struct err *e)
{
    const struct kv_layout *l = &o->layout;
    uint64_t piece = kv_layout_block_bytes(l);
    int st;

    if (!o->host || !o->engine_id || !o->fingerprint || !o->kv_dtype || !o->pool)
        return err_set(e, ERR_INVAL, "KV transfer: an option is missing");
    if (strlen(o->host) >= TRANSFER_HOST_MAX || strlen(o->engine_id) >= TRANSFER_ID_MAX ||
        strlen(o->fingerprint) >= MESSAGE_NAME_MAX || strlen(o->kv_dtype) >= MESSAGE_DTYPE_MAX)
        return err_set(e, ERR_TOOLONG, "KV transfer: host, engine id or fingerprint is too long");
    if (l->block_tokens == 0 || l->block_tokens % KV_LAYOUT_GROUP != 0)
        return err_set(e, ERR_INVAL, "KV transfer: block size %u is not a multiple of %d",
                       l->block_tokens, KV_LAYOUT_GROUP);
    if (l->planes < 1 || l->planes > 2 || l->n_draft > KV_LAYOUT_MAX_DRAFT ||
        l->n_draft >= l->n_layers)
        return err_set(e, ERR_INVAL, "KV transfer: %u planes a layer, %u of %u layers for drafts",
                       l->planes, l->n_draft, l->n_layers);
    if (piece == 0 || l->n_layers == 0 || l->n_blocks == 0 ||
        (uint64_t)KV_LAYOUT_GROUP * l->head_dim * l->elem_bytes % CHECKSUM_STRIPE != 0)
        return err_set(e, ERR_INVAL, "KV transfer: the pool is empty");
    if (piece + 8 > LINK_BULK_MAX)
        return err_set(
            e, ERR_LIMIT,
            "KV transfer: a block of one layer has %llu bytes, the limit is %llu; choose "
            "a smaller block size",
            (unsigned long long)piece, (unsigned long long)LINK_BULK_MAX - 8);
    if (!kv_layout_is_sound(l))
        return err_set(e, ERR_INVAL,
                       "KV transfer: %u layers from %u on and %u KV heads from %u on are no part "
                       "of %u layers and %u KV heads",
                       l->n_layers, l->first_layer, l->kv_heads, l->first_head,
                       kv_layout_all_layers(l), kv_layout_all_heads(l));
    if ((st = check_shape(o, e)) < 0)
        return st;
    if (!(o->lease_seconds > 0) || !(o->pull_timeout > 0) || !(o->connect_timeout > 0))
        return err_set(e, ERR_INVAL, "KV transfer: a timeout is not positive");
    return 0;
}

static void set_identity(struct transfer *t)
{
    const struct transfer_options *o = &t->opt;
    struct identity *id = &t->identity;

    strcpy(id->engine_id, o->engine_id);
    strcpy(id->fingerprint, o->fingerprint);
    strcpy(id->kv_dtype, o->kv_dtype);
    rand_bytes(id->boot, sizeof id->boot);
    id->layout = o->layout;
    id->shape = o->shape;
    id->rank = o->rank;
    id->producers = o->producers;
    id->consumers = o->consumers;
    id->produce = o->produce;
    id->checksums = o->checksums;
    /* No key: the memory came from elsewhere, or this platform has none; then data is sent. */
    if (!o->produce || region_key(&t->key, o->pool) < 0)
        memset(&t->key, 0, sizeof t->key);
}

static int copy_strings(struct transfer *t)
{
    struct transfer_options *o = &t->opt;
    bool secret = o->secret != NULL;

    o->host = strdup(o->host);
    o->secret = secret ? strdup(o->secret) : NULL;
    o->engine_id = strdup(o->engine_id);
    o->fingerprint = strdup(o->fingerprint);
    o->kv_dtype = strdup(o->kv_dtype);
    if (!o->host || !o->engine_id || !o->fingerprint || !o->kv_dtype || (secret && !o->secret))
        return ERR_NOMEM;
    return 0;
}

static void free_strings(struct transfer *t)
{
    const char *const all[] = { t->opt.host, t->opt.secret, t->opt.engine_id, t->opt.fingerprint,
                                t->opt.kv_dtype };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free((void *)(uintptr_t)all[i]);
}

/* What a consumer that comes to rank 0 will be told. */
static int take_ranks(struct transfer *t, struct err *e)
{
    const struct transfer_options *o = &t->opt;
    struct transfer_rank *own;

    if (!o->produce || o->rank > 0)
        return 0;
    t->n_ranks = shape_ranks(&o->shape);
    t->ranks = calloc(t->n_ranks, sizeof *t->ranks);
    if (!t->ranks)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (t->n_ranks > 1)
        memcpy(t->ranks, o->ranks, t->n_ranks * sizeof *t->ranks);
    own = &t->ranks[0];
    own->port = link_port(t->link);
    snprintf(own->host, sizeof own->host, "%s", link_host(t->link));
    own->first_layer = o->layout.first_layer;
    own->n_layers = o->layout.n_layers;
    own->first_head = o->layout.first_head;
    own->n_heads = o->layout.kv_heads;
    t->opt.ranks = NULL; /* the caller's */
    return 0;
}

static int start(struct transfer *t, struct err *e)
{
    struct link_events ev = conn_events;
    int st;

    ev.arg = t;
    if ((st = link_create(&t->link, t->opt.host, &ev, e)) < 0)
        return st;
    if (t->opt.produce && (st = link_listen(t->link, t->opt.port, e)) < 0)
        return st;
    if ((st = take_ranks(t, e)) < 0)
        return st;
    if (pthread_create(&t->thread, NULL, comm_thread, t) != 0)
        return err_set(e, ERR_LIMIT, "cannot start the KV transfer thread");
    t->running = true;
    return 0;
}

int transfer_create(struct transfer **out, const struct transfer_options *opt,
                    transfer_event_fn *fn, void *arg, struct err *e)
{
    struct transfer *t;
    int st = check_options(opt, e);

    if (st < 0)
        return st;
    t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "out of memory");
    t->opt = *opt;
    t->fn = fn;
    t->arg = arg;
    t->inbox_end = &t->inbox;
    pthread_mutex_init(&t->lock, NULL);
    lease_table_init(&t->leases);
    await_table_init(&t->awaits);
    if ((st = copy_strings(t)) < 0) {
        err_set(e, st, "out of memory");
        transfer_destroy(t);
        return st;
    }
    set_identity(t);
    touch_pool(t);
    if ((st = start(t, e)) < 0) {
        transfer_destroy(t);
        return st;
    }
    *out = t;
    return 0;
}

static void stop_thread(struct transfer *t)
{
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_mutex_unlock(&t->lock);
    link_wake(t->link);
    pthread_join(t->thread, NULL);
}

void transfer_destroy(struct transfer *t)
{
    if (!t)
        return;
    if (t->running) {
        stop_thread(t);
        take_inbox(t, 0);
        pull_finish(t);
        serve_finish(t);
    }
    link_destroy(t->link);
    while (t->spare) {
        struct buffer *b = t->spare;

        t->spare = b->next;
        free(b);
    }
    lease_table_finish(&t->leases);
    await_table_finish(&t->awaits);
    pthread_mutex_destroy(&t->lock);
    free(t->ranks);
    free_strings(t);
    free(t);
}

const char *transfer_host(const struct transfer *t)
{
    return link_host(t->link);
}

uint16_t transfer_port(const struct transfer *t)
{
    return link_port(t->link);
}
