#include "engine/ranks.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/group.h"
#include "sys/clock.h"

#define MEET_SECONDS 120.0
#define STEP_SECONDS 300.0
#define LOAD_SECONDS 3600.0 /* ranks may load at unlike speeds */
#define CLOCK_ROUNDS 8

enum part_id { PART_TP = 1, PART_EP, PART_HEAD };
enum tag { TAG_CLOCK = 1 };

static uint32_t at_least_one(uint32_t n)
{
    return n ? n : 1;
}

/* ---- which part is whose ---- */

static int check_sum(const struct engine_ranks *o, uint32_t pp, uint32_t n_layers, struct err *e)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < pp; i++) {
        sum += o->stage_layers[i];
        if (o->stage_layers[i] == 0)
            return err_set(e, ERR_INVAL, "stage %u of %u has no layers", i, pp);
    }
    if (sum != n_layers)
        return err_set(e, ERR_INVAL,
                       "the stages have %llu layers together, but the model has %u; their numbers "
                       "must add up",
                       (unsigned long long)sum, n_layers);
    return 0;
}

/* Layers of a stage where nothing else is said: as many each; what is left over goes to the last stages
 * but one, as the last has the head. */
static uint32_t even_share(uint32_t n_layers, uint32_t pp, uint32_t stage)
{
    uint32_t left = n_layers % pp;
    bool more = stage + 1 < pp && stage + 1 + left >= pp;

    return n_layers / pp + more;
}

static int find_layers(struct ranks *r, const struct engine_ranks *o, uint32_t n_layers,
                       struct err *e)
{
    bool given = o->stage_layers[0] > 0;
    uint32_t first = 0, n = 0;
    int st;

    if (r->pp > n_layers)
        return err_set(e, ERR_INVAL, "%u pipeline stages, but the model has %u layers", r->pp,
                       n_layers);
    if (given && (st = check_sum(o, r->pp, n_layers, e)) < 0)
        return st;
    for (uint32_t s = 0; s <= r->stage; s++) {
        first += n;
        n = given ? o->stage_layers[s] : even_share(n_layers, r->pp, s);
    }
    r->first_layer = first;
    r->n_layers = n;
    return 0;
}

static int find_part(struct ranks *r, const struct engine_ranks *o, struct err *e)
{
    uint32_t dp = at_least_one(o->dp_size), head = at_least_one(o->head_ranks);

    if (o->pp > ENGINE_MAX_STAGES)
        return err_set(e, ERR_RANGE, "%u pipeline stages; at most %d", o->pp, ENGINE_MAX_STAGES);
    r->pp = at_least_one(o->pp);
    r->tp = at_least_one(o->tp);
    r->n = r->pp * r->tp;
    r->rank = o->rank;
    r->dp_size = dp;
    r->dp_rank = o->dp_rank;
    if (r->tp > GROUP_MAX_RANKS / r->pp || r->rank >= r->n || (o->dp_size && o->dp_rank >= dp))
        return err_set(e, ERR_RANGE,
                       "rank %u of %u x %u ranks in instance %u of %u: at most %d ranks, counted "
                       "from 0",
                       r->rank, r->pp, r->tp, o->dp_rank, dp, GROUP_MAX_RANKS);
    r->stage = r->rank / r->tp;
    r->place = r->rank % r->tp;
    r->step_seconds = o->step_seconds > 0 ? o->step_seconds : STEP_SECONDS;
    r->part = (struct model_part){
        .tp_rank = r->place,
        .tp_size = r->tp,
        .ep_rank = o->expert_parallel ? o->dp_rank * r->tp + r->place : 0,
        .ep_size = o->expert_parallel ? dp * r->tp : 1,
        .head_rank = o->dp_rank % head,
        .head_size = head,
        .sequence_parallel = o->sequence_parallel && r->tp > 1,
        .overlap_shared_expert = o->overlap_shared_expert,
        .peers = &r->peers,
    };
    return 0;
}

/* ---- exchanges inside a step ---- */

/* The first failure is kept. */
static void note(struct ranks *r, int st)
{
    if (st < 0 && r->failed == 0)
        r->failed = st;
}

