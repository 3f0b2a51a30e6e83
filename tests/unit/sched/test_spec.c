/* Drafts: what a step verifies, what is kept of it, and who pays for it. */
#include "rig.h"

#include <string.h>

#include "sched/core.h"

static struct sched_config config(uint32_t n_draft_tokens)
{
    struct sched_config c = rig_config();

    c.n_draft_tokens = n_draft_tokens;
    return c;
}

/* Commits a plan of one entry: its tokens, then its guesses. */
static void commit(struct rig *g, const struct plan *p, uint32_t n, const int32_t *token,
                   uint32_t n_draft, const int32_t *draft)
{
    struct step_choice c = { .n = n, .n_draft = n_draft };

    assert_int_equal(p->n_entries, 1);
    memcpy(c.token, token, n * sizeof *token);
    memcpy(c.draft, draft, n_draft * sizeof *draft);
    sched_commit(g->s, &(struct step_result){ .seq = p->seq, .choice = &c }, g->now++);
}

#define IDS(...)                                                                                   \
    (const int32_t[])                                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* One token to everybody, none of the drafts accepted, and guesses as many as are wanted. */
static void commit_all(struct rig *g, const struct plan *p)
{
    struct step_choice c[8] = { 0 };

    for (uint32_t i = 0; i < p->n_entries; i++) {
        c[i].n = p->entries[i].sample;
        c[i].token[0] = RIG_TOKEN;
        c[i].n_draft = p->entries[i].want_drafts;
        for (uint32_t k = 0; k < c[i].n_draft; k++)
            c[i].draft[k] = RIG_TOKEN + 1;
    }
    sched_commit(g->s, &(struct step_result){ .seq = p->seq, .choice = c }, g->now++);
}

static void accepted_drafts_are_output(void **state)
{
    struct sched_config c = config(3);
    const struct plan *p;
    const struct told *t;
    struct rig g;
    sched_id a;

    (void)state;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 10, .max_tokens = 20 });
    p = rig_step(&g);
    rig_expect(p, 0, a, 0, 10, true);
    assert_int_equal(p->entries[0].n_draft, 0);
    assert_int_equal(p->entries[0].want_drafts, 3);
    commit(&g, p, 1, IDS(100), 3, IDS(101, 102, 103));

    p = rig_step(&g);
    rig_expect(p, 0, a, 10, 4, true);
    assert_int_equal(p->n_tokens, 4);
    assert_int_equal(p->n_prefill_tokens, 0);
    assert_int_equal(p->entries[0].n_draft, 3);
    assert_int_equal(p->entries[0].n_all, 11);
    assert_int_equal(p->entries[0].out_index, 1);
    assert_memory_equal(p->entries[0].tokens, IDS(100, 101, 102, 103), 4 * sizeof(int32_t));
    commit(&g, p, 3, IDS(101, 102, 200), 2, IDS(201, 202)); /* the third was wrong */

    p = rig_step(&g);
    rig_expect(p, 0, a, 13, 3, true);
    assert_int_equal(p->entries[0].out_index, 4);
    assert_memory_equal(p->entries[0].tokens, IDS(200, 201, 202), 3 * sizeof(int32_t));
    commit(&g, p, 1, IDS(300), 0, IDS(0)); /* all wrong, and no guess */

    p = rig_step(&g);
    rig_expect(p, 0, a, 14, 1, true);
    commit(&g, p, 1, IDS(RIG_EOS), 0, IDS(0));
    t = rig_told(&g, a);
    assert_int_equal(t->n_tokens, 6);
    assert_memory_equal(t->token, IDS(100, 101, 102, 200, 300, RIG_EOS), 6 * sizeof(int32_t));
    assert_int_equal(t->finish, FINISH_STOP);
    rig_close(&g);
}

