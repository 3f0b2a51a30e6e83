#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rand.h"
#include "base/status.h"
#include "engine/sample.h"

#define VOCAB 50

static struct plan_entry entry(const struct sampling *sp, const int32_t *tokens, uint32_t n_prompt,
                               uint32_t n_all)
{
    return (struct plan_entry){
        .sampling = sp, .all_tokens = tokens, .n_prompt = n_prompt, .n_all = n_all, .out_index = 7
    };
}

static void a_plain_row_is_neutral(void **state)
{
    struct sample_rows s;
    struct sampling sp;
    struct plan_entry en;

    (void)state;
    sampling_init(&sp);
    sp.seed = 42;
    en = entry(&sp, (int32_t[]){ 1, 2 }, 2, 2);
    assert_int_equal(engine_rows_init(&s, 2, 8, VOCAB), 0);
    assert_int_equal(engine_rows_choose(&s, &en, 0), 0);
    assert_null(s.row[0].counts);
    assert_int_equal(s.row[0].n_bias, 0);
    assert_int_equal(s.row[0].forced, -1);
    assert_true(s.row[0].u == rand_uniform(42, 7, 0));
    engine_rows_finish(&s);
}

static void tokens_are_counted_by_side(void **state)
{
    const int32_t tokens[] = { 5, 9, 5, 9, 9, 3 };
    struct sample_rows s;
    struct sampling sp;
    struct plan_entry en;

    (void)state;
    sampling_init(&sp);
    sp.presence_penalty = 1;
    en = entry(&sp, tokens, 3, 6);
    assert_int_equal(engine_rows_init(&s, 2, 8, VOCAB), 0);
    for (int round = 0; round < 2; round++) { /* the second sees a clean table */
        const struct k_count *c;

        engine_rows_reset(&s);
        assert_int_equal(engine_rows_choose(&s, &en, 0), 0);
        c = s.row[0].counts;
        assert_int_equal(s.row[0].n_counts, 3);
        assert_true(c[0].id == 5 && c[0].in_prompt && c[0].n_out == 0);
        assert_true(c[1].id == 9 && c[1].in_prompt && c[1].n_out == 2);
        assert_true(c[2].id == 3 && !c[2].in_prompt && c[2].n_out == 1);
    }
    engine_rows_finish(&s);
}

static void end_tokens_are_banned_before_min_tokens(void **state)
{
    const int32_t eos[] = { 2, 0 };
    int32_t stop[] = { 17 };
    struct logit_bias bias[] = { { 4, 1.5f } };
    struct sample_rows s;
    struct sampling sp;
    struct plan_entry en;

    (void)state;
    sampling_init(&sp);
    sp.stop_ids = stop;
    sp.n_stop_ids = 1;
    sp.bias = bias;
    sp.n_bias = 1;
    en = entry(&sp, (int32_t[]){ 1 }, 1, 1);
    en.eos_ids = eos;
    en.n_eos = 2;
    sp.min_tokens = 9; /* output tokens 7 and 8 may not end it, 9 may */
    assert_int_equal(engine_rows_init(&s, 4, 8, VOCAB), 0);
    assert_int_equal(engine_rows_choose(&s, &en, 0), 0);
    assert_int_equal(s.row[0].n_bias, 4);
    assert_true(s.row[0].bias[0].id == 4 && s.row[0].bias[0].add == 1.5f);
    assert_true(s.row[0].bias[1].id == 2 && isinf(s.row[0].bias[1].add));
    assert_true(s.row[0].bias[3].id == 17);
    assert_int_equal(engine_rows_choose(&s, &en, 1), 0);
    assert_int_equal(s.row[1].n_bias, 4);
    assert_int_equal(engine_rows_choose(&s, &en, 2), 0);
    assert_int_equal(s.row[2].n_bias, 1);
    engine_rows_finish(&s);
}

/* A row after k drafts is the row that the request would have with them as its output. */
static void drafts_count_as_output(void **state)
{
    const int32_t tokens[] = { 5, 9, 5, 9, 9, 3, 9, 11 };
    struct sample_rows s;
    struct sampling sp;
    struct plan_entry en, later;

    (void)state;
    sampling_init(&sp);
    sp.presence_penalty = 1;
    sp.seed = 42;
    en = entry(&sp, tokens, 3, 6);
    en.n_draft = 2;
    later = entry(&sp, tokens, 3, 8);
    later.out_index = 9;
    assert_int_equal(engine_rows_init(&s, 4, 20, VOCAB), 0);
    assert_int_equal(engine_rows_choose(&s, &en, 0), 0);
    assert_int_equal(engine_rows_choose(&s, &en, 2), 0);
    assert_int_equal(engine_rows_choose(&s, &later, 0), 0);
    assert_int_equal(s.row[0].n_counts, 3);
    assert_int_equal(s.row[0].counts[1].n_out, 2);
    assert_int_equal(s.row[1].n_counts, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(s.row[1].counts[i].id, s.row[2].counts[i].id);
        assert_int_equal(s.row[1].counts[i].n_out, s.row[2].counts[i].n_out);
        assert_int_equal(s.row[1].counts[i].in_prompt, s.row[2].counts[i].in_prompt);
    }
    assert_true(s.row[1].u == s.row[2].u && s.row[1].u != s.row[0].u);
    engine_rows_finish(&s);
}

static void a_full_set_says_so_and_an_empty_one_has_room(void **state)
{
    const int32_t tokens[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    struct sample_rows s;
    struct sampling sp;
    struct plan_entry en;
    int n = 0;

    (void)state;
    sampling_init(&sp);
    sp.frequency_penalty = 1;
    en = entry(&sp, tokens, 4, 8);
    assert_int_equal(engine_rows_init(&s, 64, 8, VOCAB), 0);
    while (engine_rows_choose(&s, &en, 0) == 0)
        n++;
    assert_int_equal(n, 2); /* counts for two rows of the longest request */
    assert_int_equal(engine_rows_choose(&s, &en, 0), ERR_AGAIN);
    engine_rows_reset(&s);
    assert_int_equal(engine_rows_choose(&s, &en, 0), 0);
    engine_rows_finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_row_is_neutral),
        cmocka_unit_test(tokens_are_counted_by_side),
        cmocka_unit_test(end_tokens_are_banned_before_min_tokens),
        cmocka_unit_test(drafts_count_as_output),
        cmocka_unit_test(a_full_set_says_so_and_an_empty_one_has_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