static void all_reduce(void *arg, float *x, size_t n)
{
    struct ranks *r = arg;

    note(r, group_all_reduce(r->tp_group, x, n));
}

static void reduce_scatter(void *arg, float *out, const float *x, size_t n)
{
    struct ranks *r = arg;

    note(r, group_reduce_scatter(r->tp_group, out, x, n));
}

static void all_gather(void *arg, void *all, const void *part, size_t bytes)
{
    struct ranks *r = arg;

    note(r, group_all_gather(r->tp_group, all, part, bytes));
}

static void exchange(void *arg, const void *send, const size_t *send_at, const size_t *send_bytes,
                     void *recv, const size_t *recv_at, const size_t *recv_bytes)
{
    struct ranks *r = arg;

    note(r, group_all_to_all(r->ep_group, send, send_at, send_bytes, recv, recv_at, recv_bytes));
}

static void exchange_head(void *arg, const void *send, const size_t *send_at,
                          const size_t *send_bytes, void *recv, const size_t *recv_at,
                          const size_t *recv_bytes)
{
    struct ranks *r = arg;

    note(r, group_all_to_all(r->head_group, send, send_at, send_bytes, recv, recv_at, recv_bytes));
}

void ranks_share(void *ranks, void *data, size_t bytes)
{
    struct ranks *r = ranks;

    if (r->tp_group)
        note(r, group_broadcast(r->tp_group, 0, data, bytes));
}

size_t ranks_scratch(const struct engine_options *opt, const struct model_config *c)
{
    size_t rows = opt->sched.max_batched_tokens, tp = at_least_one(opt->ranks.tp);

    if (rows > K_MAX_TOKENS)
        rows = K_MAX_TOKENS;
    return ((rows + tp) * c->hidden + tp) * sizeof(float);
}

int ranks_use(struct ranks *r, struct group *whole, uint32_t first, struct err *e)
{
    uint32_t member[GROUP_MAX_RANKS], dp = r->dp_size;
    uint32_t stage = first + r->stage * r->tp; /* of this instance's stage, the first rank */
    uint32_t zero = first - r->dp_rank * r->n + r->stage * r->tp; /* the same of instance 0 */
    uint32_t head = r->part.head_size, head_zero = r->dp_rank / head * head;
    int st = 0;

    r->whole = whole;
    for (uint32_t t = 0; t < r->tp; t++)
        member[t] = stage + t;
    if (r->tp > 1)
        st = group_part(&r->tp_group, whole, PART_TP, member, r->tp, e);
    for (uint32_t i = 0; i < r->part.ep_size && r->part.ep_size > 1; i++)
        member[i] = zero + i / r->tp * r->n + i % r->tp;
    if (st == 0 && r->part.ep_size > 1)
        st = group_part(&r->ep_group, whole, PART_EP, member, r->part.ep_size, e);
    for (uint32_t i = 0; i < head; i++)
        member[i] = zero + (head_zero + i) * r->n + r->place;
    if (st == 0 && head > 1 && dp > 1)
        st = group_part(&r->head_group, whole, PART_HEAD, member, head, e);
    return st;
}

void ranks_unuse(struct ranks *r)
{
    r->whole = r->tp_group = r->ep_group = r->head_group = NULL;
}

/* ---- meeting ---- */

/* What ranks must agree on before they talk: a hash of the options that shape a step. */
static uint64_t about(const struct engine_options *opt, uint32_t which)
{
    const struct engine_ranks *o = &opt->ranks;
    const struct sched_config *s = &opt->sched;
    const uint32_t numbers[] = { 1,
                                 which,
                                 at_least_one(o->pp),
                                 at_least_one(o->tp),
                                 at_least_one(o->dp_size),
                                 o->dp_rank,
                                 s->block_tokens,
                                 s->max_batched_tokens,
                                 s->max_seqs,
                                 s->max_model_len,
                                 s->n_blocks,
                                 opt->n_draft_tokens,
                                 (uint32_t)opt->model.dtype,
                                 o->expert_parallel,
                                 o->sequence_parallel,
                                 o->head_ranks };
    const struct hash_part parts[] = { { numbers, sizeof numbers },
                                       { o->stage_layers, sizeof o->stage_layers } };
    struct hash256 h;
    uint64_t out;

    hash_sha256(&h, parts, 2);
    memcpy(&out, h.b, sizeof out);
    return out;
}

