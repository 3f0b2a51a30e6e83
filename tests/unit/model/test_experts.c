/* How experts and head are shared out, and the thread that carries rows while others compute. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/courier.h"

static struct model model_of(uint32_t experts, struct model_part part)
{
    return (struct model){ .cfg = { .experts = experts, .heads = 4, .kv_heads = 4, .vocab = 500 },
                           .part = part };
}

static void refuse(uint32_t experts, struct model_part part, int status, const char *sentence)
{
    struct model m = model_of(experts, part);
    struct err e = { 0 };

    assert_int_equal(part_choose(&m, &e), status);
    assert_non_null(strstr(e.text, sentence));
}

static void test_experts(void **state)
{
    struct err e = { 0 };

    (void)state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct model m = model_of(16, (struct model_part){ .ep_rank = rank, .ep_size = 4 });

        assert_int_equal(part_choose(&m, &e), 0);
        assert_int_equal(m.experts.from, 4 * rank);
        assert_int_equal(m.experts.n, 4);
    }
    refuse(12, (struct model_part){ .ep_size = 8 }, ERR_UNSUPPORTED,
           "12 experts cannot be shared by 8 ranks (--data-parallel-size times "
           "--tensor-parallel-size); 1, 2, 3, 4, 6, 12 ranks would do");
    refuse(16, (struct model_part){ .ep_rank = 4, .ep_size = 4 }, ERR_INVAL, "experts: 4 of 4");
}

/* A dense model has nothing to share: its ranks do not exchange. */
static void test_no_experts(void **state)
{
    struct model m = model_of(0, (struct model_part){ .ep_rank = 1, .ep_size = 2 });
    struct err e = { 0 };

    (void)state;
    assert_int_equal(part_choose(&m, &e), 0);
    assert_int_equal(m.part.ep_size, 1);
    assert_int_equal(m.experts.n, 0);
}

static void test_head(void **state)
{
    uint32_t next = 0;
    struct err e = { 0 };

    (void)state;
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct model m = model_of(8, (struct model_part){ .head_rank = rank, .head_size = 3 });

        assert_int_equal(part_choose(&m, &e), 0);
        assert_int_equal(m.ids.n, 500); /* the embedding is whole */
        assert_int_equal(m.head_ids.from, next);
        next += m.head_ids.n;
    }
    assert_int_equal(next, 500);
    refuse(8, (struct model_part){ .head_size = 2, .tp_size = 2 }, ERR_UNSUPPORTED,
           "lmhead_tensor_parallel_size 2 needs --tensor-parallel-size 1");
    refuse(8, (struct model_part){ .head_size = 64 }, ERR_UNSUPPORTED,
           "a vocabulary of 500 cannot be shared by 64 ranks; up to 32 can");
}

static void test_select(void **state)
{
    struct weight w[] = {
        { .t.name = "model.layers.3.mlp.experts.0.up_proj.weight" },
        { .t.name = "model.layers.3.mlp.experts.4.up_proj.weight" },
        { .t.name = "model.layers.3.mlp.experts.4.up_proj.weight_scale" },
        { .t.name = "model.layers.3.mlp.experts.11.down_proj.weight" },
        { .t.name = "model.layers.3.mlp.experts.down_proj.weight" },
        { .t.name = "model.layers.3.mlp.shared_experts.up_proj.weight" },
        { .t.name = "model.layers.3.mlp.experts.x4.up_proj.weight" },
        { .t.name = "mlp.experts.0.up_proj.weight" },
    };
    const bool skipped[] = { true, false, false, true, false, false, false, false };
    struct weights all = { .w = w, .n = sizeof w / sizeof w[0] };

    (void)state;
    weights_select_experts(&all, 4, 4);
    for (size_t i = 0; i < all.n; i++)
        assert_int_equal(w[i].skip, skipped[i]);
}

struct job {
    uint32_t from, sum;
};

static void add_up(void *arg)
{
    struct job *j = arg;

    j->sum = 0;
    for (uint32_t i = 0; i < 1000; i++)
        j->sum += j->from + i;
}

static void test_courier(void **state)
{
    struct courier *c;
    struct job here, there;

    (void)state;
    assert_int_equal(courier_create(&c), 0);
    courier_wait(c); /* nothing under way: at once */
    for (uint32_t i = 0; i < 2000; i++) {
        here.from = there.from = i;
        there.sum = UINT32_MAX;
        courier_start(c, add_up, &there);
        add_up(&here);
        courier_wait(c);
        assert_int_equal(here.sum, there.sum);
    }
    courier_destroy(c);
    courier_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts), cmocka_unit_test(test_no_experts),
        cmocka_unit_test(test_head),    cmocka_unit_test(test_select),
        cmocka_unit_test(test_courier),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
