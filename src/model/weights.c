#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/gguf.h"
#include "model/safetensors.h"
#include "model/weights_file.h"

static int weight_cmp(const void *a, const void *b)
{
    const struct weight *x = a, *y = b;

    return strcmp(x->t.name, y->t.name);
}

int weights_no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for the table of tensors");
}

struct weights *weights_new(const char *path, size_t max_files)
{
    struct weights *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    w->path = path;
    w->files = calloc(max_files ? max_files : 1, sizeof *w->files);
    if (!w->files) {
        free(w);
        return NULL;
    }
    return w;
}

void weights_close(struct weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_files; i++) {
        gguf_free(w->files[i].gguf);
        safetensors_free(w->files[i].st);
        map_close(&w->files[i].map);
        free(w->files[i].path);
    }
    for (size_t i = 0; w->own_names && i < w->n; i++)
        free(w->own_names[i]);
    free(w->own_names);
    free(w->w);
    free(w->files);
    free(w);
}

int weights_sort(struct weights *w, struct err *e)
{
    qsort(w->w, w->n, sizeof *w->w, weight_cmp);
    for (size_t i = 1; i < w->n; i++)
        if (strcmp(w->w[i - 1].t.name, w->w[i].t.name) == 0)
            return err_set(e, ERR_BADMSG, "tensor %s is in %s and in %s", w->w[i].t.name,
                           w->w[i - 1].file, w->w[i].file);
    return 0;
}

/* HuggingFace's name of a GGUF tensor, allocated; its own name where the table has none. */
static char *translate(const char *name, const struct weight_name *names)
{
    unsigned long layer = 0;
    char *rest = NULL, *out;

    if (strncmp(name, "blk.", 4) == 0)
        layer = strtoul(name + 4, &rest, 10);
    if (rest && *rest++ != '.')
        rest = NULL;
    for (; names->gguf; names++) {
        if (!names->layer && strcmp(name, names->gguf) == 0)
            return strdup(names->hf);
        if (names->layer && rest && strcmp(rest, names->gguf) == 0)
            return asprintf(&out, "model.layers.%lu.%s", layer, names->hf) < 0 ? NULL : out;
    }
    return strdup(name);
}

static int gguf_weights(struct weights *w, struct err *e)
{
    struct weights_file *f = &w->files[0];
    uint64_t n;
    const struct tensor *t = gguf_tensors(f->gguf, &n);

    w->w = calloc(n ? n : 1, sizeof *w->w);
    if (!w->w)
        return weights_no_memory(e);
    for (uint64_t i = 0; i < n; i++)
        w->w[w->n++] = (struct weight){ .t = t[i], .file = f->path, .map = &f->map };
    return 0;
}

int weights_translate(struct weights *w, const struct weight_name *names, struct err *e)
{
    w->own_names = calloc(w->n ? w->n : 1, sizeof *w->own_names);
    if (!w->own_names)
        return weights_no_memory(e);
    for (size_t i = 0; i < w->n; i++) {
        w->own_names[i] = translate(w->w[i].t.name, names);
        if (!w->own_names[i])
            return weights_no_memory(e);
        w->w[i].t.name = w->own_names[i];
    }
    return weights_sort(w, e);
}

int weights_open_gguf(struct weights **out, const char *path, struct err *e)
{
    struct weights *w = weights_new(path, 1);
    struct weights_file *f;
    int st;

    if (!w)
        return weights_no_memory(e);
    w->gguf = true;
    f = &w->files[w->n_files++];
    f->path = strdup(path);
    if (!f->path)
        st = weights_no_memory(e);
    else if ((st = map_open(&f->map, path, e)) == 0 &&
             ((st = gguf_parse(&f->gguf, f->map.data, f->map.size, e)) < 0 ||
              (st = gguf_weights(w, e)) < 0))
        err_prefix(e, st, "%s", path);
    if (st < 0) {
        weights_close(w);
        return st;
    }
    *out = w;
    return 0;
}

const struct gguf *weights_gguf(const struct weights *w)
{
    return w->gguf ? w->files[0].gguf : NULL;
}

struct weight *weights_find(const struct weights *w, const char *name)
{
    struct weight want = { .t.name = name };

    return w->n ? bsearch(&want, w->w, w->n, sizeof *w->w, weight_cmp) : NULL;
}

