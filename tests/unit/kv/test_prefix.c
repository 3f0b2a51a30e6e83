/* Tables and prefix keys: what is found, what is not, and in which order it is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "kv/pool.h"
#include "kv/prefix.h"
#include "kv/table.h"

#define BT 16
#define N  (4 * BT)

struct owner {
    struct kv_table table;
    struct kv_prefix prefix;
    int32_t tokens[N];
};

static void owner_init(struct owner *o, const char *salt)
{
    memset(o, 0, sizeof *o);
    assert_int_equal(kv_table_init(&o->table, N / BT), 0);
    assert_int_equal(kv_prefix_init(&o->prefix, N / BT, BT, salt, strlen(salt)), 0);
    for (int i = 0; i < N; i++)
        o->tokens[i] = i;
}

static void owner_compute(struct owner *o, struct kv_pool *pool)
{
    assert_int_equal(kv_table_grow(&o->table, pool, N / BT), 0);
    kv_prefix_publish(&o->prefix, pool, &o->table, o->tokens, N / BT);
}

static void owner_finish(struct owner *o, struct kv_pool *pool)
{
    kv_table_clear(&o->table, pool);
    kv_table_finish(&o->table);
    kv_prefix_finish(&o->prefix);
}

static uint32_t found(struct owner *o, struct kv_pool *pool)
{
    return kv_prefix_match(&o->prefix, pool, o->tokens, N / BT).n;
}

static void a_table_grows_whole_or_not(void **state)
{
    struct kv_pool *pool;
    struct kv_table t;

    (void)state;
    assert_int_equal(kv_pool_create(&pool, 3), 0);
    assert_int_equal(kv_table_init(&t, 4), 0);
    assert_int_equal(kv_table_grow(&t, pool, 5), ERR_TOOLONG);
    assert_int_equal(kv_table_grow(&t, pool, 4), ERR_NOBLOCKS);
    assert_int_equal(t.n, 0);
    assert_int_equal(kv_table_grow(&t, pool, 3), 0);
    assert_int_equal(kv_table_grow(&t, pool, 2), 0); /* never shrinks */
    assert_int_equal(t.n, 3);
    kv_table_clear(&t, pool);
    assert_int_equal(kv_pool_free(pool), 3);
    kv_table_finish(&t);
    kv_pool_destroy(pool);
}

static void the_longest_prefix_is_found_and_shared(void **state)
{
    struct kv_pool *pool;
    struct owner a, b;
    struct kv_match m;

    (void)state;
    assert_int_equal(kv_pool_create(&pool, 8), 0);
    owner_init(&a, "");
    owner_init(&b, "");
    owner_compute(&a, pool);
    b.tokens[2 * BT] = -1;
    m = kv_prefix_match(&b.prefix, pool, b.tokens, N / BT);
    assert_int_equal(m.n, 2);
    assert_int_equal(m.n_idle, 0);
    kv_prefix_share(&b.prefix, pool, &b.table, m.n);
    assert_memory_equal(a.table.block, b.table.block, 2 * sizeof(uint32_t));
    assert_int_equal(kv_pool_holders(pool, a.table.block[0]), 2);
    assert_int_equal(kv_pool_free(pool), 4);
    owner_finish(&a, pool);
    owner_finish(&b, pool);
    assert_int_equal(kv_pool_free(pool), 8);
    kv_pool_destroy(pool);
}

static void the_same_block_after_another_is_another(void **state)
{
    struct kv_pool *pool;
    struct owner a, b;

    (void)state;
    assert_int_equal(kv_pool_create(&pool, 8), 0);
    owner_init(&a, "");
    owner_init(&b, "");
    a.tokens[0] = -1;
    owner_compute(&a, pool);
    owner_compute(&b, pool);
    assert_int_not_equal(memcmp(&a.prefix.key[1], &b.prefix.key[1], sizeof(struct hash256)), 0);
    owner_finish(&a, pool);
    owner_finish(&b, pool);
    kv_pool_destroy(pool);
}

static void a_salt_or_block_size_isolates(void **state)
{
    struct kv_pool *pool;
    struct owner a, same, other, none;
    struct kv_prefix wide;

    (void)state;
    assert_int_equal(kv_pool_create(&pool, 8), 0);
    owner_init(&a, "salt:a");
    owner_init(&same, "salt:a");
    owner_init(&other, "salt:b");
    owner_init(&none, "");
    owner_compute(&a, pool);
    assert_int_equal(found(&same, pool), 4);
    assert_int_equal(found(&other, pool), 0);
    assert_int_equal(found(&none, pool), 0);
    assert_int_equal(kv_prefix_init(&wide, 2, 2 * BT, "salt:a", 6), 0);
    assert_int_not_equal(memcmp(&wide.root, &a.prefix.root, sizeof wide.root), 0);
    kv_prefix_finish(&wide);
    owner_finish(&a, pool);
    owner_finish(&same, pool);
    owner_finish(&other, pool);
    owner_finish(&none, pool);
    kv_pool_destroy(pool);
}

/* A prefix given back loses its end first, block by block, and never a middle. */
static void eviction_takes_the_end_first(void **state)
{
    struct kv_pool *pool;
    struct owner a, b;

    (void)state;
    assert_int_equal(kv_pool_create(&pool, 4), 0);
    owner_init(&a, "");
    owner_init(&b, "");
    owner_compute(&a, pool);
    kv_table_clear(&a.table, pool);
    assert_int_equal(kv_prefix_match(&b.prefix, pool, b.tokens, 4).n_idle, 4);
    for (uint32_t left = 4; left-- > 0;) {
        kv_pool_take(pool);
        assert_int_equal(found(&b, pool), left);
    }
    owner_finish(&a, pool);
    owner_finish(&b, pool);
    kv_pool_destroy(pool);
}

static void without_room_for_keys_nothing_is_cached(void **state)
{
    struct kv_pool *pool;
    struct kv_prefix off;
    struct owner a;

    (void)state;
    assert_int_equal(kv_pool_create(&pool, 4), 0);
    owner_init(&a, "");
    assert_int_equal(kv_prefix_init(&off, 0, BT, NULL, 0), 0);
    assert_int_equal(kv_table_grow(&a.table, pool, 4), 0);
    kv_prefix_publish(&off, pool, &a.table, a.tokens, 4);
    assert_int_equal(kv_prefix_match(&off, pool, a.tokens, 4).n, 0);
    assert_true(kv_pool_writable(pool, 0));
    kv_prefix_finish(&off);
    owner_finish(&a, pool);
    kv_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_grows_whole_or_not),
        cmocka_unit_test(the_longest_prefix_is_found_and_shared),
        cmocka_unit_test(the_same_block_after_another_is_another),
        cmocka_unit_test(a_salt_or_block_size_isolates),
        cmocka_unit_test(eviction_takes_the_end_first),
        cmocka_unit_test(without_room_for_keys_nothing_is_cached),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
