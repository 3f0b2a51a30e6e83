/* The input is a text. Every encoding of it decodes, in one piece and as a stream, to the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *load(void)
{
    struct tokenizer *t;
    struct err e = { 0 };

    if (tokenizer_from_dir(&t, SLUICE_SOURCE_ROOT "/tests/data/text/tiny", &e) < 0)
        abort();
    return t;
}

static void check(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    struct detok d;
    struct buf out;
    char *text;
    size_t len;

    buf_init(&out, BUF_MAX_BODY);
    detok_init(&d, t, false);
    for (size_t i = 0; i < n; i++)
        detok_push(&d, ids[i], &out);
    detok_flush(&d, &out);
    if (tokenizer_decode(t, ids, n, false, &text, &len) < 0 || len != out.len ||
        memcmp(text, buf_str(&out), len) != 0 || utf8_valid_prefix(text, len) != len)
        abort();
    free(text);
    buf_finish(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *t;

    if (!t)
        t = load();
    for (unsigned flags = 0; flags < 4; flags++) {
        int32_t *ids = NULL;
        size_t n = 0;

        if (tokenizer_encode(t, (const char *)data, size, flags, &ids, &n) < 0)
            abort();
        check(t, ids, n);
        free(ids);
    }
    return 0;
}
