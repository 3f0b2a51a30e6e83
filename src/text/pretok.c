#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretok.h"

#include <pcre2.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/regex.h"
#include "text/utf8.h"

void pretok_finish(struct pretok *p)
{
    for (int i = 0; i < p->n; i++)
        pcre2_code_free(p->step[i].code);
    p->n = 0;
}

/* In Oniguruma's syntax ^ and $ always mean lines. */
static pcre2_code *compile(const char *pattern, size_t len, bool literal, struct err *e)
{
    uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
    unsigned char reason[256];
    pcre2_code *code;
    size_t where;
    int why;

    code = pcre2_compile((PCRE2_SPTR)pattern, len, options, &why, &where, NULL);
    if (!code) {
        pcre2_get_error_message(why, reason, sizeof reason);
        err_set(e, ERR_BADMSG, "pre-tokenizer pattern '%.300s': %s at byte %zu", pattern,
                (char *)reason, where);
        return NULL;
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where it cannot be, the interpreter serves */
    return code;
}

int pretok_add(struct pretok *p, const char *pattern, size_t len, bool literal,
               enum pretok_split split, bool invert, struct err *e)
{
    struct buf own;
    pcre2_code *code = NULL;
    int st;

    if (p->n == PRETOK_MAX_STEPS)
        return err_set(e, ERR_LIMIT, "more than %d pre-tokenizer steps", PRETOK_MAX_STEPS);
    buf_init(&own, 64 * REGEX_MAX_SOURCE);
    st = literal ? buf_append(&own, pattern, len) : regex_translate(&own, pattern, len, e);
    if (st == 0 && !(code = compile(buf_str(&own), own.len, literal, e)))
        st = ERR_BADMSG;
    buf_finish(&own);
    if (st < 0)
        return st;
    p->step[p->n++] = (struct pretok_step){ code, split, invert };
    return 0;
}

int pretok_work_init(struct pretok_work *w)
{
    w->match = pcre2_match_data_create(1, NULL);
    w->context = pcre2_match_context_create(NULL);
    if (!w->match || !w->context)
        return ERR_NOMEM;
    pcre2_set_match_limit(w->context, PRETOK_MATCH_LIMIT);
    pcre2_set_heap_limit(w->context, PRETOK_HEAP_KIB);
    return 0;
}

void pretok_work_finish(struct pretok_work *w)
{
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
}

struct run {
    const struct pretok *p;
    struct pretok_work *w;
    pretok_word_fn *word;
    void *arg;
};

/* A piece that may still be joined with the next one. */
struct piece {
    const char *start, *stop;
    bool match, set;
};

static int run_step(const struct run *r, int i, const char *text, size_t len);

static bool joins(enum pretok_split split, bool before, bool match)
{
    switch (split) {
    case PRETOK_CONTIGUOUS:
        return before == match;
    case PRETOK_PREVIOUS:
        return match && !before;
    case PRETOK_NEXT:
        return before && !match;
    case PRETOK_ISOLATED:
    case PRETOK_REMOVED:
        break;
    }
    return false;
}

static int flush(const struct run *r, int i, struct piece *held)
{
    bool drop = !held->set || (held->match && r->p->step[i].split == PRETOK_REMOVED);

    held->set = false;
    return drop ? 0 : run_step(r, i + 1, held->start, (size_t)(held->stop - held->start));
}

/* Takes the next piece of step i in. */
static int take(const struct run *r, int i, struct piece *held, const char *start, const char *stop,
                bool match)
{
    const struct pretok_step *s = &r->p->step[i];
    int st;

    if (start == stop)
        return 0;
    match = match != s->invert;
    if (held->set && joins(s->split, held->match, match)) {
        held->stop = stop;
        held->match = match;
        return 0;
    }
    if ((st = flush(r, i, held)) < 0)
        return st;
    *held = (struct piece){ start, stop, match, true };
    return 0;
}

/* The next match at or after `at`: 1, 0 for none, or an error. The JIT's stack is small; what does not
 * fit it goes through the interpreter. */
static int find(const struct run *r, const pcre2_code *code, const char *text, size_t len,
                size_t at, size_t *start, size_t *stop)
{
    size_t *v = pcre2_get_ovector_pointer(r->w->match);
    int rc = pcre2_match(code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, r->w->match,
                         r->w->context);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         r->w->match, r->w->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return rc == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT;
    *start = v[0];
    *stop = v[1] < v[0] ? v[0] : v[1]; /* \K may turn them round */
    return 1;
}

static int run_step(const struct run *r, int i, const char *text, size_t len)
{
    struct piece held = { 0 };
    size_t from = 0, at = 0, start, stop, l;
    int st;

    if (i == r->p->n)
        return r->word(r->arg, text, len);
    while (at <= len && (st = find(r, r->p->step[i].code, text, len, at, &start, &stop)) != 0) {
        if (st < 0 || start < from)
            return st < 0 ? st : ERR_LIMIT;
        if ((st = take(r, i, &held, text + from, text + start, false)) < 0 ||
            (st = take(r, i, &held, text + start, text + stop, true)) < 0)
            return st;
        from = at = stop;
        if (start == stop) { /* an empty match only cuts */
            if (at == len)
                break;
            utf8_get(text + at, &l);
            at += l;
        }
    }
    if ((st = take(r, i, &held, text + from, text + len, false)) < 0)
        return st;
    return flush(r, i, &held);
}

int pretok_run(const struct pretok *p, struct pretok_work *w, const char *text, size_t len,
               pretok_word_fn *word, void *arg)
{
    struct run r = { p, w, word, arg };

    return len ? run_step(&r, 0, text, len) : 0;
}
