#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "base/status.h"
#include "transfer/checksum.h"
#include "transfer/handshake.h"
#include "transfer/message.h"
#include "transfer/plan.h"

static struct identity identity(void)
{
    struct identity id = {
        .engine_id = "engine",
        .fingerprint = "model",
        .kv_dtype = "float16",
        .produce = true,
        .layout = { .planes = 2,
                    .n_layers = 2,
                    .kv_heads = 3,
                    .head_dim = 64,
                    .elem_bytes = 2,
                    .block_tokens = 16,
                    .n_blocks = 100 },
    };

    memset(id.boot, 7, sizeof id.boot);
    return id;
}

/* Encoded, decoded, encoded again: the same bytes; every shorter piece, and one byte more, is bad. */
static void round_trip(const struct message *m)
{
    unsigned char a[MESSAGE_MAX + 1], b[MESSAGE_MAX];
    size_t n = message_encode(a, m);
    struct message got;

    assert_int_equal(message_decode(&got, a, n), 0);
    assert_int_equal(got.kind, m->kind);
    assert_int_equal(message_encode(b, &got), n);
    assert_memory_equal(a, b, n);
    for (size_t k = 0; k < n; k++)
        assert_int_equal(message_decode(&got, a, k), ERR_BADMSG);
    a[n] = 0;
    assert_int_equal(message_decode(&got, a, n + 1), ERR_BADMSG);
}

static void every_kind(void **state)
{
    struct message m;

    (void)state;
    for (int kind = MESSAGE_HELLO; kind <= MESSAGE_RANK; kind++) {
        memset(&m, 0, sizeof m);
        m.kind = (enum message_kind)kind;
        if (kind == MESSAGE_READY || kind == MESSAGE_PROVE)
            m.u.ready.identity = identity();
        if (kind == MESSAGE_PULL)
            strcpy(m.u.pull.lease, "lease");
        if (kind == MESSAGE_RANK)
            m.u.rank = (struct message_rank){ 7, { "10.0.0.1", 36007, 4, 2, 1, 3 } };
        if (kind == MESSAGE_RESULT)
            strcpy(m.u.result.text, "why");
        round_trip(&m);
        assert_string_not_equal(message_name(m.kind), "unknown message");
    }
}

static void exact_bytes(void **state)
{
    static const unsigned char want[] = { 8,    8,    7,    6,    5,    4,    3, 2, 1, 0xef, 0xcd,
                                          0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 5, 0, 0, 0 };
    struct message m = { .kind = MESSAGE_DATA };
    unsigned char got[MESSAGE_MAX];

    (void)state;
    m.u.data = (struct message_data){ 0x0102030405060708, 0x0123456789abcdef, 5 };
    assert_int_equal(message_encode(got, &m), sizeof want);
    assert_memory_equal(got, want, sizeof want);
}

static void bad_bytes(void **state)
{
    unsigned char b[MESSAGE_MAX];
    struct message m = { .kind = MESSAGE_DONE }, got;
    size_t n;

    (void)state;
    strcpy(m.u.name.lease, "abc");
    n = message_encode(b, &m);
    b[0] = 0;
    assert_int_equal(message_decode(&got, b, n), ERR_BADMSG);
    b[0] = MESSAGE_RANK + 1;
    assert_int_equal(message_decode(&got, b, n), ERR_BADMSG);
    b[0] = MESSAGE_DONE;
    b[12] = 0; /* a NUL in the string */
    assert_int_equal(message_decode(&got, b, n), ERR_BADMSG);
    b[9] = 0xff; /* the string's length */
    b[10] = 0xff;
    assert_int_equal(message_decode(&got, b, n), ERR_BADMSG);
}

static void checksum_finds_it(void **state)
{
    unsigned char data[256];
    struct checksum c;
    uint64_t good;

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37);
    checksum_init(&c, 5);
    checksum_add(&c, data, sizeof data);
    good = checksum_value(&c);
    checksum_init(&c, 5);
    checksum_add_portable(&c, data, sizeof data);
    assert_int_equal(checksum_value(&c), good);
    checksum_init(&c, 5);
    checksum_add(&c, data, 64);
    checksum_add(&c, data + 64, 192);
    assert_int_equal(checksum_value(&c), good);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        checksum_init(&c, 5);
        checksum_add(&c, data, sizeof data);
        assert_int_not_equal(checksum_value(&c), good);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    checksum_init(&c, 6); /* another place */
    checksum_add(&c, data, sizeof data);
    assert_int_not_equal(checksum_value(&c), good);
    checksum_init(&c, 5); /* two stripes exchanged */
    checksum_add(&c, data + 64, 64);
    checksum_add(&c, data, 64);
    checksum_add(&c, data + 128, 128);
    assert_int_not_equal(checksum_value(&c), good);
}