static int join(struct group **out, const struct ranks *r, const struct engine_options *opt,
                uint32_t which, double op_seconds, size_t scratch, struct err *e)
{
    const struct engine_ranks *o = &opt->ranks;
    struct group_options g = {
        .rank = r->rank,
        .size = r->n,
        .host = o->host,
        .master_host = o->master_host,
        .master_port = o->master_port,
        .listen_fd = -1,
        .secret = o->secret,
        .about = about(opt, which),
        .meet_seconds = o->meet_seconds > 0 ? o->meet_seconds : MEET_SECONDS,
        .op_seconds = op_seconds,
        .scratch = scratch,
    };

    /* Both groups meet at one socket, one after the other. */
    if (r->rank == 0 && (g.listen_fd = dup(o->listen_fd)) < 0)
        return err_set(e, ERR_LIMIT, "the socket at which ranks meet: %s", strerror(errno));
    return group_join(out, &g, e);
}

static int meet(struct ranks *r, const struct engine_options *opt, const struct model_config *c,
                struct err *e)
{
    struct group *whole;
    int st;

    if (r->n == 1)
        return 0;
    if ((st = join(&r->pipe_group, r, opt, 0, LOAD_SECONDS, 0, e)) < 0)
        return st;
    /* data-parallel instances that share experts bring a group of their own */
    r->scratch = ranks_scratch(opt, c);
    if (r->tp == 1 || (opt->ranks.expert_parallel && opt->ranks.dp_size > 1))
        return 0;
    if ((st = join(&whole, r, opt, 1, r->step_seconds, r->scratch, e)) < 0)
        return st;
    r->owns_whole = true;
    return ranks_use(r, whole, 0, e);
}

static int prepare(struct ranks *r, const struct engine_options *opt, struct err *e)
{
    struct model_config c;
    int st;

    r->peers = (struct model_peers){ .arg = r,
                                     .all_reduce = all_reduce,
                                     .reduce_scatter = reduce_scatter,
                                     .all_gather = all_gather,
                                     .exchange = exchange,
                                     .exchange_head = exchange_head };
    if ((st = find_part(r, &opt->ranks, e)) < 0)
        return st;
    r->facts = calloc(r->n, sizeof *r->facts);
    r->clock_ahead = calloc(r->n, sizeof *r->clock_ahead);
    if (!r->facts || !r->clock_ahead)
        return err_set(e, ERR_NOMEM, "no memory for %u ranks", r->n);
    if (r->n == 1)
        return 0;
    if ((st = model_read_config(&c, opt->model.path, opt->model.hf_overrides, e)) < 0 ||
        (st = find_layers(r, &opt->ranks, c.n_layers, e)) < 0)
        return st;
    return meet(r, opt, &c, e);
}

int ranks_open(struct ranks **out, const struct engine_options *opt, struct err *e)
{
    struct ranks *r = calloc(1, sizeof *r);
    int st;

    if (!r)
        return err_set(e, ERR_NOMEM, "no memory for the ranks");
    st = prepare(r, opt, e);
    if (r->n > 1 && r->rank == 0 && opt->ranks.listen_fd >= 0)
        close(opt->ranks.listen_fd); /* the groups have copies */
    if (st < 0) {
        ranks_close(r);
        return st;
    }
    *out = r;
    return 0;
}

void ranks_abandon(struct ranks *r, const char *why)
{
    if (r->whole)
        group_abandon(r->whole, why);
    if (r->pipe_group)
        group_abandon(r->pipe_group, why);
}

void ranks_close(struct ranks *r)
{
    if (!r)
        return;
    group_leave(r->owns_whole ? r->whole : NULL);
    group_leave(r->pipe_group);
    free(r->facts);
    free(r->clock_ahead);
    free(r);
}

