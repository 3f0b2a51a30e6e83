/* Plans as bytes. plan_wire_result.c has the results. */
#include "engine/plan_wire.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/cursor.h"
#include "engine/sample.h"
#include "model/config.h"

/* Places for requests: those of a step, and as many that were planned before and may come again. */
#define PLACES_A_SEQ 2
#define NO_PLACE     UINT32_MAX

/* Of an entry. */
enum {
    HAS_REQUEST = 1, /* in full */
    HAS_SAMPLE = 2,
    HAS_PROMPT_LOGPROBS = 4,
};

/* Numbers of an entry that come as they are. */
struct entry_head {
    uint32_t place, flags;
    uint32_t start, n, n_draft, want_drafts, out_index;
    uint32_t n_all; /* known tokens, of which those from n_known on follow, then the drafts */
    uint32_t n_known;
    uint32_t keep, n_blocks; /* blocks: those from `keep` on follow */
};

struct request_head {
    uint64_t id;
    uint32_t n_prompt, n_eos;
    float temperature, top_p, min_p, presence, frequency, repetition;
    uint64_t seed;
    uint32_t top_k, max_tokens, min_tokens;
    int32_t logprobs, prompt_logprobs;
    uint32_t ignore_eos, prompt_only;
    uint32_t n_stop, n_bias, n_allowed, n_want;
};

static uint32_t blocks_for(const struct plan_limits *l, uint64_t tokens)
{
    return (uint32_t)((tokens + l->block_tokens - 1) / l->block_tokens);
}

/* ---- writer ---- */

struct account {
    sched_id id;      /* 0: free */
    uint32_t next;    /* in its bucket, or among the free ones */
    uint64_t planned; /* seq of its last plan */
    uint32_t n_tokens, n_blocks;
    uint32_t *blocks; /* into plan_writer.blocks */
};

struct plan_writer {
    struct plan_limits l;
    uint32_t n_places, free;
    struct account *place;
    uint32_t *bucket;   /* [n_buckets] */
    uint32_t n_buckets; /* a power of two */
    uint32_t *blocks;
    uint32_t most_blocks;
    uint32_t
        *over; /* [n_places] places of requests that are over, which the others do not know yet */
    uint32_t n_over;
};

int plan_writer_create(struct plan_writer **out, const struct plan_limits *l, struct err *e)
{
    struct plan_writer *w = calloc(1, sizeof *w);

    if (w) {
        w->l = *l;
        w->n_places = PLACES_A_SEQ * l->max_seqs;
        w->most_blocks = blocks_for(l, l->max_model_len) + 1;
        for (w->n_buckets = 1; w->n_buckets < w->n_places; w->n_buckets *= 2)
            ;
        w->place = calloc(w->n_places, sizeof *w->place);
        w->bucket = malloc(w->n_buckets * sizeof *w->bucket);
        w->blocks = calloc((size_t)w->n_places * w->most_blocks, sizeof *w->blocks);
        w->over = calloc(w->n_places, sizeof *w->over);
    }
    if (!w || !w->place || !w->bucket || !w->blocks || !w->over) {
        plan_writer_destroy(w);
        return err_set(e, ERR_NOMEM, "no memory to account for %u requests", l->max_seqs);
    }
    for (uint32_t i = 0; i < w->n_buckets; i++)
        w->bucket[i] = NO_PLACE;
    for (uint32_t i = 0; i < w->n_places; i++)
        w->place[i] = (struct account){ .next = i + 1 < w->n_places ? i + 1 : NO_PLACE,
                                        .blocks = w->blocks + (size_t)i * w->most_blocks };
    *out = w;
    return 0;
}

void plan_writer_destroy(struct plan_writer *w)
{
    if (!w)
        return;
    free(w->place);
    free(w->bucket);
    free(w->blocks);
    free(w->over);
    free(w);
}

static uint32_t *bucket_of(struct plan_writer *w, sched_id id)
{
    return &w->bucket[id & (w->n_buckets - 1)];
}

static uint32_t find(struct plan_writer *w, sched_id id)
{
    uint32_t i = *bucket_of(w, id);

    while (i != NO_PLACE && w->place[i].id != id)
        i = w->place[i].next;
    return i;
}