/* An end inside of what was accepted: what follows it is not output. */
static void an_end_cuts_the_run(void **state)
{
    static const struct {
        struct ask ask;
        uint32_t n_tokens;
        enum finish finish;
        int32_t stop_id;
    } cases[] = {
        { { .n = 10, .max_tokens = 20 }, 3, FINISH_STOP, -1 },
        { { .n = 10, .max_tokens = 20, .stop_id = 101 }, 2, FINISH_STOP, 101 },
        { { .n = 10, .max_tokens = 20, .ignore_eos = true, .stop_id = 103 }, 4, FINISH_STOP, 103 },
        { { .n = 10, .max_tokens = 20, .min_tokens = 3, .stop_id = 103 }, 4, FINISH_STOP, 103 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sched_config c = config(4);
        const struct plan *p;
        const struct told *t;
        struct rig g;
        sched_id a;

        rig_open(&g, &c);
        a = rig_add(&g, cases[i].ask);
        p = rig_step(&g);
        commit(&g, p, 1, IDS(100), 4, IDS(101, RIG_EOS, 103, 104));
        p = rig_step(&g);
        commit(&g, p, 5, IDS(101, RIG_EOS, 103, 104, 105), 4, IDS(1, 1, 1, 1));
        t = rig_told(&g, a);
        assert_true(t->gone);
        assert_int_equal(t->n_tokens, cases[i].n_tokens);
        assert_int_equal(t->finish, cases[i].finish);
        assert_int_equal(t->last_finish, cases[i].finish);
        assert_int_equal(t->stop_id, cases[i].stop_id);
        rig_close(&g);
    }
}

/* Never more drafts than output tokens are left for, nor guesses than could be used. */
static void max_tokens_bounds_the_drafts(void **state)
{
    struct sched_config c = config(4);
    const struct plan *p;
    struct rig g;
    sched_id a;

    (void)state;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 10, .max_tokens = 5 });
    p = rig_step(&g);
    assert_int_equal(p->entries[0].want_drafts, 3);
    commit(&g, p, 1, IDS(100), 3, IDS(101, 102, 103));
    p = rig_step(&g);
    assert_int_equal(p->entries[0].n_draft, 3);
    assert_int_equal(p->entries[0].want_drafts, 2);
    commit(&g, p, 3, IDS(101, 102, 200), 2, IDS(201, 202)); /* one token is left */
    p = rig_step(&g);
    assert_int_equal(p->entries[0].n_draft, 0);
    assert_int_equal(p->entries[0].want_drafts, 0);
    commit(&g, p, 1, IDS(300), 0, IDS(0));
    assert_int_equal(rig_told(&g, a)->n_tokens, 5);
    assert_int_equal(rig_told(&g, a)->finish, FINISH_LENGTH);
    rig_close(&g);
}

/* The budget holds everybody's known token before anybody's drafts. */
static void known_tokens_come_before_drafts(void **state)
{
    struct sched_config c = config(4);
    const struct plan *p;
    struct rig g;

    (void)state;
    c.max_batched_tokens = 6;
    rig_open(&g, &c);
    for (int i = 0; i < 3; i++)
        rig_add(&g, (struct ask){ .n = 1, .first = 10 * i, .max_tokens = 10 });
    commit_all(&g, rig_step(&g));
    p = rig_step(&g);
    assert_int_equal(p->n_entries, 3);
    assert_int_equal(p->n_tokens, 6);
    assert_int_equal(p->entries[0].n_draft, 3);
    assert_int_equal(p->entries[1].n_draft, 0);
    assert_int_equal(p->entries[2].n_draft, 0);
    commit_all(&g, p);
    while ((p = rig_step(&g)))
        commit_all(&g, p);
    rig_close(&g);
}

/* With the pool nearly full drafts are left out: the block that the older could use for them is the one
 * that the younger needs. */
static void nobody_gives_way_to_a_draft(void **state)
{
    struct sched_config c = config(2);
    const struct plan *p;
    struct rig g;
    sched_id a, b;

    (void)state;
    c.n_blocks = 3;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 13, .max_tokens = 40 });
    b = rig_add(&g, (struct ask){ .n = 15, .first = 100, .max_tokens = 16 });
    commit_all(&g, rig_step(&g));
    p = rig_step(&g);
    rig_expect(p, 0, a, 13, 3, true); /* its drafts have room in the block that it has */
    rig_expect(p, 1, b, 15, 1, true); /* without a block more: none */
    commit_all(&g, p);
    p = rig_step(&g);
    assert_int_equal(p->n_entries, 2);
    rig_expect(p, 1, b, 16, 3, true);
    rig_commit(&g, p, RIG_EOS);
    assert_int_equal(rig_stats(&g).preemptions, 0);
    rig_close(&g);
}

