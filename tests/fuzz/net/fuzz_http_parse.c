/* Whatever the bytes: no read outside them, and every slice of an accepted head lies inside it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "net/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct http_head *h, char *copy, size_t len)
{
    for (uint32_t i = 0; i < h->n_fields; i++) {
        assert(h->field[i].name.at + h->field[i].name.len < len);
        assert(h->field[i].value.at + h->field[i].value.len < len);
    }
    http_head_terminate(h, copy);
    if (h->method.len)
        http_percent_decode(copy + h->target.at, true);
    (void)http_head_field(h, copy, "content-length");
}

static void parse(const char *text, size_t len, bool reply)
{
    struct http_head h;
    size_t scanned = 0, end = http_head_end(text, len, &scanned);
    char *copy;

    if (!end)
        return;
    copy = malloc(end);
    assert(copy && end <= len);
    memcpy(copy, text, end);
    if ((reply ? http_parse_reply(&h, copy, end) : http_parse_request(&h, copy, end)) == 0)
        check(&h, copy, end);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse((const char *)data, size, false);
    parse((const char *)data, size, true);
    return 0;
}