static void release(struct plan_writer *w, uint32_t i)
{
    struct account *a = &w->place[i];
    uint32_t *at = bucket_of(w, a->id);

    while (*at != i)
        at = &w->place[*at].next;
    *at = a->next;
    a->id = 0;
    a->next = w->free;
    w->free = i;
}

void plan_writer_forget(struct plan_writer *w, sched_id id)
{
    uint32_t i = find(w, id);

    if (i == NO_PLACE)
        return;
    release(w, i);
    if (w->n_over < w->n_places) /* else it is told when its place is used again */
        w->over[w->n_over++] = i;
}

/* There are twice as many places as a step has entries, so one is not of this step. */
static uint32_t oldest(const struct plan_writer *w)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < w->n_places; i++)
        if (w->place[i].planned < w->place[best].planned)
            best = i;
    return best;
}

static uint32_t take_place(struct plan_writer *w, sched_id id)
{
    uint32_t i, *bucket = bucket_of(w, id);

    if (w->free == NO_PLACE)
        release(w, oldest(w));
    i = w->free;
    w->free = w->place[i].next;
    w->place[i].id = id;
    w->place[i].n_tokens = w->place[i].n_blocks = 0;
    w->place[i].next = *bucket;
    *bucket = i;
    return i;
}

static void put(struct buf *b, const void *data, size_t n, size_t size)
{
    if (n)
        buf_append(b, data, n * size);
}

static void write_request(struct buf *b, const struct plan_entry *en)
{
    const struct sampling *s = en->sampling;
    struct request_head h;

    memset(&h, 0, sizeof h); /* no byte of it is left to chance */
    h.id = en->id;
    h.n_prompt = en->n_prompt;
    h.n_eos = en->n_eos;
    h.temperature = s->temperature;
    h.top_p = s->top_p;
    h.min_p = s->min_p;
    h.presence = s->presence_penalty;
    h.frequency = s->frequency_penalty;
    h.repetition = s->repetition_penalty;
    h.seed = s->seed;
    h.top_k = s->top_k;
    h.max_tokens = s->max_tokens;
    h.min_tokens = s->min_tokens;
    h.logprobs = s->logprobs;
    h.prompt_logprobs = s->prompt_logprobs;
    h.ignore_eos = s->ignore_eos;
    h.prompt_only = s->prompt_only;
    h.n_stop = s->n_stop_ids;
    h.n_bias = s->n_bias;
    h.n_allowed = s->n_allowed;
    h.n_want = s->n_want;
    put(b, &h, 1, sizeof h);
    put(b, en->eos_ids, en->n_eos, sizeof *en->eos_ids);
    put(b, s->stop_ids, s->n_stop_ids, sizeof *s->stop_ids);
    put(b, s->bias, s->n_bias, sizeof *s->bias);
    put(b, s->allowed, s->n_allowed, sizeof *s->allowed);
    put(b, s->want_ids, s->n_want, sizeof *s->want_ids);
}

/* How many of its blocks the others know. After a preemption they are all others, mostly. */
static uint32_t blocks_kept(const struct account *a, const struct plan_entry *en)
{
    uint32_t n = a->n_blocks < en->n_blocks ? a->n_blocks : en->n_blocks, i = 0;

    if (memcmp(a->blocks, en->blocks, n * sizeof *en->blocks) == 0)
        return n;
    while (a->blocks[i] == en->blocks[i])
        i++;
    return i;
}

static void write_entry(struct plan_writer *w, const struct plan_entry *en, uint64_t seq,
                        struct buf *b)
{
    uint32_t i = find(w, en->id);
    bool known = i != NO_PLACE;
    struct account *a = &w->place[known ? i : (i = take_place(w, en->id))];
    struct entry_head h = {
        .place = i,
        .flags = (known ? 0u : HAS_REQUEST) | (en->sample ? HAS_SAMPLE : 0u) |
                 (en->prompt_logprobs ? HAS_PROMPT_LOGPROBS : 0u),
        .start = en->start,
        .n = en->n,
        .n_draft = en->n_draft,
        .want_drafts = en->want_drafts,
        .out_index = en->out_index,
        .n_all = en->n_all,
        .n_known = a->n_tokens,
        .keep = blocks_kept(a, en),
        .n_blocks = en->n_blocks,
    };

