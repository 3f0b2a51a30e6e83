/* The GGUF reader on good, truncated, hostile and wrong files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/status.h"
#include "gguf_build.h"
#include "model/gguf.h"

/* Parses a copy of exactly n bytes, so that a sanitizer sees the first byte too many. */
static int parse_bytes(const void *data, size_t n, struct gguf **g, void **copy, struct err *e)
{
    *copy = malloc(n ? n : 1);
    assert_non_null(*copy);
    if (n)
        memcpy(*copy, data, n);
    return gguf_parse(g, *copy, n, e);
}

/* Expects `status` and a sentence that holds `part`. */
static void refuse(struct buf *b, int status, const char *part)
{
    struct gguf *g = NULL;
    struct err e = { 0 };
    void *copy;
    int st = parse_bytes(buf_str(b), b->len, &g, &copy, &e);

    if (st != status || !strstr(e.text, part))
        fail_msg("status %s, sentence \"%s\", expected %s and \"%s\"", status_name(st), e.text,
                 status_name(status), part);
    assert_null(g);
    free(copy);
    buf_finish(b);
}

static void start(struct buf *b, uint64_t tensors, uint64_t keys)
{
    buf_init(b, BUF_MAX_LINE);
    put_header(b, 3, tensors, keys);
}

/* Two matrices, one of each kind of key. */
static void good_file(struct buf *b, uint32_t version)
{
    buf_init(b, BUF_MAX_LINE);
    put_header(b, version, 2, 7);
    put_key_text(b, "general.architecture", "llama");
    put_key_u32(b, "n", 7);
    put_key_f32(b, "f", 0.5f);
    put_text(b, "yes");
    put_u32(b, T_BOOL);
    buf_putc(b, 1);
    put_text(b, "big");
    put_u32(b, T_U64);
    put_u64(b, 1ull << 40);
    put_text(b, "words");
    put_u32(b, T_ARRAY);
    put_u32(b, T_STRING);
    put_u64(b, 2);
    put_text(b, "a");
    put_text(b, "");
    put_text(b, "numbers");
    put_u32(b, T_ARRAY);
    put_u32(b, T_U32);
    put_u64(b, 3);
    for (uint32_t i = 0; i < 3; i++)
        put_u32(b, 10 + i);
    put_matrix(b, "z", 2, 32, 8, 0); /* Q8_0: 68 bytes */
    put_matrix(b, "a", 1, 4, 0, 96); /* F32: 16 bytes */
    pad_to(b, 32);
    for (int i = 0; i < 112; i++)
        buf_putc(b, (char)i);
}

static void test_reads(void **state)
{
    struct buf b;
    struct gguf *g;
    struct err e = { 0 };
    struct gguf_array a;
    const struct tensor *t;
    const unsigned char *p;
    const char *s;
    void *copy;
    uint64_t n, v;
    size_t len;
    double f;
    bool yes;

    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        good_file(&b, version);
        assert_int_equal(parse_bytes(b.data, b.len, &g, &copy, &e), 0);
        assert_int_equal(gguf_version(g), version);
        assert_int_equal(gguf_u64(g, "n", &v, &e), 0);
        assert_int_equal(v, 7);
        assert_int_equal(gguf_u64(g, "big", &v, &e), 0);
        assert_true(v == 1ull << 40);
        assert_int_equal(gguf_f64(g, "f", &f, &e), 0);
        assert_true(f == 0.5);
        assert_int_equal(gguf_bool(g, "yes", &yes, &e), 0);
        assert_true(yes);
        assert_int_equal(gguf_array(g, "words", GGUF_STRING, &a, &e), 0);
        assert_int_equal(a.n, 2);
        p = a.data;
        s = gguf_next_string(&p, &len);
        assert_true(len == 1 && s[0] == 'a');
        gguf_next_string(&p, &len);
        assert_int_equal(len, 0);
        assert_int_equal(gguf_array(g, "numbers", GGUF_STRING, &a, &e), ERR_BADMSG);
        assert_non_null(strstr(e.text, "expected an array of string, found one of uint32"));
        assert_int_equal(gguf_u64(g, "f", &v, &e), ERR_BADMSG);
        assert_int_equal(gguf_u64(g, "none", &v, &e), ERR_NOTFOUND);
        t = gguf_tensors(g, &n);
        assert_int_equal(n, 2);
        assert_string_equal(t[0].name, "a");
        assert_int_equal(t[0].shape[1], 4);
        assert_string_equal(t[1].dtype, "Q8_0");
        assert_int_equal(t[1].bytes, 68);
        assert_int_equal(t[1].data[67], 67);
        gguf_free(g);
        free(copy);
        buf_finish(&b);
    }
}

static void test_every_truncation(void **state)
{
    struct buf b;

    (void)state;
    good_file(&b, 3);
    for (size_t n = 0; n < b.len; n++) {
        struct gguf *g = NULL;
        struct err e = { 0 };
        void *copy;
        int st = parse_bytes(b.data, n, &g, &copy, &e);

        assert_int_equal(st, ERR_BADMSG);
        assert_true(e.text[0] != '\0');
        free(copy);
    }
    buf_finish(&b);
}

