/* That a quantized folder is whole: what each matrix needs, and what the description promises. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "model/quant.h"

/* Names of tensors that are missing, the first of them in words. */
struct missing {
    struct buf text;
    size_t n;
    const struct weight *first; /* the weight that needs one */
};

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

static int add_name(struct missing *m, const char *name, struct err *e)
{
    if (m->n++ < QUANT_MAX_NAMED)
        buf_printf(&m->text, "%s%.*s", m->n > 1 ? ", " : "", TENSOR_MAX_NAME, name);
    return m->text.status < 0 ? err_set(e, ERR_NOMEM, "no memory") : 0;
}

static const char *more_text(char *out, size_t room, const struct missing *m)
{
    *out = '\0';
    if (m->n > QUANT_MAX_NAMED)
        snprintf(out, room, " and %zu more", m->n - QUANT_MAX_NAMED);
    return out;
}

/* What one weight needs beside it. */
static int add_sides(struct missing *m, const struct weights *all, const struct weight *w,
                     enum quant_type t, struct err *e)
{
    char name[TENSOR_MAX_NAME];
    int st = 0;

    for (const struct quant_side *s = quant_sides(t); st == 0 && s->suffix; s++) {
        if (s->rule != QUANT_NEEDED || !quant_side_name(name, w->t.name, s->suffix) ||
            weights_find(all, name))
            continue;
        st = add_name(m, name, e);
        if (!m->first)
            m->first = w;
    }
    return st;
}

static bool is_linear(const struct weight *w)
{
    return !w->skip && w->t.n_dims == 2 && ends_with(w->t.name, ".weight") &&
           !ends_with(w->t.name, ".embed_tokens.weight");
}

static int report_sides(const struct quant *q, const struct missing *m, struct err *e)
{
    char more[48];

    return err_set(e, ERR_BADMSG,
                   "%s: %zu tensor%s missing that %s weights need (%s): %s%s; expected beside "
                   "%s, found in no file of the folder: the checkpoint was not copied whole, or "
                   "was not written by the tool that its description is from",
                   m->first->file, m->n, m->n == 1 ? " is" : "s are",
                   quant_format_name(quant_format(q)), quant_file(q), buf_str(&m->text),
                   more_text(more, sizeof more, m), m->first->t.name);
}

static int check_linears(const struct quant *q, const struct weights *w, struct quant_count *out,
                         struct err *e)
{
    struct missing m = { .n = 0 };
    int st = 0;

    buf_init(&m.text, BUF_MAX_LINE);
    for (size_t i = 0; st == 0 && i < w->n; i++) {
        enum quant_type t;

        if (!is_linear(&w->w[i]) || (st = quant_type_of(q, &w->w[i], &t, e)) < 0)
            continue;
        out->n[t]++;
        st = add_sides(&m, w, &w->w[i], t, e);
    }
    if (st == 0 && m.n)
        st = report_sides(q, &m, e);
    buf_finish(&m.text);
    return st;
}

struct layer_key {
    const char *name;
    size_t n; /* "model.layers.N." of it */
};

static int layer_cmp(const void *key, const void *weight)
{
    const struct layer_key *k = key;

    return strncmp(k->name, ((const struct weight *)weight)->t.name, k->n);
}

/* Whether the folder has the layer of this tensor and it is loaded here. */
static bool layer_loaded(const struct weights *w, const char *name)
{
    long layer = weights_layer_of(name);
    const char *number = name + sizeof "model.layers." - 1;
    struct layer_key key = { name, (size_t)(number - name) + strcspn(number, ".") + 1 };
    const struct weight *any = w->n ? bsearch(&key, w->w, w->n, sizeof *w->w, layer_cmp) : NULL;

    return any && layer >= (long)w->first_layer && layer < (long)w->first_layer + (long)w->n_layers;
}

/* What a description still says of the scales of a linear that was made float afterwards. */
static bool is_left_over(const struct quant *q, const char *name)
{
    const char *dot = strrchr(name, '.'), *said;
    const struct quant_side *s = quant_sides(QUANT_W8A8); /* has every suffix that there is */
    char weight[TENSOR_MAX_NAME];

    while (s->suffix && strcmp(s->suffix, dot + 1) != 0)
        s++;
    if (!s->suffix || strcmp(s->suffix, "bias") == 0) /* a float linear has a bias too */
        return false;
    if (snprintf(weight, sizeof weight, "%.*s.weight", (int)(dot - name), name) >=
        (int)sizeof weight)
        return false;
    said = quant_entry(q, weight);
    return said && strcmp(said, "FLOAT") == 0;
}

/* Whether an entry of the description promises a tensor that may change a result and whose absence
 * nothing else would notice. Entries about the whole checkpoint have no dot, rotary tables are
 * computed here, and the weights outside the layers are asked for by name where this stage has them
 * (a head that is the embedding again stands in no file). */
static bool is_promised(const struct quant *q, const struct weights *w, const char *name)
{
    if (!strchr(name, '.') || ends_with(name, ".rotary_emb.inv_freq") || is_left_over(q, name))
        return false;
    if (weights_layer_of(name) >= 0)
        return layer_loaded(w, name);
    return !ends_with(name, ".weight");
}

/* Without this a norm's bias that is lost would be as if the checkpoint had none. */
static int check_described(const struct quant *q, const struct weights *w, struct err *e)
{
    struct missing m = { .n = 0 };
    char more[48];
    const char *name;
    json_t *type;
    int st = 0;

    buf_init(&m.text, BUF_MAX_LINE);
    json_object_foreach(quant_entries(q), name, type)
    {
        if (!json_is_string(type) || weights_find(w, name) || !is_promised(q, w, name))
            continue;
        if ((st = add_name(&m, name, e)) < 0)
            break;
    }
    if (st == 0 && m.n)
        st = err_set(e, ERR_BADMSG,
                     "%s: %zu tensor%s missing that it describes: %s%s; found in no file of the "
                     "folder that is read: the checkpoint was not copied whole, or the description "
                     "is of another one",
                     quant_file(q), m.n, m.n == 1 ? " is" : "s are", buf_str(&m.text),
                     more_text(more, sizeof more, &m));
    buf_finish(&m.text);
    return st;
}

int quant_check(const struct quant *q, const struct weights *w, struct quant_count *out,
                struct err *e)
{
    int st;

    *out = (struct quant_count){ 0 };
    st = check_linears(q, w, out, e);
    return st < 0 ? st : check_described(q, w, e);
}
