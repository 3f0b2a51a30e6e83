#include "text/jinja/render.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "text/template.h"
#include "text/utf8.h"

int render_fail(struct render *r, int status, const char *fmt, ...)
{
    char what[700];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(r->e, status, "chat template, line %u: %s", r->line, what);
}

int render_no_memory(struct render *r)
{
    return render_fail(r, ERR_LIMIT, "the rendering needs more than %u bytes, or than there are",
                       RENDER_MAX_MEMORY);
}

int render_undefined(struct render *r, const struct value *v)
{
    return render_fail(r, ERR_BADMSG, "'%.*s' is undefined", (int)(v->str.n > 80 ? 80 : v->str.n),
                       v->str.s);
}

int render_string(struct render *r, const char *s, size_t n, struct value *out)
{
    char *copy = arena_copy(&r->arena, s, n);

    if (!copy)
        return render_no_memory(r);
    *out = value_str(copy, n);
    return 0;
}

int render_take(struct render *r, struct buf *b, struct value *out)
{
    int st = b->status ? render_no_memory(r) : render_string(r, buf_str(b), b->len, out);

    buf_finish(b);
    return st;
}

int render_text(struct render *r, const struct value *v, struct str *out)
{
    struct value text = *v;
    int st = 0;

    if (v->kind != STRING) {
        struct buf b;

        buf_init(&b, TEMPLATE_MAX_OUTPUT);
        value_write(&b, v);
        st = render_take(r, &b, &text);
    }
    if (st == 0)
        *out = text.str;
    return st;
}

int render_capture(struct render *r, const struct node *n, struct value *out)
{
    struct buf own, *was = r->out;
    int st;

    buf_init(&own, TEMPLATE_MAX_OUTPUT);
    r->out = &own;
    st = render_exec(r, n);
    r->out = was;
    if (st == 0)
        return render_take(r, &own, out);
    buf_finish(&own);
    return st;
}

/* The characters of a string, as strings. */
static int characters(struct render *r, const struct str *s, const struct value **items, size_t *n)
{
    struct value *v = arena_alloc(&r->arena, (s->n + 1) * sizeof *v);

    if (!v)
        return render_no_memory(r);
    *items = v;
    *n = 0;
    for (size_t at = 0, len; at < s->n; at += len) {
        utf8_get(s->s + at, &len);
        v[(*n)++] = value_str(s->s + at, len);
    }
    return 0;
}

int render_items(struct render *r, const struct value *v, const struct value **items, size_t *n)
{
    switch (v->kind) {
    case UNDEFINED:
        *items = NULL;
        *n = 0;
        return 0;
    case STRING:
        return characters(r, &v->str, items, n);
    case LIST:
    case TUPLE:
        *items = v->list->v;
        *n = v->list->n;
        return 0;
    case DICT:
        *items = v->dict->key;
        *n = v->dict->n;
        return 0;
    default:
        return render_fail(r, ERR_BADMSG, "'%s' object is not iterable", value_type(v));
    }
}

static struct binding *find_bound(const struct render *r, uint32_t sym, size_t from)
{
    for (size_t i = r->n_bound; i-- > from;)
        if (r->bound[i].sym == sym)
            return &r->bound[i];
    return NULL;
}

struct value render_lookup(const struct render *r, uint32_t sym, const struct str *name)
{
    const struct binding *b = find_bound(r, sym, r->floor);
    struct value v = b ? b->value : r->global[sym];

    if (v.kind == UNDEFINED)
        v.str = *name;
    return v;
}

int render_bind(struct render *r, uint32_t sym, struct value v)
{
    struct binding *b = find_bound(r, sym, r->frame);

    if (b) {
        b->value = v;
        return 0;
    }
    if (r->n_bound == r->cap_bound) {
        size_t cap = r->cap_bound ? 2 * r->cap_bound : 64;

        if (cap > RENDER_MAX_NAMES || !(b = realloc(r->bound, cap * sizeof *b)))
            return render_no_memory(r);
        r->bound = b;
        r->cap_bound = cap;
    }
    r->bound[r->n_bound++] = (struct binding){ sym, v };
    return 0;
}