    assert(en->n_blocks <= w->most_blocks && a->n_tokens <= en->n_all);
    put(b, &h, 1, sizeof h);
    if (!known)
        write_request(b, en);
    put(b, en->all_tokens + h.n_known, en->n_all - h.n_known + en->n_draft, sizeof(int32_t));
    put(b, en->blocks + h.keep, en->n_blocks - h.keep, sizeof *en->blocks);
    memcpy(a->blocks + h.keep, en->blocks + h.keep, (en->n_blocks - h.keep) * sizeof *a->blocks);
    a->n_tokens = en->n_all;
    a->n_blocks = en->n_blocks;
    a->planned = seq;
}

/* Places of requests that are over follow, then the entries. */
struct plan_head {
    uint64_t seq;
    uint32_t n_entries, n_prefill_tokens;
    uint32_t n_over, unused;
};

int plan_write(struct plan_writer *w, const struct plan *p, struct buf *out)
{
    const struct plan_head h = { .seq = p->seq,
                                 .n_entries = p->n_entries,
                                 .n_prefill_tokens = p->n_prefill_tokens,
                                 .n_over = w->n_over };

    put(out, &h, 1, sizeof h);
    put(out, w->over, w->n_over, sizeof *w->over);
    w->n_over = 0;
    for (uint32_t i = 0; i < p->n_entries; i++) { /* those that are known stay so */
        uint32_t at = find(w, p->entries[i].id);

        if (at != NO_PLACE)
            w->place[at].planned = p->seq;
    }
    for (uint32_t i = 0; i < p->n_entries; i++)
        write_entry(w, &p->entries[i], p->seq, out);
    return out->status;
}

/* ---- reader ---- */

/* A request as a rank knows it. */
struct known {
    sched_id id; /* 0: free */
    uint64_t planned;
    struct sampling sampling;
    int32_t *eos;
    uint32_t n_eos, n_prompt;
    int32_t *tokens;
    uint32_t n_tokens, most_tokens; /* most_tokens: with drafts */
    uint32_t *blocks;
    uint32_t n_blocks, most_blocks;
};

struct plan_reader {
    struct plan_limits l;
    uint32_t n_places;
    struct known *place;
    struct plan_entry *entry; /* [max_seqs] */
    struct plan plan;
};

int plan_reader_create(struct plan_reader **out, const struct plan_limits *l, struct err *e)
{
    struct plan_reader *r = calloc(1, sizeof *r);

    if (r) {
        r->l = *l;
        r->n_places = PLACES_A_SEQ * l->max_seqs;
        r->place = calloc(r->n_places, sizeof *r->place);
        r->entry = calloc(l->max_seqs, sizeof *r->entry);
    }
    if (!r || !r->place || !r->entry) {
        plan_reader_destroy(r);
        return err_set(e, ERR_NOMEM, "no memory for plans of %u requests", l->max_seqs);
    }
    *out = r;
    return 0;
}

static void forget(struct known *k)
{
    sampling_finish(&k->sampling);
    free(k->eos);
    free(k->tokens);
    free(k->blocks);
    *k = (struct known){ 0 };
}

void plan_reader_destroy(struct plan_reader *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; r->place && i < r->n_places; i++)
        forget(&r->place[i]);
    free(r->place);
    free(r->entry);
    free(r);
}

static bool in_vocab(const struct plan_reader *r, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= r->l.vocab)
            return false;
    return true;
}

/* A list of n ids, allocated. n is bounded by the caller. */
static int read_ids(const struct plan_reader *r, struct cursor *c, int32_t **out, uint32_t n)
{
    int st = cursor_copy(c, (void **)out, n, sizeof **out);

    return st == 0 && !in_vocab(r, *out, n) ? ERR_BADMSG : st;
}

static int read_bias(const struct plan_reader *r, struct cursor *c, struct sampling *s, uint32_t n)
{
    int st = cursor_copy(c, (void **)&s->bias, n, sizeof *s->bias);

    s->n_bias = st == 0 ? n : 0;
    for (uint32_t i = 0; i < s->n_bias; i++)
        if (!in_vocab(r, &s->bias[i].id, 1))
            return ERR_BADMSG;
    return st;
}

