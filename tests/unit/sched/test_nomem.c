/* Memory runs out at each allocation in turn: the call says so, and nothing is left behind. The
 * linker sends the scheduler's allocations here (--wrap). And a step allocates nothing. */
#include <stdlib.h>

#include "rig.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void __wrap_free(void *p);

static long n_left = -1; /* allocations until the one that fails; -1: none fails */
static long n_live;      /* pieces that are out */
static long n_asked;     /* allocations so far */

static int refuse(void)
{
    n_asked++;
    return n_left >= 0 && n_left-- == 0;
}

void *__wrap_malloc(size_t n)
{
    void *p = refuse() ? NULL : __real_malloc(n);

    n_live += p != NULL;
    return p;
}

void *__wrap_calloc(size_t n, size_t size)
{
    void *p = refuse() ? NULL : __real_calloc(n, size);

    n_live += p != NULL;
    return p;
}

void __wrap_free(void *p)
{
    n_live -= p != NULL;
    __real_free(p);
}

static void creating_fails_whole(void **state)
{
    struct sched_config c = rig_config();
    long before = n_live, i = 0;
    struct sched *s = NULL;
    int st = ERR_NOMEM;

    (void)state;
    c.chunks = (struct sched_chunks){ SCHED_CHUNK_OPTIMAL, 2, 1, 0, true, 30 };
    c.max_inflight = 2;
    for (; st < 0; i++) {
        n_left = i;
        st = sched_create(&s, &c, NULL);
        assert_true(st == 0 || (st == ERR_NOMEM && n_live == before));
    }
    n_left = -1;
    assert_in_range(i, 6, 20);
    sched_destroy(s);
    assert_int_equal(n_live, before);
}

static void adding_fails_whole(void **state)
{
    struct err e = { 0 };
    struct rig g;
    sched_id id = 0;
    long before, i = 0;
    int st = ERR_NOMEM;

    (void)state;
    rig_open(&g, NULL);
    before = n_live;
    for (; st < 0; i++) {
        n_left = i;
        st = rig_try(&g, (struct ask){ .n = 40, .stop_id = 7 }, &id, &e);
        n_left = -1;
        assert_true(st == 0 || (st == ERR_NOMEM && n_live == before && e.text[0]));
    }
    assert_in_range(i, 6, 12);
    assert_int_equal(id, 1); /* a failed call used up no id */
    rig_run(&g, RIG_TOKEN);
    assert_true(rig_told(&g, id)->gone);
    rig_close(&g);
}

static void steps_allocate_nothing(void **state)
{
    struct sched_config c = rig_config();
    struct rig g;
    long before;

    (void)state;
    c.n_blocks = 12; /* with preemptions */
    rig_open(&g, &c);
    for (int i = 0; i < 6; i++)
        rig_add(&g, (struct ask){ .n = 40, .first = 1000 * i, .max_tokens = 60 });
    before = n_asked;
    rig_run(&g, RIG_TOKEN);
    assert_true(rig_told(&g, 6)->gone);
    assert_int_equal(n_asked, before);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creating_fails_whole),
        cmocka_unit_test(adding_fails_whole),
        cmocka_unit_test(steps_allocate_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
