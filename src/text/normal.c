#include "text/normal.h"

#include <stdbool.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/utf8.h"

#define DECOMPOSED_MAX 18 /* characters that one may become (UAX 15, table 10) */

struct mark {
    int32_t cp;
    uint32_t at; /* its place in the text: equal classes keep their order */
    int16_t class;
};

static int compare(const void *x, const void *y)
{
    const struct mark *a = x, *b = y;

    if (a->class != b->class)
        return a->class < b->class ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

static int16_t combining_class(int32_t cp)
{
    return (int16_t)utf8proc_get_property(cp)->combining_class;
}

/* Puts each run of combining marks in the order of their classes. utf8proc does this too, but in
 * quadratic time, which a long run of marks would make felt. */
static int order_marks(int32_t *cp, size_t n)
{
    struct mark *run = NULL;
    size_t cap = 0;

    for (size_t from = 0, to; from < n; from = to + 1) {
        size_t len;

        for (to = from; to < n && combining_class(cp[to]) != 0;)
            to++;
        if ((len = to - from) < 2)
            continue;
        if (len > cap) {
            free(run);
            cap = 2 * len;
            if (!(run = malloc(cap * sizeof *run)))
                return ERR_NOMEM;
        }
        for (size_t i = 0; i < len; i++)
            run[i] = (struct mark){ cp[from + i], (uint32_t)i, combining_class(cp[from + i]) };
        qsort(run, len, sizeof *run, compare);
        for (size_t i = 0; i < len; i++)
            cp[from + i] = run[i].cp;
    }
    free(run);
    return 0;
}

/* Every character in its decomposed form. *out is owned by the caller, also on failure. */
static int decompose(int32_t **out, size_t *out_n, bool compat, const char *s, size_t n)
{
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                (compat ? UTF8PROC_COMPAT : 0);
    size_t cap = 0, len = 0;

    for (size_t at = 0, l; at < n; at += l) {
        int32_t cp = (int32_t)utf8_get(s + at, &l);
        int boundary = 0;
        utf8proc_ssize_t got;

        if (cap - len < DECOMPOSED_MAX) {
            int32_t *p = realloc(*out, (cap = 2 * cap + n / 2 + 4 * DECOMPOSED_MAX) * sizeof *p);

            if (!p)
                return ERR_NOMEM;
            *out = p;
        }
        got = utf8proc_decompose_char(cp, *out + len, DECOMPOSED_MAX, options, &boundary);
        if (got < 0 || got > DECOMPOSED_MAX)
            (*out)[len++] = cp;
        else
            len += (size_t)got;
    }
    *out_n = len;
    return 0;
}

static int encode(struct buf *out, const int32_t *cp, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c[UTF8_MAX];

        buf_append(out, c, utf8_put(c, (uint32_t)cp[i]));
    }
    return out->status;
}

/* No character below U+0300 combines or is changed by NFC. */
static bool is_plain(enum normal_form form, const char *s, size_t n)
{
    unsigned char limit = form == NORMAL_NFC ? 0xcc : 0x80;

    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= limit)
            return false;
    return true;
}

int normal_append(struct buf *out, enum normal_form form, const char *s, size_t n)
{
    bool compat = form == NORMAL_NFKC || form == NORMAL_NFKD;
    bool compose = form == NORMAL_NFC || form == NORMAL_NFKC;
    int32_t *cp = NULL;
    size_t n_cp = 0;
    int st;

    if (form == NORMAL_NONE || is_plain(form, s, n))
        return buf_append(out, s, n);
    st = decompose(&cp, &n_cp, compat, s, n);
    if (st == 0)
        st = order_marks(cp, n_cp);
    if (st == 0 && compose) {
        utf8proc_ssize_t got = utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)n_cp,
                                                        UTF8PROC_STABLE | UTF8PROC_COMPOSE);

        if (got >= 0)
            n_cp = (size_t)got;
    }
    if (st == 0)
        st = encode(out, cp, n_cp);
    free(cp);
    return st;
}
