/* object.name, object[index], object[a:b:c]. */
#include <string.h>

#include "base/status.h"
#include "text/jinja/render.h"
#include "text/utf8.h"

static void undefined(const struct str *name, struct value *out)
{
    *out = (struct value){ .kind = UNDEFINED, .str = *name };
}

/* A method of the object, if it has one of that name. Returns 1, 0 or an error. */
static int find_method(struct render *r, const struct value *object, const struct str *name,
                       struct value *out)
{
    const struct builtin *fn = jinja_find_method(object, name->s, name->n);
    struct method *m;

    if (!fn)
        return 0;
    if (!(m = arena_alloc(&r->arena, sizeof *m)))
        return render_no_memory(r);
    *m = (struct method){ *object, fn };
    *out = (struct value){ .kind = METHOD, .method = m };
    return 1;
}

int render_attr(struct render *r, const struct value *object, const struct str *name,
                struct value *out)
{
    const struct value *v = NULL;
    int st;

    if (object->kind == UNDEFINED)
        return render_undefined(r, object);
    if ((st = find_method(r, object, name, out)) != 0)
        return st < 0 ? st : 0;
    if (object->kind == DICT || object->kind == NAMESPACE)
        v = dict_find_text(object->dict, name->s, name->n);
    if (v)
        *out = *v;
    else if (object->kind != LOOP || !render_loop_attr(object->loop, name, out))
        undefined(name, out);
    return 0;
}

/* Byte offset of character i of s; s->n if there are fewer. */
static size_t offset_of(const struct str *s, size_t i)
{
    size_t at = 0, len;

    for (; at < s->n && i > 0; i--, at += len)
        utf8_get(s->s + at, &len);
    return at;
}

static size_t count_chars(const struct str *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++)
        n += ((unsigned char)s->s[i] & 0xc0) != 0x80;
    return n;
}

static bool item_of_list(const struct list *l, int64_t i, struct value *out)
{
    if (i < 0)
        i += (int64_t)l->n;
    if (i < 0 || (size_t)i >= l->n)
        return false;
    *out = l->v[i];
    return true;
}

static bool item_of_string(const struct str *s, int64_t i, struct value *out)
{
    size_t n = count_chars(s), at, len;

    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (size_t)i >= n)
        return false;
    at = offset_of(s, (size_t)i);
    utf8_get(s->s + at, &len);
    *out = value_str(s->s + at, len);
    return true;
}

int render_item(struct render *r, const struct value *object, const struct value *index,
                struct value *out)
{
    static const struct str no_element = { "element", 7 };
    const struct value *v = NULL;
    int64_t i;

    if (object->kind == UNDEFINED)
        return render_undefined(r, object);
    if (object->kind == DICT)
        v = dict_find(object->dict, index);
    if (v) {
        *out = *v;
        return 0;
    }
    if (value_as_int(index, &i) &&
        ((is_seq(object) && item_of_list(object->list, i, out)) ||
         (object->kind == STRING && item_of_string(&object->str, i, out))))
        return 0;
    if (index->kind == STRING && object->kind != DICT)
        return render_attr(r, object, &index->str, out);
    if (index->kind == STRING && find_method(r, object, &index->str, out) > 0)
        return 0;
    undefined(index->kind == STRING ? &index->str : &no_element, out);
    return 0;
}

/* Python's slice.indices: where to begin and how many to take, step by step. */
struct range {
    int64_t start, step;
    size_t count;
};

static int64_t clamp(int64_t i, int64_t n, int64_t lo, int64_t hi)
{
    if (i < 0)
        i += n;
    return i < lo ? lo : i > hi ? hi : i;
}

