/* Posts from another thread, timers, signals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "net/loop.h"

#define N_POSTS 1000

static struct loop *loop;
static struct loop_timer *timer;
static int count;
static pthread_t loop_thread;

static int setup(void **state)
{
    (void)state;
    count = 0;
    loop_thread = pthread_self();
    return loop_create(&loop, NULL);
}

static int teardown(void **state)
{
    (void)state;
    loop_timer_destroy(timer);
    timer = NULL;
    loop_destroy(loop);
    return 0;
}

static void in_order(void *arg)
{
    assert_true(pthread_equal(pthread_self(), loop_thread));
    assert_int_equal((int)(intptr_t)arg, count);
    if (++count == N_POSTS)
        loop_stop(loop);
}

static void *post_all(void *arg)
{
    (void)arg;
    for (int i = 0; i < N_POSTS; i++)
        loop_post(loop, in_order, (void *)(intptr_t)i);
    return NULL;
}

static void posts_run_in_order_on_the_loop_thread(void **state)
{
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, post_all, NULL), 0);
    assert_int_equal(loop_run(loop), 0);
    pthread_join(t, NULL);
    assert_int_equal(count, N_POSTS);
}

static void unreached(void *arg)
{
    (void)arg;
    fail();
}

static void posts_that_never_ran_are_freed(void **state)
{
    (void)state;
    assert_int_equal(loop_post(loop, unreached, NULL), 0);
}

static void on_third(void *arg)
{
    (void)arg;
    if (++count < 3)
        return;
    loop_timer_destroy(timer);
    timer = NULL;
    loop_stop(loop);
}

static void repeating_timer_destroyed_in_its_callback(void **state)
{
    double start = loop_now(loop);

    (void)state;
    assert_int_equal(loop_timer_create(&timer, loop, on_third, NULL), 0);
    loop_timer_start(timer, 0.002, true);
    assert_int_equal(loop_run(loop), 0);
    assert_int_equal(count, 3);
    assert_true(loop_now(loop) - start >= 0.005);
}

static void on_signal(void *arg, int signo)
{
    (void)arg;
    count = signo;
    loop_stop(loop);
}

static void signal_runs_on_the_loop(void **state)
{
    static const int signals[] = { SIGUSR1, SIGTERM, 0 };

    (void)state;
    assert_int_equal(loop_signals(loop, signals, on_signal, NULL), 0);
    raise(SIGTERM);
    assert_int_equal(loop_run(loop), 0);
    assert_int_equal(count, SIGTERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(posts_run_in_order_on_the_loop_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(posts_that_never_ran_are_freed, setup, teardown),
        cmocka_unit_test_setup_teardown(repeating_timer_destroyed_in_its_callback, setup, teardown),
        cmocka_unit_test_setup_teardown(signal_runs_on_the_loop, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
