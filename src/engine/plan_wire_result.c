/* Results as bytes. */
#include <math.h>

#include "base/status.h"
#include "engine/cursor.h"
#include "engine/plan_wire.h"
#include "engine/sample.h"

/* Most bytes of a result: log-probabilities of 16,384 prompt tokens, 64 each, are 9 MB. */
#define RESULT_MAX_BYTES (64u << 20)

struct result_head {
    uint64_t seq;
    uint32_t n_entries, n_records, n_times, unused;
};

/* Log-probabilities of one position; its top and wanted ones follow. */
struct record {
    uint32_t entry;
    uint32_t of_prompt; /* else of the output */
    uint32_t index;     /* position, or index of the output */
    int32_t id;
    float logprob;
    uint32_t rank;
    uint32_t n_top, n_want;
};

void result_writer_init(struct result_writer *w)
{
    *w = (struct result_writer){ 0 };
    buf_init(&w->b, RESULT_MAX_BYTES);
}

void result_writer_finish(struct result_writer *w)
{
    buf_finish(&w->b);
}

void result_begin(struct result_writer *w, const struct plan *p)
{
    static const struct result_head none;

    buf_reset(&w->b);
    buf_append(&w->b, &none, sizeof none);
    w->plan = p;
    w->n_records = 0;
}

static void add_record(struct result_writer *w, const struct plan_entry *en, bool of_prompt,
                       uint32_t index, const struct k_sample *row, const struct k_choice *c)
{
    const struct record r = {
        .entry = (uint32_t)(en - w->plan->entries),
        .of_prompt = of_prompt,
        .index = index,
        .id = c->id,
        .logprob = c->logprob,
        .rank = c->rank,
        .n_top = c->n_top,
        .n_want = row->n_want,
    };

    buf_append(&w->b, &r, sizeof r);
    if (r.n_top) {
        buf_append(&w->b, c->top_id, r.n_top * sizeof *c->top_id);
        buf_append(&w->b, c->top_logprob, r.n_top * sizeof *c->top_logprob);
    }
    if (r.n_want)
        buf_append(&w->b, row->want_out, r.n_want * sizeof *row->want_out);
    w->n_records++;
}

static void on_prompt(void *arg, const struct plan_entry *en, uint32_t position,
                      const struct k_sample *row, const struct k_choice *c)
{
    add_record(arg, en, true, position, row, c);
}

static void on_token(void *arg, const struct plan_entry *en, uint32_t out_index,
                     const struct k_sample *row, const struct k_choice *c)
{
    if (en->sampling->logprobs >= 0 || en->sampling->n_want > 0)
        add_record(arg, en, false, out_index, row, c);
}

struct worker_sink result_sink(struct result_writer *w)
{
    return (struct worker_sink){ .prompt = on_prompt, .token = on_token, .arg = w };
}

int result_end(struct result_writer *w, const struct step_choice *choice,
               const struct pipe_time *times, uint32_t n_times)
{
    const struct result_head h = {
        .seq = w->plan->seq,
        .n_entries = w->plan->n_entries,
        .n_records = w->n_records,
        .n_times = n_times,
    };

    for (uint32_t i = 0; i < h.n_entries; i++) {
        const struct step_choice *c = &choice[i];
        const uint32_t n[2] = { c->n, c->n_draft };

        buf_append(&w->b, n, sizeof n);
        if (c->n)
            buf_append(&w->b, c->token, c->n * sizeof *c->token);
        if (c->n_draft)
            buf_append(&w->b, c->draft, c->n_draft * sizeof *c->draft);
    }
    if (n_times)
        buf_append(&w->b, times, n_times * sizeof *times);
    if (w->b.status == 0)
        memcpy(w->b.data, &h, sizeof h);
    return w->b.status;
}

int result_seq(uint64_t *out, const void *bytes, size_t n)
{
    struct cursor c = { bytes, n };
    struct result_head h;

    if (cursor_get(&c, &h, sizeof h) < 0)
        return ERR_BADMSG;
    *out = h.seq;
    return 0;
}

