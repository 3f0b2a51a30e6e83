#include "rig.h"

#include <string.h>

#include "sched/core.h"

struct sched_config rig_config(void)
{
    return (struct sched_config){ .block_tokens = 16,
                                  .n_blocks = 64,
                                  .max_model_len = 512,
                                  .max_batched_tokens = 64,
                                  .max_seqs = 8,
                                  .max_inflight = 1,
                                  .chunked_prefill = true,
                                  .prefix_caching = true };
}

void rig_open(struct rig *g, const struct sched_config *c)
{
    struct sched_config plain = rig_config();

    memset(g, 0, sizeof *g);
    assert_int_equal(sched_create(&g->s, c ? c : &plain, NULL), 0);
}

static void read_events(struct rig *g)
{
    struct sched_event e;

    while (sched_next_event(g->s, &e)) {
        struct told *t = &g->told[e.id];

        assert_true(e.id < RIG_MAX_IDS && !t->gone);
        switch (e.kind) {
        case SCHED_EV_START:
            assert_false(t->started || t->ended);
            t->started = true;
            t->n_cached = e.n_cached;
            t->n_external = e.n_external;
            break;
        case SCHED_EV_TOKEN:
            assert_true(t->started && !t->ended && e.out_index == t->n_tokens);
            t->token[t->n_tokens++] = e.token;
            t->last_finish = e.finish;
            break;
        case SCHED_EV_END:
            assert_false(t->ended);
            t->ended = true;
            t->finish = e.finish;
            t->stop_id = e.stop_id;
            t->n_cached = e.n_cached;
            t->n_external = e.n_external;
            t->n_preempted = e.n_preempted;
            t->held = e.held;
            break;
        case SCHED_EV_GONE:
            t->gone = true;
            break;
        }
    }
}

void rig_close(struct rig *g)
{
    struct sched_stats st = rig_stats(g);

    read_events(g);
    assert_int_equal(st.blocks_used, 0);
    assert_int_equal(g->s->index.n, 0);
    sched_destroy(g->s);
}

int rig_try(struct rig *g, struct ask a, sched_id *out, struct err *e)
{
    int32_t prompt[1024], eos = RIG_EOS;
    struct sampling p;
    struct sched_request r = { .prompt = prompt,
                               .n_prompt = a.n,
                               .sampling = &p,
                               .eos_ids = &eos,
                               .n_eos = 1,
                               .salt = a.salt,
                               .salt_len = a.salt ? strlen(a.salt) : 0,
                               .priority = a.priority,
                               .role = a.role,
                               .hit_multiple = a.hit_multiple,
                               .has_first = a.first_out != 0,
                               .first = a.first_out,
                               .n_output = a.n_output,
                               .give_back = a.give_back,
                               .pinned = a.pinned };

    assert_true(a.n <= 1024);
    for (uint32_t i = 0; i < a.n; i++)
        prompt[i] = a.first + (int32_t)i;
    sampling_init(&p);
    p.max_tokens = a.prompt_only ? 0 : a.max_tokens ? a.max_tokens : 4;
    p.min_tokens = a.min_tokens;
    p.ignore_eos = a.ignore_eos;
    p.prompt_only = a.prompt_only;
    p.prompt_logprobs = a.prompt_logprobs ? 0 : -1;
    p.stop_ids = a.stop_id ? &a.stop_id : NULL;
    p.n_stop_ids = a.stop_id ? 1 : 0;
    return sched_add(g->s, &r, g->now++, out, e);
}

sched_id rig_add(struct rig *g, struct ask a)
{
    sched_id id = 0;

    assert_int_equal(rig_try(g, a, &id, NULL), 0);
    g->told[id].n_tokens = a.n_output;
    return id;
}

const struct plan *rig_step(struct rig *g)
{
    return sched_step(g->s, g->now++);
}

void rig_commit(struct rig *g, const struct plan *p, int32_t token)
{
    struct step_choice choice[RIG_MAX_IDS] = { 0 };
    struct step_result r = { .seq = p->seq, .choice = choice };

    for (uint32_t i = 0; i < p->n_entries; i++) {
        choice[i].n = p->entries[i].sample;
        choice[i].token[0] = token;
    }
    sched_commit(g->s, &r, g->now++);
}

uint32_t rig_run(struct rig *g, int32_t token)
{
    const struct plan *p;
    uint32_t n = 0;

    for (; (p = rig_step(g)); n++)
        rig_commit(g, p, token);
    return n;
}

uint32_t rig_once(struct rig *g)
{
    const struct plan *p = rig_step(g);
    uint32_t n;

    assert_non_null(p);
    n = p->n_entries;
    rig_commit(g, p, RIG_TOKEN);
    return n;
}

const struct told *rig_told(struct rig *g, sched_id id)
{
    read_events(g);
    return &g->told[id];
}

struct sched_stats rig_stats(const struct rig *g)
{
    struct sched_stats st;

    sched_stats(g->s, &st);
    return st;
}

const char *rig_state(const struct rig *g, sched_id id)
{
    const struct req *r = req_index_find(&g->s->index, id);

    return r ? req_state_name(r->state) : "";
}

struct sched_pull rig_pull(struct rig *g)
{
    struct sched_pull p = { 0 };

    assert_int_equal(sched_next_pull(g->s, &p), 1);
    return p;
}

void rig_expect(const struct plan *p, uint32_t i, sched_id id, uint32_t start, uint32_t n,
                bool sample)
{
    assert_non_null(p);
    assert_true(i < p->n_entries);
    assert_int_equal(p->entries[i].id, id);
    assert_int_equal(p->entries[i].start, start);
    assert_int_equal(p->entries[i].n, n);
    assert_int_equal(p->entries[i].sample, sample);
}
