/* The safetensors reader on good, truncated, hostile and wrong files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "model/safetensors.h"

#define GOOD                                                                                       \
    "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"                         \
    "\"__metadata__\":{\"format\":\"pt\"},"                                                        \
    "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}"

/* A file of the header and n bytes of data, in a block of exactly its size. */
static unsigned char *make(const char *header, size_t n, size_t *len)
{
    uint64_t h = strlen(header);
    unsigned char *p = calloc(1, 8 + h + n);

    assert_non_null(p);
    memcpy(p, &h, sizeof h);
    memcpy(p + 8, header, h);
    *len = 8 + h + n;
    return p;
}

static void refuse(const char *header, size_t n, int status, const char *part)
{
    struct safetensors *s = NULL;
    struct err e = { 0 };
    size_t len;
    unsigned char *p = make(header, n, &len);
    int st = safetensors_parse(&s, p, len, &e);

    if (st != status || !strstr(e.text, part))
        fail_msg("status %s, sentence \"%s\", expected %s and \"%s\"", status_name(st), e.text,
                 status_name(status), part);
    assert_null(s);
    free(p);
}

static void test_reads(void **state)
{
    struct safetensors *s;
    struct err e = { 0 };
    const struct tensor *t;
    size_t len, n;
    unsigned char *p = make(GOOD, 16, &len);

    (void)state;
    assert_int_equal(safetensors_parse(&s, p, len, &e), 0);
    t = safetensors_tensors(s, &n);
    assert_int_equal(n, 2);
    assert_string_equal(t[0].name, "a");
    assert_int_equal(t[0].n_dims, 0);
    assert_int_equal(t[1].type, K_BF16);
    assert_int_equal(t[1].shape[1], 3);
    assert_int_equal(t[1].bytes, 12);
    assert_ptr_equal(t[1].data, p + len - 12);
    safetensors_free(s);
    free(p);
}

static void test_every_truncation(void **state)
{
    size_t len;
    unsigned char *p = make(GOOD, 16, &len);

    (void)state;
    for (size_t n = 0; n < len; n++) {
        struct safetensors *s = NULL;
        struct err e = { 0 };
        unsigned char *cut = malloc(n ? n : 1);

        assert_non_null(cut);
        memcpy(cut, p, n);
        assert_int_equal(safetensors_parse(&s, cut, n, &e), ERR_BADMSG);
        assert_true(e.text[0] != '\0');
        free(cut);
    }
    free(p);
}

static void test_header(void **state)
{
    struct safetensors *s = NULL;
    struct err e = { 0 };
    uint64_t huge = UINT64_MAX;

    (void)state;
    assert_int_equal(safetensors_parse(&s, &huge, sizeof huge, &e), ERR_BADMSG);
    assert_non_null(strstr(e.text, "a header of 18446744073709551615 bytes"));
    refuse("[1]", 0, ERR_BADMSG, "not a JSON object");
    refuse("{\"a\":", 0, ERR_BADMSG, "offset 13: the header is not JSON");
    refuse("{\"a\":{},\"a\":{}}", 0, ERR_BADMSG, "duplicate");
}

static void test_tensors(void **state)
{
    (void)state;
    refuse("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ERR_BADMSG,
           "tensor a: no \"dtype\"");
    refuse("{\"a\":7}", 4, ERR_BADMSG, "tensor a: no \"dtype\"");
    refuse("{\"a\":{\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ERR_UNSUPPORTED,
           "tensor a: dtype \"Q9\" is not known");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, ERR_BADMSG,
           "size 0 of its shape");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
           ERR_BADMSG, "at most 4 sizes");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}",
           4, ERR_BADMSG, "impossibly large");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4,
           ERR_BADMSG, "tensor a"); /* times 4 overflows to 4 */
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 8, ERR_BADMSG,
           "F32 [2] takes 8 bytes, found 4");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 8, ERR_BADMSG,
           "from <= to");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 8, ERR_BADMSG,
           "from <= to");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 7, ERR_BADMSG,
           "end behind the file's");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
           "\"data_offsets\":[9223372036854775804,9223372036854775807]}}",
           7, ERR_BADMSG, "end behind the file's");
}

/* Gaps and shared bytes are nobody's harm. */
static void test_tolerated(void **state)
{
    struct safetensors *s;
    struct err e = { 0 };
    size_t len;
    unsigned char *p = make("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]},"
                            "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]}}",
                            20, &len);

    (void)state;
    assert_int_equal(safetensors_parse(&s, p, len, &e), 0);
    safetensors_free(s);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),     cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_header),    cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_tolerated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
