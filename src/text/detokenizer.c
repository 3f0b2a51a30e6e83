#include "text/detokenizer.h"

#include <assert.h>
#include <string.h>

#include "base/buf.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

void detok_init(struct detok *d, const struct tokenizer *tok, bool skip_special)
{
    *d = (struct detok){ .tok = tok, .skip_special = skip_special };
}

/* The held bytes never are a whole character or a bad part: those leave at once. */
static void push_byte(struct detok *d, char c, struct buf *out)
{
    size_t len;

    assert(d->held < sizeof d->hold);
    d->hold[d->held++] = (unsigned char)c;
    while (d->held > 0) {
        const char *hold = (const char *)d->hold;

        switch (utf8_scan(hold, d->held, &len)) {
        case UTF8_SHORT:
            return;
        case UTF8_GOOD:
            buf_append(out, hold, len);
            break;
        case UTF8_BAD:
            buf_append(out, UTF8_REPLACEMENT, UTF8_REPLACEMENT_LEN);
            break;
        }
        d->held = (uint8_t)(d->held - len);
        memmove(d->hold, d->hold + len, d->held);
    }
}

int detok_push(struct detok *d, int32_t id, struct buf *out)
{
    size_t len;
    const char *bytes = tokenizer_bytes(d->tok, id, &len);

    if (d->skip_special && tokenizer_is_special(d->tok, id))
        return out->status;
    for (size_t i = 0; i < len; i++) {
        size_t run = d->held == 0 ? utf8_valid_prefix(bytes + i, len - i) : 0;

        if (run > 0) {
            buf_append(out, bytes + i, run);
            i += run - 1;
        } else {
            push_byte(d, bytes[i], out);
        }
    }
    return out->status;
}

int detok_flush(struct detok *d, struct buf *out)
{
    if (d->held > 0)
        buf_append(out, UTF8_REPLACEMENT, UTF8_REPLACEMENT_LEN);
    d->held = 0;
    return out->status;
}