/* A range of heads and layers of a larger pool: every offset stands where the layout says. */
static void plan_of_a_part(void **state)
{
    static const uint32_t blocks[2] = { 9, 2 };
    const struct kv_layout l = { .planes = 2,
                                 .n_layers = 4,
                                 .first_layer = 10,
                                 .kv_heads = 8,
                                 .head_dim = 64,
                                 .elem_bytes = 2,
                                 .block_tokens = 32,
                                 .n_blocks = 10 };
    struct plan_range r = { .first_layer = 11,
                            .n_layers = 2,
                            .first_head = 4,
                            .n_heads = 2,
                            .first_token = 16,
                            .n_tokens = 40,
                            .cell_tokens = 16 };
    struct plan p;

    (void)state;
    assert_int_equal(plan_init(&p, &l, &r, blocks, 2), 0);
    assert_int_equal(p.n_pieces, 2 * 2 * 2); /* layers, K and V, tokens 16..31 and 32..47 */
    assert_int_equal(p.runs, 2);
    assert_int_equal(p.piece_bytes, 2 * 16 * 64 * 2);
    /* Piece 5: plane 2 (layer 12, K), the second cell: block 2, its first half; head 4 + 1. */
    assert_int_equal(plan_offset(&p, 5, 1),
                     ((2 * 2 + 0) * 10 + 2) * (8 * 32 * 64 * 2) + 5 * (32 * 64 * 2));
    /* Piece 2: plane 1 (layer 11, V), the first cell: block 9, its second half; head 4. */
    assert_int_equal(plan_offset(&p, 2, 0),
                     ((2 * 1 + 1) * 10 + 9) * (8 * 32 * 64 * 2) + 4 * (32 * 64 * 2) + 16 * 64 * 2);
}

/* Latents: a plane a layer, so a piece's plane is its layer. */
static void plan_of_latents(void **state)
{
    static const uint32_t blocks[2] = { 9, 2 };
    const struct kv_layout l = { .planes = 1,
                                 .n_layers = 4,
                                 .kv_heads = 1,
                                 .head_dim = 48,
                                 .elem_bytes = 2,
                                 .block_tokens = 32,
                                 .n_blocks = 10 };
    struct plan_range r = { .n_layers = 4, .n_heads = 1, .n_tokens = 40, .cell_tokens = 16 };
    struct plan p;

    (void)state;
    assert_int_equal(plan_init(&p, &l, &r, blocks, 2), 0);
    assert_int_equal(p.n_pieces, 4 * 3); /* layers, tokens 0..15, 16..31 and 32..47 */
    assert_int_equal(p.piece_bytes, 16 * 48 * 2);
    /* Piece 7: layer 2, the second cell: block 9, its second half. */
    assert_int_equal(plan_offset(&p, 7, 0), (2 * 10 + 9) * (32 * 48 * 2) + 16 * 48 * 2);
}

static void plan_refuses(void **state)
{
    static const uint32_t blocks[2] = { 9, 10 };
    const struct kv_layout l = { .planes = 2,
                                 .n_layers = 4,
                                 .first_layer = 10,
                                 .kv_heads = 8,
                                 .head_dim = 64,
                                 .elem_bytes = 2,
                                 .block_tokens = 32,
                                 .n_blocks = 10 };
    const struct plan_range good = {
        .first_layer = 10, .n_layers = 4, .n_heads = 8, .n_tokens = 20, .cell_tokens = 16
    };
    struct plan_range r;
    struct plan p;

    (void)state;
    assert_int_equal(plan_init(&p, &l, &good, blocks, 2), 0);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        r = good;                                                                                  \
        r.field = (value);                                                                         \
        assert_int_equal(plan_init(&p, &l, &r, blocks, 2), ERR_RANGE);                             \
    } while (0)
    REFUSED(first_layer, 9);
    REFUSED(first_layer, 11);
    REFUSED(first_layer, UINT32_MAX);
    REFUSED(n_layers, 0);
    REFUSED(n_layers, UINT32_MAX);
    REFUSED(first_head, 1);
    REFUSED(n_heads, 9);
    REFUSED(first_token, 8);
    REFUSED(first_token, 32);
    REFUSED(n_tokens, 33); /* block 10 does not exist */
    REFUSED(n_tokens, UINT32_MAX);
    REFUSED(cell_tokens, 0);
    REFUSED(cell_tokens, 24);
    REFUSED(cell_tokens, 64);
#undef REFUSED
}

