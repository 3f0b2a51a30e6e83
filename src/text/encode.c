/* From text to ids: good UTF-8, added tokens, normal form, more added tokens, words, BPE. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

/* One encoding. */
struct encoding {
    const struct tokenizer *t;
    bool plain; /* special tokens are text */
    struct pretok_work split;
    struct bpe_work merge;
    struct buf clean, normal;
    struct ids out;
};

static int on_word(void *arg, const char *word, size_t len)
{
    struct encoding *x = arg;

    return bpe_encode(&x->t->bpe, &x->merge, word, len, &x->out);
}

typedef int text_fn(struct encoding *x, const char *text, size_t len);

/* Cuts text at the tokens of `a`; what is between them goes to `rest`. */
static int cut(struct encoding *x, const struct added *a, const char *text, size_t len,
               text_fn *rest)
{
    struct added_hit hit;
    size_t at = 0;
    int st;

    for (; added_next(a, text, len, at, x->plain, &hit); at = hit.stop)
        if ((st = rest(x, text + at, hit.start - at)) < 0 || (st = ids_push(&x->out, hit.id)) < 0)
            return st;
    return rest(x, text + at, len - at);
}

static int words(struct encoding *x, const char *text, size_t len)
{
    return pretok_run(&x->t->pretok, &x->split, text, len, on_word, x);
}

static int normalize(struct encoding *x, const char *text, size_t len)
{
    int st;

    if (len == 0)
        return 0;
    if (x->t->normal != NORMAL_NONE) {
        buf_reset(&x->normal);
        if ((st = normal_append(&x->normal, x->t->normal, text, len)) < 0)
            return st;
        text = buf_str(&x->normal);
        len = x->normal.len;
    }
    return cut(x, &x->t->added_normal, text, len, words);
}

static int encode_text(struct encoding *x, const char *text, size_t len)
{
    int st;

    if (utf8_valid_prefix(text, len) < len) {
        if ((st = utf8_append_clean(&x->clean, text, len)) < 0)
            return st;
        text = buf_str(&x->clean);
        len = x->clean.len;
    }
    return cut(x, &x->t->added_raw, text, len, normalize);
}

static int push_all(struct ids *out, const struct ids *more)
{
    int st = 0;

    for (size_t i = 0; i < more->n && st == 0; i++)
        st = ids_push(out, more->v[i]);
    return st;
}

static bool same(const int32_t *v, const struct ids *l)
{
    return memcmp(v, l->v, l->n * sizeof *v) == 0;
}

/* Puts prefix and suffix around the ids, unless they stand there already. */
static int add_around(const struct tokenizer *t, struct ids *l)
{
    const struct ids *pre = &t->prefix, *post = &t->suffix;
    struct ids all = { 0 };
    int st = 0;

    if (pre->n && !(l->n >= pre->n && same(l->v, pre)))
        st = push_all(&all, pre);
    if (st == 0)
        st = push_all(&all, l);
    if (st == 0 && post->n && !(l->n >= post->n && same(l->v + l->n - post->n, post)))
        st = push_all(&all, post);
    if (st < 0) {
        free(all.v);
        return st;
    }
    free(l->v);
    *l = all;
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     int32_t **ids, size_t *n)
{
    struct encoding x = { .t = t, .plain = flags & TOK_PLAIN_SPECIAL };
    int st;

    buf_init(&x.clean, BUF_MAX_BODY);
    buf_init(&x.normal, BUF_MAX_BODY);
    st = len > BUF_MAX_BODY ? ERR_TOOLONG : pretok_work_init(&x.split);
    if (st == 0)
        st = encode_text(&x, text, len);
    if (st == 0 && flags & TOK_ADD_SPECIAL)
        st = add_around(t, &x.out);
    pretok_work_finish(&x.split);
    bpe_work_finish(&x.merge);
    buf_finish(&x.clean);
    buf_finish(&x.normal);
    if (st < 0) {
        free(x.out.v);
        return st;
    }
    *ids = x.out.v;
    *n = x.out.n;
    return 0;
}
