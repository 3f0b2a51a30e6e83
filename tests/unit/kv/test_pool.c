/* The rules of src/kv/README.md, one test each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"
#include "kv/pool.h"

static struct hash256 key_of(int n)
{
    struct hash256 h;

    hash_sha256(&h, &(struct hash_part){ &n, sizeof n }, 1);
    return h;
}

static struct kv_pool *pool_of(uint32_t n)
{
    struct kv_pool *p;

    assert_int_equal(kv_pool_create(&p, n), 0);
    return p;
}

static void sizes_out_of_range_are_refused(void **state)
{
    struct kv_pool *p;

    (void)state;
    assert_int_equal(kv_pool_create(&p, 0), ERR_INVAL);
    assert_int_equal(kv_pool_create(&p, KV_POOL_MAX_BLOCKS + 1), ERR_INVAL);
}

static void used_and_free_are_the_total(void **state)
{
    struct kv_pool *p = pool_of(3);
    uint32_t a, b;

    (void)state;
    assert_int_equal(kv_pool_free(p), 3);
    a = kv_pool_take(p);
    b = kv_pool_take(p);
    kv_pool_ref(p, a);
    assert_int_equal(kv_pool_holders(p, a), 2);
    assert_int_equal(kv_pool_free(p), 1);
    kv_pool_unref(p, a);
    assert_int_equal(kv_pool_free(p), 1);
    kv_pool_unref(p, a);
    kv_pool_unref(p, b);
    assert_int_equal(kv_pool_free(p), 3);
    kv_pool_destroy(p);
}

/* Never used in order of ids; given back without a key: next; with a key: the oldest last. */
static void blocks_are_taken_in_the_order_of_their_worth(void **state)
{
    struct kv_pool *p = pool_of(5);
    struct hash256 k0 = key_of(0), k1 = key_of(1);

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(kv_pool_take(p), i);
    kv_pool_publish(p, 0, &k0);
    kv_pool_publish(p, 1, &k1);
    kv_pool_unref(p, 1);
    kv_pool_unref(p, 0);
    kv_pool_unref(p, 2);
    assert_int_equal(kv_pool_take(p), 2);
    assert_int_equal(kv_pool_take(p), 3);
    assert_int_equal(kv_pool_take(p), 4);
    assert_int_equal(kv_pool_take(p), 1);
    assert_int_equal(kv_pool_take(p), 0);
    kv_pool_destroy(p);
}

static void a_free_block_is_found_until_it_is_taken(void **state)
{
    struct kv_pool *p = pool_of(1);
    struct hash256 k = key_of(7);

    (void)state;
    assert_int_equal(kv_pool_find(p, &k), KV_NO_BLOCK);
    kv_pool_publish(p, kv_pool_take(p), &k);
    kv_pool_unref(p, 0);
    assert_int_equal(kv_pool_find(p, &k), 0);
    kv_pool_ref(p, 0); /* shared: leaves the free list with its key */
    assert_int_equal(kv_pool_free(p), 0);
    assert_int_equal(kv_pool_find(p, &k), 0);
    kv_pool_unref(p, 0);
    assert_int_equal(kv_pool_take(p), 0);
    assert_int_equal(kv_pool_find(p, &k), KV_NO_BLOCK);
    kv_pool_destroy(p);
}

static void a_block_with_a_key_or_two_holders_is_read_only(void **state)
{
    struct kv_pool *p = pool_of(2);
    struct hash256 k = key_of(1);

    (void)state;
    kv_pool_take(p);
    assert_true(kv_pool_writable(p, 0));
    assert_false(kv_pool_writable(p, 1)); /* nobody holds it */
    kv_pool_ref(p, 0);
    assert_false(kv_pool_writable(p, 0));
    kv_pool_unref(p, 0);
    kv_pool_publish(p, 0, &k);
    assert_false(kv_pool_writable(p, 0));
    kv_pool_destroy(p);
}

static void one_key_names_one_block(void **state)
{
    struct kv_pool *p = pool_of(2);
    struct hash256 k = key_of(1);

    (void)state;
    kv_pool_publish(p, kv_pool_take(p), &k);
    kv_pool_publish(p, kv_pool_take(p), &k);
    assert_int_equal(kv_pool_find(p, &k), 0);
    assert_true(kv_pool_writable(p, 1)); /* stayed without */
    kv_pool_unref(p, 0);
    kv_pool_unref(p, 1);
    assert_int_equal(kv_pool_take(p), 1);
    assert_int_equal(kv_pool_find(p, &k), 0);
    kv_pool_destroy(p);
}

static void forgetting_spares_what_is_held(void **state)
{
    struct kv_pool *p = pool_of(2);
    struct hash256 k0 = key_of(0), k1 = key_of(1);

    (void)state;
    kv_pool_publish(p, kv_pool_take(p), &k0);
    kv_pool_publish(p, kv_pool_take(p), &k1);
    kv_pool_unref(p, 0);
    assert_int_equal(kv_pool_forget_free(p), 1);
    assert_int_equal(kv_pool_find(p, &k0), KV_NO_BLOCK);
    assert_int_equal(kv_pool_find(p, &k1), 1);
    kv_pool_unref(p, 1);
    assert_int_equal(kv_pool_forget_free(p), 0);
    assert_int_equal(kv_pool_free(p), 2);
    kv_pool_destroy(p);
}

/* Many keys in few buckets: the index survives any order of leaving. */
static void the_index_keeps_every_key(void **state)
{
    enum { N = 200 };
    struct kv_pool *p = pool_of(N);

    (void)state;
    for (int i = 0; i < N; i++) {
        struct hash256 k = key_of(i);

        kv_pool_publish(p, kv_pool_take(p), &k);
    }
    for (int i = 0; i < N; i++)
        kv_pool_unref(p, (uint32_t)(i * 37 % N));
    for (int gone = 0; gone < N; gone++) {
        assert_int_equal(kv_pool_take(p), gone * 37 % N);
        for (int i = 0; i < N; i++) {
            struct hash256 k = key_of(i * 37 % N);

            assert_int_equal(kv_pool_find(p, &k), i <= gone ? KV_NO_BLOCK : (uint32_t)(i * 37 % N));
        }
    }
    kv_pool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_out_of_range_are_refused),
        cmocka_unit_test(used_and_free_are_the_total),
        cmocka_unit_test(blocks_are_taken_in_the_order_of_their_worth),
        cmocka_unit_test(a_free_block_is_found_until_it_is_taken),
        cmocka_unit_test(a_block_with_a_key_or_two_holders_is_read_only),
        cmocka_unit_test(one_key_names_one_block),
        cmocka_unit_test(forgetting_spares_what_is_held),
        cmocka_unit_test(the_index_keeps_every_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
