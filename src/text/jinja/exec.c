/* Statements. */
#include <string.h>

#include "base/status.h"
#include "text/jinja/render.h"
#include "text/template.h"

static int exec_output(struct render *r, const struct node *n)
{
    struct value v;
    int st = render_eval(r, n->a, &v);

    return st < 0 ? st : value_write(r->out, &v);
}

static int exec_if(struct render *r, const struct node *n)
{
    for (size_t i = 0; i < n->n; i += 2) {
        struct value test;
        int st = render_eval(r, n->kid[i], &test);

        if (st < 0)
            return st;
        if (value_truth(&test))
            return render_exec(r, n->kid[i + 1]);
    }
    return n->c ? render_exec(r, n->c) : 0;
}

/* Names of a loop or block live until it ends. */
struct block {
    size_t frame, n;
    bool inner;
};

static struct block enter(struct render *r)
{
    struct block was = { r->frame, r->n_bound, r->inner };

    r->frame = r->n_bound;
    r->inner = true;
    return was;
}

static void leave(struct render *r, struct block was)
{
    r->frame = was.frame;
    r->n_bound = was.n;
    r->inner = was.inner;
}

static int unpack(struct render *r, const struct target *t, const struct value *v)
{
    const struct value *items;
    size_t n;
    int st;

    if (!t->unpack)
        return render_assign(r, t->sym[0], *v);
    if ((st = render_items(r, v, &items, &n)) < 0)
        return st;
    if (n != t->n)
        return render_fail(r, ERR_BADMSG, "%zu values for %zu names", n, t->n);
    for (size_t i = 0; i < n; i++)
        if ((st = render_assign(r, t->sym[i], items[i])) < 0)
            return st;
    return 0;
}

static int set_member(struct render *r, const struct target *t, const struct value *v)
{
    const struct str *name = &r->t->symbols.v[t->sym[0]];
    struct value ns = render_lookup(r, t->sym[0], name);

    if (ns.kind != NAMESPACE)
        return render_fail(r, ERR_BADMSG, "'%.*s' is not a namespace: its members cannot be set",
                           (int)name->n, name->s);
    if (dict_set(&r->arena, ns.dict, value_str(t->member.s, t->member.n), *v) < 0)
        return render_no_memory(r);
    return 0;
}

static int assign(struct render *r, const struct target *t, const struct value *v)
{
    return t->member.s ? set_member(r, t, v) : unpack(r, t, v);
}

static int exec_set(struct render *r, const struct node *n)
{
    struct value v;
    int st = render_eval(r, n->a, &v);

    return st < 0 ? st : assign(r, &n->target, &v);
}

/* The text of n->b, sent through the filters of n->a. */
static int filtered_block(struct render *r, const struct node *n, struct value *out)
{
    struct block was = enter(r);
    struct value text, outer = r->captured;
    int st = render_capture(r, n->b, &text);

    leave(r, was);
    if (st < 0)
        return st;
    r->captured = text;
    st = render_eval(r, n->a, out);
    r->captured = outer;
    return st;
}

static int exec_set_block(struct render *r, const struct node *n)
{
    struct value v;
    int st = filtered_block(r, n, &v);

    return st < 0 ? st : assign(r, &n->target, &v);
}

static int exec_filter_block(struct render *r, const struct node *n)
{
    struct value v;
    int st = filtered_block(r, n, &v);

    return st < 0 ? st : value_write(r->out, &v);
}

static int exec_macro(struct render *r, const struct node *n)
{
    return render_assign(r, n->sym, (struct value){ .kind = MACRO, .macro = n->macro });
}

/* The call gets one more argument, `caller`, which stands for the block. */
static int exec_call_block(struct render *r, const struct node *n)
{
    static const struct str name = { "caller", 6 };
    const struct value caller = { .kind = MACRO, .macro = n->macro };
    const struct call *c = &n->a->call;
    struct value function, v, *pos = arena_alloc(&r->arena, (c->n_pos + 1) * sizeof *pos);
    struct args a = { .pos = pos, .n = c->n_pos, .name = &name, .named = &caller, .n_named = 1 };
    int st = pos ? render_eval(r, n->a->a, &function) : render_no_memory(r);

    for (size_t i = 0; st == 0 && i < c->n_pos; i++)
        st = render_eval(r, c->pos[i], &pos[i]);
    if (st == 0)
        st = render_call(r, &function, &a, &v);
    return st < 0 ? st : value_write(r->out, &v);
}