static int read_lists(const struct plan_reader *r, struct cursor *c, struct known *k,
                      const struct request_head *h)
{
    struct sampling *s = &k->sampling;
    int st;

    if ((st = read_ids(r, c, &k->eos, h->n_eos)) < 0 ||
        (st = read_ids(r, c, &s->stop_ids, h->n_stop)) < 0 ||
        (st = read_bias(r, c, s, h->n_bias)) < 0 ||
        (h->n_allowed && (st = read_ids(r, c, &s->allowed, h->n_allowed)) < 0) ||
        (st = read_ids(r, c, &s->want_ids, h->n_want)) < 0)
        return st;
    k->n_eos = h->n_eos;
    s->n_stop_ids = h->n_stop;
    s->n_allowed = h->n_allowed;
    s->n_want = h->n_want;
    return 0;
}

static bool request_fits(const struct plan_reader *r, const struct request_head *h)
{
    return h->id != 0 && h->n_prompt > 0 && h->n_prompt <= r->l.max_model_len &&
           h->n_eos <= MODEL_MAX_EOS && h->n_stop + (uint64_t)h->n_bias <= SAMPLE_MAX_BIAS &&
           h->n_want <= SAMPLE_MAX_BIAS && h->n_allowed <= r->l.vocab && h->logprobs >= -1 &&
           h->logprobs <= K_MAX_TOP && h->prompt_logprobs >= -1 && h->prompt_logprobs <= K_MAX_TOP;
}

static int read_request(struct plan_reader *r, struct cursor *c, struct known *k)
{
    struct request_head h;
    uint64_t most;

    if (cursor_get(c, &h, sizeof h) < 0 || !request_fits(r, &h))
        return ERR_BADMSG;
    forget(k);
    sampling_init(&k->sampling);
    k->id = h.id;
    k->n_prompt = h.n_prompt;
    k->sampling.temperature = h.temperature;
    k->sampling.top_p = h.top_p;
    k->sampling.min_p = h.min_p;
    k->sampling.presence_penalty = h.presence;
    k->sampling.frequency_penalty = h.frequency;
    k->sampling.repetition_penalty = h.repetition;
    k->sampling.seed = h.seed;
    k->sampling.top_k = h.top_k;
    k->sampling.max_tokens = h.max_tokens;
    k->sampling.min_tokens = h.min_tokens;
    k->sampling.logprobs = h.logprobs;
    k->sampling.prompt_logprobs = h.prompt_logprobs;
    k->sampling.ignore_eos = h.ignore_eos;
    k->sampling.prompt_only = h.prompt_only;
    most = (uint64_t)h.n_prompt + h.max_tokens;
    if (most > r->l.max_model_len)
        most = r->l.max_model_len;
    k->most_tokens = (uint32_t)most + SPEC_MAX_TOKENS;
    k->most_blocks = blocks_for(&r->l, most) + 1;
    k->tokens = malloc(k->most_tokens * sizeof *k->tokens);
    k->blocks = malloc(k->most_blocks * sizeof *k->blocks);
    return k->tokens && k->blocks ? read_lists(r, c, k, &h) : ERR_NOMEM;
}

static int read_tokens(const struct plan_reader *r, struct cursor *c, struct known *k,
                       const struct entry_head *h)
{
    uint64_t end = (uint64_t)h->n_all + h->n_draft;

    if (h->n_known != k->n_tokens || h->n_all < k->n_tokens || end > k->most_tokens ||
        cursor_get(c, k->tokens + h->n_known, (end - h->n_known) * sizeof *k->tokens) < 0 ||
        !in_vocab(r, k->tokens + h->n_known, (uint32_t)(end - h->n_known)))
        return ERR_BADMSG;
    k->n_tokens = h->n_all;
    return 0;
}