static bool record_fits(const struct plan *p, const struct record *r)
{
    const struct plan_entry *en;

    if (r->entry >= p->n_entries || r->n_top > K_MAX_TOP)
        return false;
    en = &p->entries[r->entry];
    if (r->of_prompt)
        return en->prompt_logprobs && r->n_want == 0 && r->index > en->start &&
               r->index <= en->start + en->n && r->index < en->n_prompt;
    return en->sample && r->n_want == en->sampling->n_want && r->index >= en->out_index &&
           r->index - en->out_index <= en->n_draft;
}

static int read_record(struct cursor *c, const struct plan *p, uint32_t vocab,
                       const struct worker_sink *sink)
{
    float want[SAMPLE_MAX_BIAS];
    struct k_choice choice = { 0 };
    struct k_sample row = { .want_out = want };
    const struct plan_entry *en;
    struct record r;

    if (cursor_get(c, &r, sizeof r) < 0 || !record_fits(p, &r) || r.n_want > SAMPLE_MAX_BIAS ||
        cursor_get(c, choice.top_id, r.n_top * sizeof *choice.top_id) < 0 ||
        cursor_get(c, choice.top_logprob, r.n_top * sizeof *choice.top_logprob) < 0 ||
        cursor_get(c, want, r.n_want * sizeof *want) < 0)
        return ERR_BADMSG;
    for (uint32_t i = 0; i < r.n_top; i++)
        if ((uint32_t)choice.top_id[i] >= vocab)
            return ERR_BADMSG;
    if ((uint32_t)r.id >= vocab)
        return ERR_BADMSG;
    en = &p->entries[r.entry];
    choice.id = r.id;
    choice.logprob = r.logprob;
    choice.rank = r.rank;
    choice.n_top = r.n_top;
    row.n_want = r.n_want;
    row.want_ids = en->sampling->want_ids;
    (r.of_prompt ? sink->prompt : sink->token)(sink->arg, en, r.index, &row, &choice);
    return 0;
}

static bool ids_fit(const int32_t *ids, uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)ids[i] >= vocab)
            return false;
    return true;
}

/* What the scheduler relies on: a draft that was kept is the token in its place. */
static int read_choice(struct cursor *c, const struct plan_entry *en, uint32_t vocab,
                       struct step_choice *out)
{
    const int32_t *draft = en->tokens + en->n - en->n_draft;
    uint32_t n[2];

    if (cursor_get(c, n, sizeof n) < 0 || n[0] > (en->sample ? 1 + en->n_draft : 0) ||
        n[0] < en->sample || n[1] > en->want_drafts || n[1] > SPEC_MAX_TOKENS)
        return ERR_BADMSG;
    out->n = n[0];
    out->n_draft = n[1];
    if (cursor_get(c, out->token, n[0] * sizeof *out->token) < 0 ||
        cursor_get(c, out->draft, n[1] * sizeof *out->draft) < 0 ||
        !ids_fit(out->token, n[0], vocab) || !ids_fit(out->draft, n[1], vocab))
        return ERR_BADMSG;
    for (uint32_t i = 0; i + 1 < n[0]; i++)
        if (out->token[i] != draft[i])
            return ERR_BADMSG;
    return 0;
}

int result_read(const void *bytes, size_t n, const struct plan *p, uint32_t vocab,
                struct step_choice *choice, const struct worker_sink *sink, struct pipe_time *times,
                uint32_t *n_times)
{
    struct cursor c = { bytes, n };
    struct result_head h;
    int st = cursor_get(&c, &h, sizeof h);

    if (st < 0 || h.seq != p->seq || h.n_entries != p->n_entries || h.n_times > ENGINE_MAX_STAGES)
        return ERR_BADMSG;
    for (uint32_t i = 0; st == 0 && i < h.n_records; i++)
        st = read_record(&c, p, vocab, sink);
    for (uint32_t i = 0; st == 0 && i < h.n_entries; i++)
        st = read_choice(&c, &p->entries[i], vocab, &choice[i]);
    if (st < 0 || cursor_get(&c, times, h.n_times * sizeof *times) < 0 || c.n > 0)
        return ERR_BADMSG;
    for (uint32_t i = 0; i < h.n_times; i++)
        if (!isfinite(times[i].start) || !isfinite(times[i].end))
            return ERR_BADMSG;
    *n_times = h.n_times;
    return 0;
}
