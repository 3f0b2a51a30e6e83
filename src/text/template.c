#include "text/template.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "text/jinja/render.h"

#define MAX_TREE (64u << 20) /* bytes of a compiled template */

static int compile(struct template *t, const char *source, size_t len, struct err *e)
{
    struct tokens tokens = { 0 };
    int st = jinja_lex(&tokens, &t->arena, source, len, e);

    if (st == 0)
        st = jinja_parse(t, tokens.v, e);
    free(tokens.v);
    return st;
}

int template_compile(struct template **out, const char *source, size_t len, struct err *e)
{
    struct template *t;
    int st;

    if (len > TEMPLATE_MAX_SOURCE)
        return err_set(e, ERR_BADMSG, "a chat template of %zu bytes is longer than %u", len,
                       TEMPLATE_MAX_SOURCE);
    if (!(t = calloc(1, sizeof *t)))
        return err_set(e, ERR_NOMEM, "no memory for a chat template");
    arena_init(&t->arena, MAX_TREE);
    if ((st = compile(t, source, len, e)) < 0) {
        template_destroy(t);
        return st;
    }
    *out = t;
    return 0;
}

void template_destroy(struct template *t)
{
    if (!t)
        return;
    arena_finish(&t->arena);
    free(t->symbols.v);
    free(t);
}

/* What a name means before the template sets it: a variable, or a function. */
static int global(struct render *r, const struct str *name, json_t *vars, struct value *out)
{
    const char *key = arena_copy(&r->arena, name->s, name->n);
    json_t *j = key ? json_object_get(vars, key) : NULL;
    const struct builtin *fn = jinja_find_function(name->s, name->n);
    int st;

    if (!key)
        return render_no_memory(r);
    *out = (struct value){ .kind = UNDEFINED, .str = *name };
    if (j) {
        st = value_from_json(&r->arena, j, 0, out);
        return st < 0 ? render_fail(r, ERR_LIMIT, "the variable '%.*s' is too large or too deep",
                                    (int)name->n, name->s)
                      : 0;
    }
    if (fn && (r->now || strcmp(fn->name, "strftime_now") != 0))
        *out = (struct value){ .kind = FUNCTION, .fn = fn };
    return 0;
}

static int render(struct render *r, json_t *vars)
{
    const struct symbols *s = &r->t->symbols;
    json_t *now = json_object_get(vars, "now");
    struct value time;
    int st = 0;

    if (!(r->global = arena_alloc(&r->arena, s->n * sizeof *r->global)))
        return render_no_memory(r);
    if (json_is_number(now)) {
        value_from_json(&r->arena, now, 0, &time);
        r->now = &time;
    }
    for (uint32_t i = 0; st == 0 && i < s->n; i++)
        st = global(r, &s->v[i], vars, &r->global[i]);
    return st < 0 ? st : render_exec(r, r->t->body);
}

int template_render(const struct template *t, json_t *vars, char **text, size_t *len, struct err *e)
{
    struct render r = { .t = t, .e = e, .line = 1 };
    struct buf out;
    int st;

    buf_init(&out, TEMPLATE_MAX_OUTPUT);
    buf_append(&out, "", 0);
    arena_init(&r.arena, RENDER_MAX_MEMORY);
    r.out = &out;
    st = render(&r, vars);
    if (st == 0 && out.status)
        st = render_fail(&r, ERR_LIMIT, "more than %u bytes of output", TEMPLATE_MAX_OUTPUT);
    if (st == 0)
        *text = buf_take(&out, len);
    buf_finish(&out);
    arena_finish(&r.arena);
    free(r.bound);
    return st;
}
