/* The formulas of kv/layout.h on numbers worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kv/layout.h"

static const struct kv_layout l = { .planes = 2,
                                    .n_layers = 3,
                                    .kv_heads = 2,
                                    .head_dim = 64,
                                    .elem_bytes = 2,
                                    .block_tokens = 32,
                                    .n_blocks = 5 };

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(kv_layout_head_bytes(&l), 32 * 64 * 2);
    assert_int_equal(kv_layout_block_bytes(&l), 8192);
    assert_int_equal(kv_layout_token_bytes(&l), 2 * 3 * 2 * 64 * 2);
    assert_int_equal(kv_layout_pool_bytes(&l), 6 * 5 * 8192);
}

static void planes_follow_one_another(void **state)
{
    (void)state;
    assert_int_equal(kv_layout_offset(&l, 0, 0, 0), 0);
    assert_int_equal(kv_layout_offset(&l, 0, 0, 4), 4 * 8192);
    assert_int_equal(kv_layout_offset(&l, 0, 1, 0), 5 * 8192);
    assert_int_equal(kv_layout_offset(&l, 1, 0, 2), (2 * 5 + 2) * 8192);
    assert_int_equal(kv_layout_offset(&l, 2, 1, 4) + kv_layout_block_bytes(&l),
                     kv_layout_pool_bytes(&l));
}

/* A pool beyond 4 GiB is not cut to 32 bits. */
static void large_pools_do_not_wrap(void **state)
{
    struct kv_layout big = { .planes = 2,
                             .n_layers = 80,
                             .kv_heads = 8,
                             .head_dim = 128,
                             .elem_bytes = 4,
                             .block_tokens = 128,
                             .n_blocks = 100000 };

    (void)state;
    assert_true(kv_layout_pool_bytes(&big) == 160ull * 100000 * 8 * 128 * 128 * 4);
    assert_true(kv_layout_offset(&big, 79, 1, 99999) ==
                kv_layout_pool_bytes(&big) - kv_layout_block_bytes(&big));
}

/* A latent cache: one plane a layer. */
static void latents_have_one_plane(void **state)
{
    const struct kv_layout latent = { .n_layers = 3,
                                      .planes = 1,
                                      .kv_heads = 1,
                                      .head_dim = 576,
                                      .elem_bytes = 2,
                                      .block_tokens = 32,
                                      .n_blocks = 5 };

    (void)state;
    assert_int_equal(kv_layout_block_bytes(&latent), 32 * 576 * 2);
    assert_int_equal(kv_layout_token_bytes(&latent), 3 * 576 * 2);
    assert_int_equal(kv_layout_pool_bytes(&latent), 3 * 5 * 32 * 576 * 2);
    assert_int_equal(kv_layout_offset(&latent, 2, 0, 4), (2 * 5 + 4) * 32 * 576 * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(planes_follow_one_another),
        cmocka_unit_test(large_pools_do_not_wrap),
        cmocka_unit_test(latents_have_one_plane),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
