#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "play.h"
#include "sys/clock.h"

static void hostile(struct raw *r, struct side *p, void (*attack)(struct raw *r), uint64_t errors)
{
    struct transfer_stats st;

    raw_init(r, p);
    raw_connect(r, transfer_port(p->t));
    attack(r);
    raw_expect_closed(r);
    raw_finish(r);
    transfer_stats(p->t, &st);
    assert_int_equal(st.protocol_errors, errors);
}

static void ask_too_many_tokens(struct raw *r)
{
    raw_pull(r, "a", 61, 1, false);
}
static void ask_huge(struct raw *r)
{
    raw_pull(r, "a", UINT32_MAX, 1, false);
}
static void ask_many_credits(struct raw *r)
{
    raw_pull(r, "a", 60, UINT32_MAX, false);
}
static void send_noise(struct raw *r)
{
    raw_send_bytes(r, "\x06\xff\xff\xff", 4);
}
static void send_wrong_kind(struct raw *r)
{
    raw_send(r, &(struct message){ .kind = MESSAGE_GRANT }, NULL, 0);
}
static void ask_other_heads(struct raw *r)
{
    struct message m = { .kind = MESSAGE_PULL };

    strcpy(m.u.pull.lease, "a");
    m.u.pull.range = (struct plan_range){ .first_layer = 4,
                                          .n_layers = 3,
                                          .first_head = UINT32_MAX,
                                          .n_heads = 3,
                                          .n_tokens = 60,
                                          .cell_tokens = 16 };
    m.u.pull.batch_pieces = m.u.pull.credits = 1;
    raw_send(r, &m, NULL, 0);
}
static void ask_other_layers(struct raw *r)
{
    struct message m = { .kind = MESSAGE_PULL };

    strcpy(m.u.pull.lease, "a");
    m.u.pull.range = (struct plan_range){
        .first_layer = 5, .n_layers = 3, .n_heads = 3, .n_tokens = 60, .cell_tokens = 16
    };
    m.u.pull.batch_pieces = m.u.pull.credits = 1;
    raw_send(r, &m, NULL, 0);
}

static void violations(void **state)
{
    static struct raw r;
    struct transfer_stats st;
    struct side p, d;

    (void)state;
    log_set_level(LOG_OFF);
    play_pair(&p, &d);
    play_hold(&p, "a", 1);
    hostile(&r, &p, ask_too_many_tokens, 1);
    hostile(&r, &p, ask_huge, 2);
    hostile(&r, &p, ask_many_credits, 3);
    hostile(&r, &p, send_noise, 4);
    hostile(&r, &p, send_wrong_kind, 5);
    hostile(&r, &p, ask_other_heads, 6);
    hostile(&r, &p, ask_other_layers, 7);
    transfer_stats(p.t, &st);
    assert_int_equal(st.leases, 1); /* none of it touched the lease */
    play_pull(&d, &p, "a", 2);
    assert_int_equal(side_event(&d, 0).status, 0);
    play_pair_finish(&p, &d);
}

/* Bulk is for consumers only: a producer does not even fetch it. */
static void unasked_bulk(void **state)
{
    static unsigned char bulk[1 << 20];
    static struct raw r;
    struct side p;
    bool sent = false;

    (void)state;
    (void)sent;
    side_init(&p, true, 16, true);
    side_start(&p);
    raw_init(&r, &p);
    raw_connect(&r, transfer_port(p.t));
    raw_send(&r, &(struct message){ .kind = MESSAGE_DATA }, bulk, sizeof bulk);
    raw_expect_closed(&r);
    raw_finish(&r);
    side_finish(&p);
}

/* Bytes that are not even UCX's. */
static void noise_on_the_port(void **state)
{
    static const char *const noise[] = { "GET / HTTP/1.1\r\n\r\n",
                                         "\xff\xff\xff\xff\xff\xff\xff\xff", "", "\x10" };
    struct side p, d;

    (void)state;
    play_pair(&p, &d);
    for (int round = 0; round < 20; round++) {
        struct sockaddr_in a = { .sin_family = AF_INET,
                                 .sin_port = htons(transfer_port(p.t)),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        const char *text = noise[round % 4];
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        assert_true(send(fd, text, strlen(text), MSG_NOSIGNAL) >= 0);
        close(fd);
    }
    play_hold(&p, "a", 1);
    play_pull(&d, &p, "a", 2);
    assert_int_equal(side_event(&d, 0).status, 0);
    play_pair_finish(&p, &d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(violations),
        cmocka_unit_test(unasked_bulk),
        cmocka_unit_test(noise_on_the_port),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