/* ---- facts ---- */

static void fill_facts(struct rank_facts *f, const struct err *e)
{
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "r");

    snprintf(f->why, sizeof f->why, "%.*s", RANKS_WHY_MAX - 1, f->status < 0 && e ? e->text : "");
    f->pid = getpid();
    if (!boot || !fgets(f->host, sizeof f->host, boot))
        snprintf(f->host, sizeof f->host, "unknown");
    if (boot)
        fclose(boot);
}

static void end_strings(struct rank_facts *f)
{
    f->why[sizeof f->why - 1] = '\0';
    f->host[sizeof f->host - 1] = '\0';
    f->fingerprint[sizeof f->fingerprint - 1] = '\0';
}

/* How far the clock of another host's rank is ahead: from the fastest of some questions. */
static int compare_clock(struct ranks *r, uint32_t other)
{
    double best = INFINITY;
    int st = 0;

    for (int i = 0; st == 0 && i < CLOCK_ROUNDS; i++) {
        double sent = clock_now(), there = 0, back;

        if ((st = group_send(r->pipe_group, other, TAG_CLOCK, &sent, sizeof sent)) < 0 ||
            (st = group_recv(r->pipe_group, other, TAG_CLOCK, &there, sizeof there)) < 0)
            break;
        back = clock_now();
        if (back - sent >= best)
            continue;
        best = back - sent;
        r->clock_ahead[other] = there - (sent + back) / 2;
    }
    return st;
}

static int answer_clock(struct ranks *r)
{
    int st = 0;

    for (int i = 0; st == 0 && i < CLOCK_ROUNDS; i++) {
        double now;

        if ((st = group_recv(r->pipe_group, 0, TAG_CLOCK, &now, sizeof now)) < 0)
            break;
        now = clock_now();
        st = group_send(r->pipe_group, 0, TAG_CLOCK, &now, sizeof now);
    }
    return st;
}

/* Ranks of rank 0's host have its clock. */
static int compare_clocks(struct ranks *r)
{
    int st = 0;

    if (r->clocks_compared)
        return 0;
    r->clocks_compared = true;
    if (r->rank > 0)
        return strcmp(r->facts[r->rank].host, r->facts[0].host) != 0 ? answer_clock(r) : 0;
    for (uint32_t i = 1; st == 0 && i < r->n; i++)
        if (strcmp(r->facts[i].host, r->facts[0].host) != 0)
            st = compare_clock(r, i);
    return st;
}

static uint32_t first_failed(const struct ranks *r)
{
    uint32_t i = 0;

    while (i < r->n && r->facts[i].status >= 0)
        i++;
    return i;
}

int ranks_gather(struct ranks *r, struct rank_facts *mine, struct err *e)
{
    char name[80];
    uint32_t bad;
    int st;

    fill_facts(mine, e);
    if (r->n == 1) {
        r->facts[0] = *mine;
        return mine->status;
    }
    st = group_all_gather(r->pipe_group, r->facts, mine, sizeof *mine);
    if (st < 0 && mine->status < 0)
        return mine->status;
    if (st < 0)
        return err_set(e, st, "%s", group_why(r->pipe_group));
    for (uint32_t i = 0; i < r->n; i++)
        end_strings(&r->facts[i]);
    bad = first_failed(r);
    if (bad == r->n)
        return (st = compare_clocks(r)) < 0 ? err_set(e, st, "%s", group_why(r->pipe_group)) : 0;
    group_barrier(r->pipe_group); /* nobody leaves before all know; then they may */
    if (bad == r->rank)
        return mine->status;
    return err_set(e, r->facts[bad].status, "%s: %s", ranks_name(r, bad, name, sizeof name),
                   r->facts[bad].why);
}

const char *ranks_name(const struct ranks *r, uint32_t rank, char *out, size_t room)
{
    snprintf(out, room, "rank %u (stage %u, place %u, pid %lld)", rank, rank / r->tp, rank % r->tp,
             (long long)r->facts[rank].pid);
    return out;
}