/* The items for which the loop's condition holds. */
static int keep_some(struct render *r, const struct node *n, const struct value **items,
                     size_t *n_items)
{
    struct value *kept = arena_alloc(&r->arena, (*n_items + 1) * sizeof *kept), test;
    size_t n_kept = 0;
    int st = kept ? 0 : render_no_memory(r);

    for (size_t i = 0; st == 0 && i < *n_items; i++) {
        struct block was = enter(r);

        if ((st = unpack(r, &n->target, &(*items)[i])) == 0 &&
            (st = render_eval(r, n->kid[0], &test)) == 0 && value_truth(&test))
            kept[n_kept++] = (*items)[i];
        leave(r, was);
    }
    *items = kept;
    *n_items = n_kept;
    return st;
}

/* One turn: its names go when it ends. */
static int turn(struct render *r, const struct node *n, struct loop *loop)
{
    struct block was = enter(r);
    int st = render_bind(r, r->t->sym_loop, (struct value){ .kind = LOOP, .loop = loop });

    if (st == 0)
        st = unpack(r, &n->target, &loop->item[loop->at]);
    if (st == 0)
        st = render_exec(r, n->b);
    leave(r, was);
    return st;
}

static int exec_for(struct render *r, const struct node *n)
{
    struct loop *loop = arena_zalloc(&r->arena, sizeof *loop);
    struct value iterable;
    int st = loop ? render_eval(r, n->a, &iterable) : render_no_memory(r);

    if (st == 0)
        st = render_items(r, &iterable, &loop->item, &loop->n);
    if (st == 0 && n->n > 0)
        st = keep_some(r, n, &loop->item, &loop->n);
    if (st < 0)
        return st;
    if (loop->n == 0)
        return n->c ? render_exec(r, n->c) : 0;
    for (; st == 0 && r->flow != FLOW_BREAK && loop->at < loop->n; loop->at++) {
        r->flow = FLOW_ON;
        st = turn(r, n, loop);
    }
    r->flow = FLOW_ON;
    return st;
}

static int exec_body(struct render *r, const struct node *n)
{
    int st = 0;

    for (size_t i = 0; st == 0 && r->flow == FLOW_ON && i < n->n; i++)
        st = render_exec(r, n->kid[i]);
    return st;
}

static int exec_node(struct render *r, const struct node *n)
{
    switch (n->kind) {
    case N_BODY:
        return exec_body(r, n);
    case N_DATA:
        return buf_append(r->out, n->text.s, n->text.n);
    case N_OUTPUT:
        return exec_output(r, n);
    case N_IF:
        return exec_if(r, n);
    case N_FOR:
        return exec_for(r, n);
    case N_SET:
        return exec_set(r, n);
    case N_SET_BLOCK:
        return exec_set_block(r, n);
    case N_FILTER_BLOCK:
        return exec_filter_block(r, n);
    case N_MACRO:
        return exec_macro(r, n);
    case N_CALL_BLOCK:
        return exec_call_block(r, n);
    case N_BREAK:
    case N_CONTINUE:
        r->flow = n->kind == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        return 0;
    default:
        return render_fail(r, ERR_INVAL, "an expression where a statement must be");
    }
}

int render_exec(struct render *r, const struct node *n)
{
    int st;

    r->line = n->line;
    if (++r->steps > TEMPLATE_MAX_STEPS)
        return render_fail(r, ERR_LIMIT, "more than %u steps", TEMPLATE_MAX_STEPS);
    if (++r->nested > RENDER_MAX_NESTED)
        return render_fail(r, ERR_LIMIT, "nested more than %u deep", RENDER_MAX_NESTED);
    st = exec_node(r, n);
    r->nested--;
    if (st < 0 && r->out->status == st)
        return render_fail(r, ERR_LIMIT, "more than %u bytes of output", TEMPLATE_MAX_OUTPUT);
    return st;
}
