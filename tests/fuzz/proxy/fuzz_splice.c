/* What splice_check accepts, jansson accepts too (but for depth, numbers out of range and bad UTF-8);
 * an edited object is an object and has the edits; no edit leaves the text alone. */
#include <assert.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "proxy/legs.h"
#include "proxy/splice.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void compare(const char *text, size_t len)
{
    json_error_t e;
    json_t *j = json_loadb(text, len, JSON_ALLOW_NUL, &e);

    if (!j)
        assert(json_error_code(&e) == json_error_invalid_utf8 ||
               json_error_code(&e) == json_error_numeric_overflow ||
               strstr(e.text, "real number overflow") || strstr(e.text, "Unicode") ||
               strstr(e.text, "unicode") || strstr(e.text, "too big") || strstr(e.text, "NUL"));
    json_decref(j);
}

static void edit(const char *text, size_t len)
{
    struct splice_text object = { text, len };
    const struct splice_edit e[] = { { "a", SPLICE_SET, { "[7]", 3 } },
                                     { "b", SPLICE_DELETE, { NULL, 0 } } };
    struct legs_request r;
    struct buf b;
    size_t at;

    buf_init(&b, BUF_MAX_BODY);
    assert(splice_edit(&b, object, e, 0) == 0 && b.len == len && memcmp(b.data, text, len) == 0);
    buf_reset(&b);
    assert(splice_edit(&b, object, e, 2) == 0 && splice_check(b.data, b.len, &at) == 0);
    object = (struct splice_text){ b.data, b.len };
    assert(splice_is(splice_get(object, "a"), "[7]") && !splice_get(object, "b").p);
    buf_reset(&b);
    if (legs_read(&r, text, len, &at) == 0)
        assert(legs_prefill_body(&b, &r) == 0 && splice_check(b.data, b.len, &at) == 0);
    buf_reset(&b);
    legs_fix_usage(&b, text, len, 5);
    buf_finish(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t at;

    if (splice_check((const char *)data, size, &at) < 0) {
        assert(at <= size);
        return 0;
    }
    compare((const char *)data, size);
    edit((const char *)data, size);
    return 0;
}