static void a_preempted_request_has_no_drafts(void **state)
{
    struct sched_config c = config(4);
    const struct plan *p;
    struct rig g;
    sched_id a, b;
    uint32_t n_again = 0;

    (void)state;
    c.n_blocks = 5;
    c.prefix_caching = false;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 14, .max_tokens = 50 });
    b = rig_add(&g, (struct ask){ .n = 14, .first = 100, .max_tokens = 50 });
    while ((p = rig_step(&g))) {
        for (uint32_t i = 0; i < p->n_entries; i++)
            if (p->entries[i].id == b && p->entries[i].start == 0 && p->entries[i].n > 14) {
                n_again++;
                assert_int_equal(p->entries[i].n_draft, 0);
            }
        commit_all(&g, p);
    }
    assert_true(rig_stats(&g).preemptions > 0 && n_again > 0);
    assert_int_equal(rig_told(&g, a)->n_tokens, 50);
    assert_int_equal(rig_told(&g, b)->n_tokens, 50);
    rig_close(&g);
}

/* A block gets its key when all its tokens are accepted, not when they are computed. */
static void only_accepted_tokens_are_published(void **state)
{
    struct sched_config c = config(2);
    struct sched_stats st;
    const struct plan *p;
    struct rig g;
    sched_id b;

    (void)state;
    rig_open(&g, &c);
    rig_add(&g, (struct ask){ .n = 14, .max_tokens = 10 });
    p = rig_step(&g);
    commit(&g, p, 1, IDS(14), 2, IDS(15, 16)); /* the prompt is 0 .. 13 */
    p = rig_step(&g);                          /* computes 14, 15 and 16 at positions 14 to 16 */
    assert_int_equal(p->entries[0].n, 3);
    commit(&g, p, 1, IDS(99), 0, IDS(0)); /* position 15 holds 99 in truth */
    b = rig_add(&g, (struct ask){ .n = 17, .max_tokens = 1 });
    p = rig_step(&g); /* 99 is computed, and 0 .. 16 from its beginning */
    assert_int_equal(p->n_entries, 2);
    rig_expect(p, 1, b, 0, 17, true);
    rig_commit(&g, p, RIG_EOS);
    sched_stats(g.s, &st);
    assert_int_equal(st.prefix_hits, 0);
    rig_close(&g);
}

static void accepted_tokens_are_published(void **state)
{
    struct sched_config c = config(2);
    const struct plan *p;
    struct rig g;
    sched_id b;

    (void)state;
    rig_open(&g, &c);
    rig_add(&g, (struct ask){ .n = 14, .max_tokens = 10 });
    p = rig_step(&g);
    commit(&g, p, 1, IDS(14), 2, IDS(15, 16));
    p = rig_step(&g);
    commit(&g, p, 2, IDS(15, 99), 0, IDS(0));
    b = rig_add(&g, (struct ask){ .n = 17, .max_tokens = 1 });
    p = rig_step(&g);
    rig_expect(p, 1, b, 16, 1, true);
    rig_commit(&g, p, RIG_EOS);
    assert_int_equal(rig_told(&g, b)->n_cached, 16);
    rig_close(&g);
}

static void too_many_drafts_are_refused(void **state)
{
    struct sched_config c = config(SPEC_MAX_TOKENS + 1);
    struct sched *s = NULL;
    struct err e;

    (void)state;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "9 draft tokens"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_drafts_are_output),
        cmocka_unit_test(an_end_cuts_the_run),
        cmocka_unit_test(max_tokens_bounds_the_drafts),
        cmocka_unit_test(known_tokens_come_before_drafts),
        cmocka_unit_test(nobody_gives_way_to_a_draft),
        cmocka_unit_test(a_preempted_request_has_no_drafts),
        cmocka_unit_test(only_accepted_tokens_are_published),
        cmocka_unit_test(accepted_tokens_are_published),
        cmocka_unit_test(too_many_drafts_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