/* Whatever one byte becomes, the reader answers and stays inside the file. */
static void test_every_byte(void **state)
{
    static const unsigned char values[] = { 0x00, 0x01, 0x7f, 0x80, 0xff };
    struct buf b;

    (void)state;
    good_file(&b, 3);
    for (size_t i = 0; i < b.len * sizeof values; i++) {
        struct gguf *g = NULL;
        void *copy;
        char old = b.data[i / sizeof values];

        b.data[i / sizeof values] = (char)values[i % sizeof values];
        if (parse_bytes(b.data, b.len, &g, &copy, NULL) == 0)
            gguf_free(g);
        b.data[i / sizeof values] = old;
        free(copy);
    }
    buf_finish(&b);
}

static void test_headers(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, BUF_MAX_LINE);
    buf_puts(&b, "GGML 0123456789 0123456789");
    refuse(&b, ERR_BADMSG, "offset 0: not a GGUF file");
    buf_init(&b, BUF_MAX_LINE);
    put_header(&b, 1, 0, 0);
    refuse(&b, ERR_UNSUPPORTED, "version 1; versions 2 and 3");
    buf_init(&b, BUF_MAX_LINE);
    put_header(&b, 0x03000000, 0, 0);
    refuse(&b, ERR_UNSUPPORTED, "(big endian)");
    start(&b, 0, UINT64_MAX);
    refuse(&b, ERR_BADMSG, "offset 16: 18446744073709551615 keys do not fit");
    start(&b, UINT64_MAX / 8, 0);
    refuse(&b, ERR_BADMSG, "offset 8:");
}

static void test_hostile_keys(void **state)
{
    struct buf b;

    (void)state;
    start(&b, 0, 1);
    put_u64(&b, UINT64_MAX); /* length of the key */
    put_u64(&b, 0);
    refuse(&b, ERR_BADMSG, "offset 32: a key needs 18446744073709551615 bytes");
    start(&b, 0, 1);
    put_text(&b, "k");
    put_u32(&b, 13);
    put_u64(&b, 0);
    refuse(&b, ERR_BADMSG, "value type 13 is not known");
    start(&b, 0, 1);
    put_text(&b, "k");
    put_u32(&b, T_ARRAY);
    put_u32(&b, T_U64);
    put_u64(&b, UINT64_MAX / 8 + 2); /* 8 times it overflows to 8 */
    put_u64(&b, 0);
    refuse(&b, ERR_BADMSG, "an array is longer than the file");
    start(&b, 0, 1);
    put_text(&b, "k");
    put_u32(&b, T_ARRAY);
    put_u32(&b, T_ARRAY);
    put_u64(&b, 1);
    put_u64(&b, 0);
    refuse(&b, ERR_BADMSG, "array of arrays");
    start(&b, 0, 2);
    put_key_u32(&b, "k", 1);
    put_key_u32(&b, "k", 2);
    refuse(&b, ERR_BADMSG, "key \"k\" occurs twice");
    start(&b, 0, 1);
    put_key_u32(&b, "general.alignment", 0);
    refuse(&b, ERR_BADMSG, "general.alignment is 0");
    start(&b, 0, 1);
    put_key_u32(&b, "general.alignment", 48);
    refuse(&b, ERR_BADMSG, "power of two");
}

static void one_matrix(struct buf *b, uint64_t rows, uint64_t cols, uint32_t type, uint64_t offset)
{
    start(b, 1, 0);
    put_matrix(b, "t", rows, cols, type, offset);
    pad_to(b, 32);
    for (int i = 0; i < 64; i++)
        buf_putc(b, 0);
}

static void test_hostile_tensors(void **state)
{
    struct buf b;

    (void)state;
    one_matrix(&b, 4, 4, 0, 32);
    refuse(&b, ERR_BADMSG, "tensor t: its 64 bytes at offset 96 + 32 end behind the file's 160");
    one_matrix(&b, 1, 1, 0, UINT64_MAX - 31); /* plus its start overflows */
    refuse(&b, ERR_BADMSG, "end behind the file");
    one_matrix(&b, 1, 4, 0, 4);
    refuse(&b, ERR_BADMSG, "offset 4 is not a multiple of the alignment 32");
    one_matrix(&b, 1ull << 33, 1ull << 33, 0, 0);
    refuse(&b, ERR_BADMSG, "impossibly large");
    one_matrix(&b, 1ull << 31, 1ull << 31, 28, 0); /* elements fit, bytes do not */
    refuse(&b, ERR_BADMSG, "impossibly large");
    one_matrix(&b, 1, 40, 3, 0);
    refuse(&b, ERR_BADMSG, "tensor t is Q4_1, whose rows are whole blocks of 32; found rows of 40");
    one_matrix(&b, 1, 4, 99, 0);
    refuse(&b, ERR_UNSUPPORTED, "tensor t has type 99");
    one_matrix(&b, 1, 4, 4, 0); /* a hole in ggml's numbers */
    refuse(&b, ERR_UNSUPPORTED, "tensor t has type 4");
    start(&b, 1, 0);
    put_text(&b, "t");
    put_u32(&b, 5);
    for (int i = 0; i < 8; i++)
        put_u64(&b, 1);
    refuse(&b, ERR_BADMSG, "tensor t has 5 dimensions");
    start(&b, 2, 0);
    put_matrix(&b, "t", 1, 4, 0, 0);
    put_matrix(&b, "t", 1, 4, 0, 32);
    pad_to(&b, 32);
    for (int i = 0; i < 64; i++)
        buf_putc(&b, 0);
    refuse(&b, ERR_BADMSG, "tensor t occurs twice");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_byte),   cmocka_unit_test(test_headers),
        cmocka_unit_test(test_hostile_keys), cmocka_unit_test(test_hostile_tensors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