static int to_range(struct render *r, const struct value part[3], size_t size, struct range *out)
{
    int64_t n = (int64_t)size, start = 0, stop = 0, step = 1, *to[] = { &start, &stop, &step };

    for (int i = 0; i < 3; i++)
        if (part[i].kind != NONE && !value_as_int(&part[i], to[i]))
            return render_fail(r, ERR_BADMSG, "slice indices must be integers or none, not '%s'",
                               value_type(&part[i]));
    if (step == 0)
        return render_fail(r, ERR_BADMSG, "slice step cannot be zero");
    if (step > n + 1 || step < -n - 1)
        step = step > 0 ? n + 1 : -n - 1;
    if (step > 0) {
        start = part[0].kind == NONE ? 0 : clamp(start, n, 0, n);
        stop = part[1].kind == NONE ? n : clamp(stop, n, 0, n);
    } else {
        start = part[0].kind == NONE ? n - 1 : clamp(start, n, -1, n - 1);
        stop = part[1].kind == NONE ? -1 : clamp(stop, n, -1, n - 1);
    }
    *out = (struct range){ start, step, 0 };
    if (step > 0 && stop > start)
        out->count = (size_t)((stop - start - 1) / step + 1);
    if (step < 0 && stop < start)
        out->count = (size_t)((start - stop - 1) / -step + 1);
    return 0;
}

static int slice_list(struct render *r, const struct value *object, const struct range *g,
                      struct value *out)
{
    struct list *l = list_new(&r->arena, g->count);

    if (!l)
        return render_no_memory(r);
    for (size_t i = 0; i < g->count; i++)
        l->v[l->n++] = object->list->v[g->start + (int64_t)i * g->step];
    *out = (struct value){ .kind = object->kind, .list = l };
    return 0;
}

static int slice_string(struct render *r, const struct str *s, const struct range *g,
                        struct value *out)
{
    const struct value *c;
    size_t n, at;
    struct buf b;
    int st;

    if (g->step == 1) {
        struct str rest = { s->s + (at = offset_of(s, (size_t)g->start)), 0 };

        rest.n = s->n - at;
        *out = value_str(rest.s, offset_of(&rest, g->count));
        return 0;
    }
    if ((st = render_items(r, &(struct value){ .kind = STRING, .str = *s }, &c, &n)) < 0)
        return st;
    buf_init(&b, s->n + 1);
    for (size_t i = 0; i < g->count; i++) {
        const struct str *one = &c[g->start + (int64_t)i * g->step].str;

        buf_append(&b, one->s, one->n);
    }
    return render_take(r, &b, out);
}

int render_slice(struct render *r, const struct value *object, const struct value part[3],
                 struct value *out)
{
    struct range g = { 0 };
    int st;

    if (object->kind == UNDEFINED)
        return render_undefined(r, object);
    if (object->kind != STRING && !is_seq(object))
        return render_fail(r, ERR_BADMSG, "'%s' object cannot be sliced", value_type(object));
    st = to_range(r, part, object->kind == STRING ? count_chars(&object->str) : object->list->n,
                  &g);
    if (st < 0)
        return st;
    return object->kind == STRING ? slice_string(r, &object->str, &g, out)
                                  : slice_list(r, object, &g, out);
}

bool render_loop_attr(const struct loop *l, const struct str *name, struct value *out)
{
    static const struct str no_item = { "loop item", 9 };
    int64_t at = (int64_t)l->at, n = (int64_t)l->n;
    const struct {
        const char *name;
        struct value value;
    } attrs[] = {
        { "index", value_int(at + 1) },
        { "index0", value_int(at) },
        { "revindex", value_int(n - at) },
        { "revindex0", value_int(n - at - 1) },
        { "first", value_bool(at == 0) },
        { "last", value_bool(at == n - 1) },
        { "length", value_int(n) },
        { "depth", value_int(1) }, /* counts recursion only, of which there is none */
        { "depth0", value_int(0) },
        { "previtem",
          at > 0 ? l->item[at - 1] : (struct value){ .kind = UNDEFINED, .str = no_item } },
        { "nextitem",
          at < n - 1 ? l->item[at + 1] : (struct value){ .kind = UNDEFINED, .str = no_item } },
    };

    for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++)
        if (strlen(attrs[i].name) == name->n && memcmp(attrs[i].name, name->s, name->n) == 0) {
            *out = attrs[i].value;
            return true;
        }
    return false;
}
