/* The same body, or the same refusal, in one piece and byte by byte. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "net/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct result {
    char *body;
    size_t len, used;
    bool bad, done;
};

static void decode(struct result *r, const char *in, size_t size, size_t piece)
{
    struct http_chunked c = { 0 };

    *r = (struct result){ .body = malloc(size + 1) };
    assert(r->body);
    while (r->used < size && c.state != CHUNK_DONE) {
        size_t give = size - r->used < piece ? size - r->used : piece, n;
        const char *data;
        ssize_t used = http_chunked_take(&c, in + r->used, give, &data, &n);

        if (used < 0) {
            r->bad = true;
            return;
        }
        assert(used > 0 && (size_t)used <= give && n <= (size_t)used);
        memcpy(r->body + r->len, data, n);
        r->len += n;
        r->used += (size_t)used;
    }
    r->done = c.state == CHUNK_DONE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct result a, b;

    decode(&a, (const char *)data, size, size ? size : 1);
    decode(&b, (const char *)data, size, 1);
    assert(a.bad == b.bad && a.done == b.done);
    assert(a.bad || (a.len == b.len && a.used == b.used && memcmp(a.body, b.body, a.len) == 0));
    free(a.body);
    free(b.body);
    return 0;
}