static void proofs(void **state)
{
    struct message_ready a = { .identity = identity() }, b = { .identity = identity() };
    struct handshake c, p;
    struct message_hello hello = { .version = MESSAGE_VERSION, .secret = true };
    struct err e;

    (void)state;
    handshake_init(&c, HANDSHAKE_CONSUMER, "s");
    handshake_init(&p, HANDSHAKE_PRODUCER, "s");
    memcpy(hello.nonce, c.nonce[HANDSHAKE_CONSUMER], sizeof hello.nonce);
    assert_int_equal(handshake_hello(&p, HANDSHAKE_PRODUCER, &hello, &e), 0);
    memcpy(hello.nonce, p.nonce[HANDSHAKE_PRODUCER], sizeof hello.nonce);
    assert_int_equal(handshake_hello(&c, HANDSHAKE_CONSUMER, &hello, &e), 0);
    handshake_prove(&c, HANDSHAKE_CONSUMER, a.proof, &a.identity);
    handshake_prove(&p, HANDSHAKE_PRODUCER, b.proof, &b.identity);
    assert_int_equal(handshake_verify(&p, HANDSHAKE_CONSUMER, &a, &e), 0);
    assert_int_equal(handshake_verify(&c, HANDSHAKE_PRODUCER, &b, &e), 0);
    /* Sent back to its maker, it proves nothing. */
    assert_int_equal(handshake_verify(&c, HANDSHAKE_PRODUCER, &a, &e), ERR_AUTH);
    a.identity.layout.n_blocks++;
    assert_int_equal(handshake_verify(&p, HANDSHAKE_CONSUMER, &a, &e), ERR_AUTH);
}

/* The layers of drafts may be on one side only; nonsense fits nobody. */
static void draft_layers_may_differ(void **state)
{
    struct identity a = identity(), b = identity();
    struct err e;

    (void)state;
    a.layout.n_layers = 3;
    a.layout.n_draft = 1;
    assert_int_equal(handshake_compare(&a, &b, &e), 0);
    assert_int_equal(handshake_compare(&b, &a, &e), 0);
    a.layout.n_draft = 3;
    assert_int_equal(handshake_compare(&a, &b, &e), ERR_MISMATCH);
    a.layout.n_layers = 2 + KV_LAYOUT_MAX_DRAFT + 1;
    a.layout.n_draft = KV_LAYOUT_MAX_DRAFT + 1;
    assert_int_equal(handshake_compare(&a, &b, &e), ERR_MISMATCH);
}

/* Each side may be told what the other looks like; what is not so is refused, with both numbers. */
static void lies_about_shapes(void **state)
{
    struct identity p = identity(), c = identity();
    struct err e;

    (void)state;
    p.shape = (struct transfer_shape){ .pp = 2, .tp = 8, .dp = 2 };
    c.shape = (struct transfer_shape){ .dp = 32 };
    c.producers = p.shape;
    p.consumers = (struct transfer_shape){ .pp = 1, .tp = 1, .dp = 32 };
    assert_int_equal(handshake_compare(&p, &c, &e), 0);
    c.producers.tp = 4;
    assert_int_equal(handshake_compare(&p, &c, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "tensor-parallel"));
    assert_non_null(strstr(e.text, "says 4, the other side has 8"));
    c.producers.tp = 0;
    c.producers.pp = 1;
    assert_int_equal(handshake_compare(&p, &c, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "says 1, the other side has 2"));
    c.producers.pp = 0;
    p.consumers.dp = 16;
    assert_int_equal(handshake_compare(&p, &c, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "data-parallel"));
    assert_non_null(strstr(e.text, "says 16, the other side has 32"));
}

/* Ranks that cannot be. */
static void impossible_ranks(void **state)
{
    static const struct transfer_shape shapes[] = {
        { .pp = UINT32_MAX, .tp = UINT32_MAX },
        { .pp = 2, .tp = TRANSFER_RANKS_MAX },
        { .pp = 2, .tp = 2 },
    };
    struct identity p = identity(), c = identity();
    struct err e;

    (void)state;
    p.rank = 4;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        p.shape = shapes[i];
        assert_int_equal(handshake_compare(&p, &c, &e), ERR_MISMATCH);
    }
    p.rank = 3;
    assert_int_equal(handshake_compare(&p, &c, &e), 0);
    p.layout.first_head = UINT32_MAX;
    assert_int_equal(handshake_compare(&p, &c, &e), ERR_MISMATCH);
    p.layout.first_head = 0;
    p.layout.first_layer = UINT32_MAX;
    assert_int_equal(handshake_compare(&p, &c, &e), ERR_MISMATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind),
        cmocka_unit_test(exact_bytes),
        cmocka_unit_test(bad_bytes),
        cmocka_unit_test(checksum_finds_it),
        cmocka_unit_test(plan_of_a_part),
        cmocka_unit_test(plan_refuses),
        cmocka_unit_test(plan_of_latents),
        cmocka_unit_test(proofs),
        cmocka_unit_test(draft_layers_may_differ),
        cmocka_unit_test(lies_about_shapes),
        cmocka_unit_test(impossible_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