long weights_layer_of(const char *name)
{
    static const char head[] = "model.layers.";
    char *end;
    long n;

    if (strncmp(name, head, sizeof head - 1) != 0)
        return -1;
    n = strtol(name + sizeof head - 1, &end, 10);
    return *end == '.' && n >= 0 ? n : -1;
}

void weights_select(struct weights *w, uint32_t first, uint32_t n)
{
    w->first_layer = first;
    w->n_layers = n;
    for (size_t i = 0; i < w->n; i++) {
        long layer = weights_layer_of(w->w[i].t.name);

        w->w[i].skip = layer >= 0 && (layer < (long)first || layer >= (long)first + (long)n);
    }
}

/* N of "model.layers.*.mlp.experts.N.*"; -1 if it is no expert's tensor, or that of all together. */
static long expert_of(const char *name)
{
    const char *at = strstr(name, ".mlp.experts.");
    char *end;
    long n;

    if (!at || weights_layer_of(name) < 0)
        return -1;
    n = strtol(at + sizeof ".mlp.experts." - 1, &end, 10);
    return *end == '.' && end > at + sizeof ".mlp.experts." - 1 && n >= 0 ? n : -1;
}

void weights_select_experts(struct weights *w, uint32_t first, uint32_t n)
{
    for (size_t i = 0; i < w->n; i++) {
        long expert = expert_of(w->w[i].t.name);

        if (expert >= 0 && (expert < (long)first || expert >= (long)first + (long)n))
            w->w[i].skip = true;
    }
}

bool weights_has_mtp(const struct weights *w, uint32_t layer)
{
    char name[TENSOR_MAX_NAME];

    snprintf(name, sizeof name, "model.layers.%u.eh_proj.weight", layer);
    return weights_find(w, name) != NULL;
}

int weights_check_layers(const struct weights *w, uint32_t n_layers, uint32_t mtp_layers,
                         struct err *e)
{
    uint32_t drafts = mtp_layers ? mtp_layers : 1;

    for (size_t i = 0; i < w->n; i++) {
        const struct weight *t = &w->w[i];
        long layer = weights_layer_of(t->t.name);

        if (layer < (long)n_layers)
            continue;
        if (layer >= (long)n_layers + (long)drafts)
            return err_set(e, ERR_BADMSG,
                           "%s: tensor %s: a layer %ld has no place in a model of %u layers and %u "
                           "multi-token prediction layers, which is what the configuration says "
                           "(num_hidden_layers, num_nextn_predict_layers)",
                           t->file, t->t.name, layer, n_layers, mtp_layers);
        if (!weights_has_mtp(w, (uint32_t)layer))
            return err_set(e, ERR_BADMSG,
                           "%s: tensor %s: the configuration says that the model has %u layers "
                           "(num_hidden_layers), and this layer %ld is none for multi-token "
                           "prediction either: it has no eh_proj",
                           t->file, t->t.name, n_layers, layer);
    }
    return 0;
}

uint64_t weights_bytes(const struct weights *w)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < w->n; i++)
        sum += w->w[i].skip ? 0 : w->w[i].t.bytes;
    return sum;
}

const char *weights_types(char *out, size_t room, const struct weights *w)
{
    size_t n[K_TYPES + 1] = { 0 };
    int at = snprintf(out, room, "linears");

    for (size_t i = 0; i < w->n; i++)
        if (!w->w[i].skip && w->w[i].t.n_dims >= 2)
            n[w->w[i].t.type]++;
    for (size_t i = 0, first = 1; i < K_TYPES; i++)
        if (n[i] && at > 0 && (size_t)at < room) {
            at += snprintf(out + at, room - (size_t)at, "%s %zu %s", first ? "" : ",", n[i],
                           k_type_info[i].name);
            first = 0;
        }
    return out;
}

#define SAME_STEP (16u << 20)

bool weights_same(const struct weight *a, const struct weight *b)
{
    uint64_t n = a->t.bytes, step;
    bool same = true;

    for (uint64_t at = 0; same && at < n; at += step) {
        step = n - at < SAME_STEP ? n - at : SAME_STEP;
        same = memcmp(a->t.data + at, b->t.data + at, (size_t)step) == 0;
        weights_drop(a, at, step);
        weights_drop(b, at, step);
    }
    return same;
}

void weights_drop(const struct weight *w, uint64_t from, uint64_t bytes)
{
    map_drop(w->map, (size_t)(w->t.data - w->map->data) + (size_t)from, (size_t)bytes);
}