static int read_blocks(const struct plan_reader *r, struct cursor *c, struct known *k,
                       const struct entry_head *h)
{
    if (h->keep > k->n_blocks || h->n_blocks < h->keep || h->n_blocks > k->most_blocks ||
        cursor_get(c, k->blocks + h->keep, (h->n_blocks - h->keep) * sizeof *k->blocks) < 0)
        return ERR_BADMSG;
    for (uint32_t i = h->keep; i < h->n_blocks; i++)
        if (k->blocks[i] >= r->l.n_blocks)
            return ERR_BADMSG;
    k->n_blocks = h->n_blocks;
    return 0;
}

/* Do its numbers fit each other and what is known? */
static bool entry_fits(const struct plan_reader *r, const struct known *k,
                       const struct entry_head *h)
{
    uint64_t end = (uint64_t)h->start + h->n;
    bool sample = h->flags & HAS_SAMPLE;

    return h->n > 0 && h->n_draft < h->n && h->n_draft <= SPEC_MAX_TOKENS &&
           end - h->n_draft <= h->n_all && h->n_all >= k->n_prompt &&
           end <= (uint64_t)h->n_blocks * r->l.block_tokens && end <= r->l.max_model_len &&
           (!sample || end - h->n_draft == h->n_all) && (sample || h->n_draft == 0) &&
           h->want_drafts <= (sample ? SPEC_MAX_TOKENS : 0u) &&
           h->out_index == h->n_all - k->n_prompt;
}

static struct plan_entry entry_of(const struct known *k, const struct entry_head *h)
{
    return (struct plan_entry){
        .id = k->id,
        .start = h->start,
        .n = h->n,
        .n_draft = h->n_draft,
        .want_drafts = h->want_drafts,
        .tokens = k->tokens + h->start,
        .blocks = k->blocks,
        .n_blocks = k->n_blocks,
        .sample = h->flags & HAS_SAMPLE,
        .out_index = h->out_index,
        .prompt_logprobs = h->flags & HAS_PROMPT_LOGPROBS,
        .sampling = &k->sampling,
        .all_tokens = k->tokens,
        .n_prompt = k->n_prompt,
        .n_all = k->n_tokens,
        .eos_ids = k->eos,
        .n_eos = k->n_eos,
    };
}

static int read_entry(struct plan_reader *r, struct cursor *c, struct plan *p)
{
    struct entry_head h;
    struct known *k;
    int st = 0;

    if (cursor_get(c, &h, sizeof h) < 0 || h.place >= r->n_places)
        return ERR_BADMSG;
    k = &r->place[h.place];
    if (k->planned == p->seq) /* named twice */
        return ERR_BADMSG;
    if (h.flags & HAS_REQUEST)
        st = read_request(r, c, k);
    else if (k->id == 0)
        st = ERR_BADMSG;
    if (st < 0 || (st = read_tokens(r, c, k, &h)) < 0 || (st = read_blocks(r, c, k, &h)) < 0)
        return st;
    if (!entry_fits(r, k, &h) || p->n_tokens + (uint64_t)h.n > r->l.max_tokens)
        return ERR_BADMSG;
    k->planned = p->seq;
    r->entry[p->n_entries++] = entry_of(k, &h);
    p->n_tokens += h.n;
    return 0;
}

static int read_over(struct plan_reader *r, struct cursor *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t place;

        if (cursor_get(c, &place, sizeof place) < 0 || place >= r->n_places)
            return ERR_BADMSG;
        forget(&r->place[place]);
    }
    return 0;
}

int plan_read(struct plan_reader *r, const void *bytes, size_t n, const struct plan **out)
{
    struct cursor c = { bytes, n };
    struct plan_head h;
    int st = cursor_get(&c, &h, sizeof h);

    if (st < 0 || h.n_entries > r->l.max_seqs || h.seq == 0 || h.seq == r->plan.seq)
        return ERR_BADMSG;
    r->plan =
        (struct plan){ .seq = h.seq, .n_prefill_tokens = h.n_prefill_tokens, .entries = r->entry };
    st = read_over(r, &c, h.n_over);
    for (uint32_t i = 0; st == 0 && i < h.n_entries; i++)
        st = read_entry(r, &c, &r->plan);
    if (st == 0 && c.n > 0)
        st = ERR_BADMSG;
    if (st == 0)
        *out = &r->plan;
    return st;
}