int render_assign(struct render *r, uint32_t sym, struct value v)
{
    if (r->inner)
        return render_bind(r, sym, v);
    r->global[sym] = v;
    return 0;
}

/* The number of the parameter called name, -1 if there is none. */
static int param_index(const char *params, const struct str *name)
{
    int i = 0;

    for (const char *p = params; p && *p; i++) {
        size_t len = strcspn(p, " ");

        if (len == name->n && memcmp(p, name->s, len) == 0)
            return i;
        p += len + (p[len] == ' ');
    }
    return -1;
}

static size_t param_count(const char *params)
{
    size_t n = params ? 1 : 0;

    for (const char *p = params; p && *p; p++)
        n += *p == ' ';
    return n;
}

int render_call_builtin(struct render *r, const struct builtin *fn, const struct value *in,
                        struct args *a, struct value *out)
{
    memset(a->v, 0, sizeof a->v);
    if (fn->params && strcmp(fn->params, "*") == 0)
        return fn->fn(r, in, a, out);
    if (a->n > param_count(fn->params))
        return render_fail(r, ERR_BADMSG, "%s takes at most %zu arguments, not %zu", fn->name,
                           param_count(fn->params), a->n);
    for (size_t i = 0; i < a->n; i++)
        a->v[i] = &a->pos[i];
    for (size_t i = 0; i < a->n_named; i++) {
        int k = param_index(fn->params, &a->name[i]);

        if (k < 0 || a->v[k])
            return render_fail(r, ERR_BADMSG, "%s: argument '%.*s' is unknown or given twice",
                               fn->name, (int)a->name[i].n, a->name[i].s);
        a->v[k] = &a->named[i];
    }
    return fn->fn(r, in, a, out);
}

/* Binds the parameters in the macro's own block: given, default or undefined. */
static int bind_params(struct render *r, const struct macro *m, const struct args *a)
{
    if (a->n > m->n)
        return render_fail(r, ERR_BADMSG, "macro '%.*s' takes %zu arguments, not %zu",
                           (int)m->name.n, m->name.s, m->n, a->n);
    for (size_t i = 0; i < m->n; i++) {
        struct value v = { .kind = UNDEFINED, .str = m->param_name[i] };
        bool given = i < a->n;
        int st = 0;

        if (given)
            v = a->pos[i];
        for (size_t k = 0; k < a->n_named; k++)
            if (a->name[k].n == m->param_name[i].n &&
                memcmp(a->name[k].s, m->param_name[i].s, a->name[k].n) == 0) {
                v = a->named[k];
                given = true;
            }
        if (!given && m->def[i])
            st = render_eval(r, m->def[i], &v);
        if (st < 0 || (st = render_bind(r, m->param[i], v)) < 0)
            return st;
    }
    return 0;
}

static int call_macro(struct render *r, const struct macro *m, const struct args *a,
                      struct value *out)
{
    size_t floor = r->floor, frame = r->frame, n = r->n_bound;
    bool inner = r->inner;
    int st;

    r->floor = r->frame = n;
    r->inner = true;
    for (size_t i = 0; i < a->n_named; i++)
        if (a->name[i].n == 6 && memcmp(a->name[i].s, "caller", 6) == 0 &&
            (st = render_bind(r, r->t->sym_caller, a->named[i])) < 0)
            return st;
    st = bind_params(r, m, a);
    if (st == 0)
        st = render_capture(r, m->body, out);
    r->floor = floor;
    r->frame = frame;
    r->n_bound = n;
    r->inner = inner;
    return st;
}

int render_call(struct render *r, const struct value *function, struct args *a, struct value *out)
{
    switch (function->kind) {
    case FUNCTION:
        return render_call_builtin(r, function->fn, NULL, a, out);
    case METHOD:
        return render_call_builtin(r, function->method->fn, &function->method->self, a, out);
    case MACRO:
        return call_macro(r, function->macro, a, out);
    case UNDEFINED:
        return render_undefined(r, function);
    default:
        return render_fail(r, ERR_BADMSG, "'%s' object is not callable", value_type(function));
    }
}
