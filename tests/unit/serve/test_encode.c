#include "serve/encode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "fake_engine.h"
#include "net/loop.h"
#include "text/tokenizer.h"

#define MAX_TASKS 8

static struct rig {
    struct loop *loop;
    struct tokenizer *tok;
    struct encoder *encoder;
    struct encode_task task[MAX_TASKS];
    struct encode_item item[MAX_TASKS][2];
    int order[MAX_TASKS], n_done;
} rig;

static int setup(void **state)
{
    struct err e = { "" };

    (void)state;
    memset(&rig, 0, sizeof rig);
    if (loop_create(&rig.loop, &e) < 0 || model_load_tokenizer(&rig.tok, "", &e) < 0 ||
        encoder_create(&rig.encoder, rig.loop, rig.tok, &e) < 0)
        return -1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    encoder_destroy(rig.encoder);
    tokenizer_destroy(rig.tok);
    loop_destroy(rig.loop);
    for (int i = 0; i < MAX_TASKS; i++)
        for (int k = 0; k < 2; k++)
            free(rig.item[i][k].ids);
    return 0;
}

static void on_done(void *arg)
{
    struct encode_task *t = arg;

    rig.order[rig.n_done++] = (int)(t - rig.task);
    loop_stop(rig.loop);
}

/* Task i with one or two texts; NULL stands for a prompt that came as ids. */
static int push(int i, const char *a, const char *b)
{
    rig.item[i][0] = (struct encode_item){ .text = a, .len = a ? strlen(a) : 0 };
    rig.item[i][1] = (struct encode_item){ .text = b, .len = b ? strlen(b) : 0 };
    rig.task[i] = (struct encode_task){
        .items = rig.item[i], .n_items = 2, .done = on_done, .arg = &rig.task[i]
    };
    return encoder_push(rig.encoder, &rig.task[i]);
}

static void run_until(int n_done)
{
    while (rig.n_done < n_done)
        loop_run(rig.loop);
}

static void tasks_are_done_in_order(void **state)
{
    (void)state;
    for (int i = 0; i < MAX_TASKS; i++)
        assert_int_equal(push(i, "abc", i % 2 ? "d" : NULL), 0);
    assert_int_equal(rig.n_done, 0); /* never before the loop runs */
    run_until(MAX_TASKS);
    for (int i = 0; i < MAX_TASKS; i++) {
        assert_int_equal(rig.order[i], i);
        assert_int_equal(rig.item[i][0].status, 0);
        assert_int_equal(rig.item[i][0].n, 3);
        assert_memory_equal(rig.item[i][0].ids, ((int32_t[]){ 'a', 'b', 'c' }), 12);
        assert_int_equal(rig.item[i][1].n, i % 2);
    }
}

static void a_fault_is_told_with_its_text(void **state)
{
    (void)state;
    rig.item[0][0] = (struct encode_item){ .text = "", .len = (256u << 20) + 1 };
    rig.task[0] = (struct encode_task){ .items = rig.item[0], .n_items = 1 };
    encode_run(rig.tok, &rig.task[0], NULL); /* the length alone is looked at */
    assert_int_equal(rig.item[0][0].status, ERR_TOOLONG);
}

/* What is over the limit is not taken, and harms nothing that comes later. */
static void what_waits_is_bounded(void **state)
{
    char *big = malloc(ENCODE_MAX_QUEUED);

    (void)state;
    assert_non_null(big);
    memset(big, ' ', ENCODE_MAX_QUEUED);
    big[ENCODE_MAX_QUEUED - 1] = '\0';
    rig.item[0][0] = (struct encode_item){ .text = big, .len = 1000 };
    rig.task[0] = (struct encode_task){
        .items = rig.item[0], .n_items = 1, .done = on_done, .arg = &rig.task[0]
    };
    assert_int_equal(encoder_push(rig.encoder, &rig.task[0]), 0);
    rig.item[1][0] = (struct encode_item){ .text = big, .len = ENCODE_MAX_QUEUED - 999 };
    rig.task[1] = (struct encode_task){ .items = rig.item[1], .n_items = 1 };
    assert_int_equal(encoder_push(rig.encoder, &rig.task[1]), ERR_LIMIT);
    run_until(1);
    assert_int_equal(push(2, "a", NULL), 0);
    run_until(2);
    assert_int_equal(rig.order[1], 2);
    free(big);
}

static void every_task_is_told_at_the_end(void **state)
{
    static char text[1 << 20];

    (void)state;
    memset(text, 'x', sizeof text - 1);
    for (int i = 0; i < MAX_TASKS; i++)
        assert_int_equal(push(i, text, NULL), 0);
    encoder_destroy(rig.encoder);
    rig.encoder = NULL;
    assert_int_equal(rig.n_done, MAX_TASKS);
    assert_int_equal(rig.item[MAX_TASKS - 1][0].status, ERR_CLOSED);
    for (int i = 0; i < MAX_TASKS; i++)
        assert_int_equal(rig.order[i], i);
}

#define WITH_ENCODER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ENCODER(tasks_are_done_in_order),
        WITH_ENCODER(a_fault_is_told_with_its_text),
        WITH_ENCODER(what_waits_is_bounded),
        WITH_ENCODER(every_task_is_told_at_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
