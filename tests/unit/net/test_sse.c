/* The event splitter gives the same events whatever pieces the bytes come in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "net/sse.h"

/* LF and CRLF, with and without the space, a comment, an event line, several data lines, no data,
 * multi-byte text. */
static const char stream[] = "data: {\"text\":\"안녕 🙂\"}\n\n"
                             ": ping\n\n"
                             "data:tight\r\n\r\n"
                             "event: x\ndata: a\ndata:  b\nid: 7\n\n"
                             "data\n\n"
                             "\n"
                             "data:\r\n\n"
                             "data: [DONE]\n\n";

static const char *const datas[] = {
    "{\"text\":\"안녕 🙂\"}", NULL, "tight", "a\n b", NULL, NULL, "", "[DONE]"
};
#define N_EVENTS (sizeof datas / sizeof datas[0])

struct seen {
    size_t n;
    struct buf raw;
    int stop_at; /* fn returns 1 at this event; -1: never */
};

static int on_event(void *arg, const struct sse_event *ev)
{
    struct seen *s = arg;

    assert_true(s->n < N_EVENTS);
    if (datas[s->n]) {
        assert_non_null(ev->data);
        assert_string_equal(ev->data, datas[s->n]);
        assert_int_equal(ev->data_len, strlen(datas[s->n]));
    } else {
        assert_null(ev->data);
    }
    assert_int_equal(buf_append(&s->raw, ev->raw, ev->raw_len), 0);
    return (int)s->n++ == s->stop_at;
}

static void seen_init(struct seen *s)
{
    *s = (struct seen){ .stop_at = -1 };
    buf_init(&s->raw, sizeof stream);
}

static void check_all(struct seen *s, struct sse *sse)
{
    assert_int_equal(s->n, N_EVENTS);
    assert_int_equal(s->raw.len, sizeof stream - 1);
    assert_memory_equal(s->raw.data, stream, sizeof stream - 1);
    assert_int_equal(sse_left(sse), 0);
    buf_finish(&s->raw);
    sse_finish(sse);
}

static void every_cut(void **state)
{
    size_t len = sizeof stream - 1;

    (void)state;
    for (size_t a = 0; a <= len; a++) {
        for (size_t b = a; b <= len; b++) {
            struct seen s;
            struct sse sse;

            seen_init(&s);
            sse_init(&sse);
            assert_int_equal(sse_push(&sse, stream, a, on_event, &s), 0);
            assert_int_equal(sse_push(&sse, stream + a, b - a, on_event, &s), 0);
            assert_int_equal(sse_push(&sse, stream + b, len - b, on_event, &s), 0);
            check_all(&s, &sse);
        }
    }
}

static void byte_by_byte(void **state)
{
    struct seen s;
    struct sse sse;

    (void)state;
    seen_init(&s);
    sse_init(&sse);
    for (size_t i = 0; i < sizeof stream - 1; i++)
        assert_int_equal(sse_push(&sse, stream + i, 1, on_event, &s), 0);
    check_all(&s, &sse);
}

static void callback_stops_and_the_rest_stays(void **state)
{
    struct seen s;
    struct sse sse;

    (void)state;
    seen_init(&s);
    sse_init(&sse);
    s.stop_at = 2;
    assert_int_equal(sse_push(&sse, stream, sizeof stream - 1, on_event, &s), 1);
    assert_int_equal(s.n, 3);
    s.stop_at = -1;
    assert_int_equal(sse_push(&sse, "", 0, on_event, &s), 0);
    check_all(&s, &sse);
}

static void cut_event_is_left(void **state)
{
    struct seen s;
    struct sse sse;

    (void)state;
    seen_init(&s);
    sse_init(&sse);
    assert_int_equal(sse_push(&sse, stream, 20, on_event, &s), 0);
    assert_int_equal(s.n, 0);
    assert_int_equal(sse_left(&sse), 20);
    buf_finish(&s.raw);
    sse_finish(&sse);
}

static void endless_event_is_refused(void **state)
{
    size_t piece = 1u << 20;
    char *junk = malloc(piece);
    struct sse sse;
    int st = 0;

    (void)state;
    assert_non_null(junk);
    memset(junk, 'x', piece);
    sse_init(&sse);
    for (int i = 0; i < 17 && st == 0; i++)
        st = sse_push(&sse, junk, piece, on_event, NULL);
    assert_int_equal(st, ERR_TOOLONG);
    sse_finish(&sse);
    free(junk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut),
        cmocka_unit_test(byte_by_byte),
        cmocka_unit_test(callback_stops_and_the_rest_stays),
        cmocka_unit_test(cut_event_is_left),
        cmocka_unit_test(endless_event_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
