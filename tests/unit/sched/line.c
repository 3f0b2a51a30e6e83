#include "line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sched_config line_config(uint32_t n_stages, uint32_t budget, uint32_t max_model_len)
{
    return (struct sched_config){ .block_tokens = 128,
                                  .n_blocks = 16 * (max_model_len / 128 + 2),
                                  .max_model_len = max_model_len,
                                  .max_batched_tokens = budget,
                                  .max_seqs = 16,
                                  .max_inflight = n_stages + 1,
                                  .chunked_prefill = true,
                                  .prefix_caching = true,
                                  .chunks = { .policy = SCHED_CHUNK_OPTIMAL,
                                              .n_stages = n_stages,
                                              .smooth = 1,
                                              .min_chunk = 128,
                                              .timing = true,
                                              .max_fit = 30 } };
}

void line_open(struct line *l, const struct sched_config *c, const struct stage_time *truth)
{
    struct err e = { "" };

    memset(l, 0, sizeof *l);
    l->n_stages = c->chunks.n_stages;
    l->window = c->max_inflight;
    for (uint32_t i = 0; i < l->n_stages; i++)
        l->truth[i] = *truth;
    if (sched_create(&l->s, c, &e) < 0)
        fail_msg("%s", e.text);
}

void line_tell(struct line *l)
{
    assert_int_equal(sched_set_latency(l->s, l->truth, l->n_stages, NULL, NULL), 0);
}

static void read_all(struct line *l)
{
    struct sched_event ev;

    while (sched_next_event(l->s, &ev)) {
        assert_true(ev.id < LINE_IDS);
        if (ev.kind == SCHED_EV_TOKEN && ev.out_index == 0)
            l->first_token[ev.id] = l->now;
        l->n_ended += ev.kind == SCHED_EV_END;
    }
    while (sched_next_warning(l->s, &l->warning))
        l->n_warnings++;
}

void line_close(struct line *l)
{
    struct sched_stats st;

    read_all(l);
    sched_stats(l->s, &st);
    assert_int_equal(st.blocks_used, 0);
    assert_int_equal(st.n_running + st.n_waiting, 0);
    sched_destroy(l->s);
}

sched_id line_add(struct line *l, uint32_t n_prompt, int32_t first, uint32_t n_output)
{
    int32_t *prompt = malloc(n_prompt * sizeof *prompt);
    struct sampling p;
    struct sched_request r = { .prompt = prompt, .n_prompt = n_prompt, .sampling = &p };
    struct err e = { "" };
    sched_id id = 0;

    assert_non_null(prompt);
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = first + (int32_t)i;
    sampling_init(&p);
    p.max_tokens = n_output;
    if (sched_add(l->s, &r, l->now, &id, &e) < 0)
        fail_msg("%s", e.text);
    free(prompt);
    return id;
}

static double stage_ms(const struct stage_time *f, const struct plan *p)
{
    double area = 0, tokens = 0, history = 0;

    for (uint32_t i = 0; i < p->n_entries; i++) {
        double c = p->entries[i].n, h = p->entries[i].start;

        area += c * (h + f->kappa * c);
        tokens += c;
        history += h;
    }
    return f->a * area + fmax(f->b * tokens, f->w) + f->g * history + f->c;
}

static void note(struct line *l, const struct plan *p, double began, double ended)
{
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &p->entries[i];

        assert_true(l->n_log < LINE_LOG);
        l->log[l->n_log++] = (struct line_entry){
            p->seq, e->id, e->start, e->n, e->start >= e->n_prompt, began, ended
        };
    }
}

static void depart(struct line *l, const struct plan *p)
{
    struct trip *t = &l->trip[(l->first_trip + l->n_trips++) % l->window];
    double at = l->now;

    if (l->n_trips > l->most_trips)
        l->most_trips = l->n_trips;
    t->plan = p;
    for (uint32_t i = 0; i < l->n_stages; i++) {
        double off = 1 + l->noise * (l->n_noise++ % 2 ? 1 : -1);

        t->seconds[i] = stage_ms(&l->truth[i], p) * off / 1e3;
        l->free_at[i] = fmax(at, l->free_at[i]) + t->seconds[i];
        at = l->free_at[i];
    }
    t->end = at;
    note(l, p, l->now, t->end);
}

static void commit_first(struct line *l)
{
    struct step_choice choice[LINE_IDS] = { 0 };
    struct trip *t = &l->trip[l->first_trip];

    for (uint32_t i = 0; i < t->plan->n_entries; i++)
        choice[i] = (struct step_choice){ .n = t->plan->entries[i].sample, .token = { 5 } };
    if (!l->silent)
        sched_note_times(l->s, t->plan->seq, t->seconds, l->n_stages);
    sched_commit(l->s, &(struct step_result){ .seq = t->plan->seq, .choice = choice }, l->now);
    l->first_trip = (l->first_trip + 1) % l->window;
    l->n_trips--;
}

/* The next time at which something happens; now, if nothing will. */
static double next_event(const struct line *l)
{
    double at = INFINITY;

    if (l->n_trips > 0)
        at = l->trip[l->first_trip].end;
    if (l->free_at[0] > l->now)
        at = fmin(at, l->free_at[0]);
    return isfinite(at) ? at : l->now;
}

void line_run(struct line *l, uint32_t steps)
{
    while (steps > 0) {
        const struct plan *p = l->free_at[0] <= l->now ? sched_step(l->s, l->now) : NULL;

        read_all(l);
        if (p) {
            depart(l, p);
            steps--;
            continue;
        }
        if (l->n_trips == 0 && l->free_at[0] <= l->now)
            return;
        l->now = next_event(l);
        while (l->n_trips > 0 && l->trip[l->first_trip].end <= l->now)
            commit_first(l);
        read_all(l);
    }
}

struct sched_chunk_stats line_stats(const struct line *l)
{
    struct sched_stats st;

    sched_stats(l->s, &st);
    return st.chunks;
}

double line_prefill_ms(const struct line *l, uint64_t seq)
{
    const struct stage_time *f = &l->truth[0];
    double ms = f->c;

    for (uint32_t i = 0; i < l->n_log; i++)
        if (l->log[i].seq == seq && !l->log[i].decode) {
            double c = l->log[i].n, h = l->log[i].start;

            ms += f->a * c * (h + f->kappa * c) + f->b * c + f->g * h;
        }
    return ms;
}
