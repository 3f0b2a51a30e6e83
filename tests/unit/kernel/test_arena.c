/* Memory for packed weights: pieces that do not touch each other, and slabs that go when their last piece
 * does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/arena.h"

static void test_pieces(void **state)
{
    enum { N = 300 };
    static unsigned char *p[N];
    size_t bytes[N], i, j;
    struct k_arena a = { 0 };

    (void)state;
    for (i = 0; i < N; i++) {
        bytes[i] = 1 + i * i * 13 % 900001;
        p[i] = k_arena_take(&a, bytes[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 64, 0);
        for (j = 0; j < bytes[i]; j += 61)
            assert_int_equal(p[i][j], 0);
        memset(p[i], (int)(i % 255) + 1, bytes[i]);
    }
    assert_true(a.n > 1);
    for (i = 0; i < N; i++)
        assert_true(p[i][0] == i % 255 + 1 && p[i][bytes[i] - 1] == i % 255 + 1);
    for (i = 0; i < N; i += 2)
        k_arena_give(&a, p[i]);
    for (i = 1; i < N; i += 2) {
        assert_true(p[i][0] == i % 255 + 1);
        k_arena_give(&a, p[i]);
    }
    assert_int_equal(a.n, 0);
    k_arena_give(&a, NULL);
    k_arena_finish(&a);
}

/* What is larger than half a slab has one of its own, and the one before goes on being filled. */
static void test_large(void **state)
{
    struct k_arena a = { 0 };
    char *small, *large, *next;

    (void)state;
    small = k_arena_take(&a, 1000);
    large = k_arena_take(&a, ARENA_SLAB_BYTES + 5);
    next = k_arena_take(&a, 1000);
    assert_true(small && large && next);
    assert_int_equal(a.n, 2);
    assert_int_equal(next - small, 1024);
    assert_int_equal((uintptr_t)large % ARENA_HUGE_PAGE, 0);
    large[ARENA_SLAB_BYTES + 4] = 1;
    k_arena_give(&a, large);
    assert_int_equal(a.n, 1);
    k_arena_give(&a, next);
    k_arena_give(&a, small);
    assert_null(k_arena_take(&a, SIZE_MAX));
    assert_null(k_arena_take(&a, SIZE_MAX / 4)); /* more than can be mapped */
    k_arena_finish(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_large),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
