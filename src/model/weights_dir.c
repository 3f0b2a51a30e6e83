/* The safetensors files of a HuggingFace folder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "model/shard_index.h"
#include "model/weights_file.h"

/* Maps one more safetensors file and appends its tensors. */
static int add_file(struct weights *w, const char *name, struct err *e)
{
    struct weights_file *f = &w->files[w->n_files];
    const struct tensor *t;
    struct weight *more;
    size_t n;
    int st;

    if (asprintf(&f->path, "%s/%s", w->path, name) < 0) {
        f->path = NULL;
        return weights_no_memory(e);
    }
    w->n_files++;
    if ((st = map_open(&f->map, f->path, e)) < 0)
        return st;
    if ((st = safetensors_parse(&f->st, f->map.data, f->map.size, e)) < 0)
        return err_prefix(e, st, "%s", f->path);
    t = safetensors_tensors(f->st, &n);
    more = realloc(w->w, (w->n + n + 1) * sizeof *w->w);
    if (!more)
        return weights_no_memory(e);
    w->w = more;
    for (size_t i = 0; i < n; i++)
        w->w[w->n++] = (struct weight){ .t = t[i], .file = f->path, .map = &f->map };
    return 0;
}

static int count_dir(size_t *n, const char *dir, const char *head, const char *tail, struct err *e)
{
    struct file_list *l = file_list_new();
    int st = l ? file_list_dir(l, dir, head, tail, e) : weights_no_memory(e);

    *n = st == 0 ? l->n : 0;
    file_list_free(l);
    return st;
}

/* What the names of the weights' files start with: those that ModelSlim wrote where its description
 * is there too, for a quantized folder may still hold the weights that it was made of. */
static int find_head(const char **head, const char *dir, struct err *e)
{
    static const char quantized[] = "quant_model_weight";
    size_t described, weights = 0;
    int st = count_dir(&described, dir, "quant_model_description", ".json", e);

    if (st == 0 && described)
        st = count_dir(&weights, dir, quantized, ".safetensors", e);
    *head = weights ? quantized : "";
    return st;
}

/* The index of the folder: model.safetensors.index.json, or the only other *.index.json. *path is
 * NULL if there is none. */
static int find_index(char **path, const char *dir, const char *head, struct err *e)
{
    struct file_list *l = file_list_new();
    const char *chosen = NULL;
    int st = l ? file_list_dir(l, dir, head, ".safetensors.index.json", e) : weights_no_memory(e);

    *path = NULL;
    for (size_t i = 0; st == 0 && i < l->n; i++)
        if (l->n == 1 || strcmp(l->name[i], "model.safetensors.index.json") == 0)
            chosen = l->name[i];
    if (st == 0 && l->n > 1 && !chosen)
        st = err_set(e, ERR_BADMSG,
                     "%s: %zu files %s*.safetensors.index.json; leave the one that counts", dir,
                     l->n, head);
    if (st == 0 && chosen && asprintf(path, "%s/%s", dir, chosen) < 0) {
        *path = NULL;
        st = weights_no_memory(e);
    }
    file_list_free(l);
    return st;
}

/* A person who put a file there may think that it is served. */
static void warn_left_out(const char *from, const char *why, const struct file_list *there,
                          const struct file_list *taken)
{
    struct buf text;
    size_t n;

    buf_init(&text, BUF_MAX_LINE);
    if ((n = file_list_others(&text, there, taken)) > 0)
        log_warning("%s: %zu file(s) *.safetensors that %s are left out: %s", from, n, why,
                    buf_str(&text));
    buf_finish(&text);
}

/* All files that the index names must be in the folder, whatever their names start with: ModelSlim
 * adds mtp-1.safetensors to its own. Others there are left out, with a word. */
static int compare_files(const struct shard_index *x, const char *dir, const char *index,
                         struct err *e)
{
    struct file_list *there = file_list_new();
    int st = there ? file_list_dir(there, dir, "", ".safetensors", e) : weights_no_memory(e);
    struct buf text;
    size_t n;

    buf_init(&text, BUF_MAX_LINE);
    if (st == 0 && (n = file_list_others(&text, x->files, there)) > 0)
        st = err_set(e, ERR_NOTFOUND,
                     "%s: expected %zu files in the folder, found %zu of them; missing: %s; the "
                     "checkpoint was not copied whole",
                     index, x->files->n, x->files->n - n, buf_str(&text));
    else if (st == 0)
        warn_left_out(index, "the index does not name", there, x->files);
    buf_finish(&text);
    file_list_free(there);
    return st;
}

static int open_listed(struct weights **out, const struct file_list *l, const char *dir,
                       struct err *e)
{
    struct weights *w = weights_new(dir, l->n);
    int st = w ? 0 : weights_no_memory(e);

    for (size_t i = 0; st == 0 && i < l->n; i++)
        st = add_file(w, l->name[i], e);
    if (st == 0)
        st = weights_sort(w, e);
    if (st < 0) {
        weights_close(w);
        return st;
    }
    *out = w;
    return 0;
}

static int read_index(struct shard_index *out, const char *path, struct err *e)
{
    struct map m;
    int st = map_open(&m, path, e);

    if (st < 0)
        return st;
    if ((st = shard_index_parse(out, (const char *)m.data, m.size, e)) < 0)
        err_prefix(e, st, "%s", path);
    map_close(&m);
    return st;
}

static int open_indexed(struct weights **out, const char *dir, const char *path, struct err *e)
{
    struct shard_index x = { 0 };
    struct weights *w = NULL;
    int st;

    if ((st = read_index(&x, path, e)) == 0 && (st = compare_files(&x, dir, path, e)) == 0 &&
        (st = open_listed(&w, x.files, dir, e)) == 0 && (st = shard_index_check(&x, w, e)) < 0)
        err_prefix(e, st, "%s", path);
    shard_index_finish(&x);
    if (st < 0) {
        weights_close(w);
        return st;
    }
    *out = w;
    return 0;
}

/* "model-00001-of-00003.safetensors" says 3; 0 for other names. */
static size_t files_by_name(const char *name)
{
    const char *of = strstr(name, "-of-");

    return of ? strtoul(of + 4, NULL, 10) : 0;
}

static int check_count(const struct file_list *l, const char *dir, struct err *e)
{
    if (l->n == 0)
        return err_set(e, ERR_NOTFOUND, "%s: no *.safetensors in the folder", dir);
    if (files_by_name(l->name[0]) > l->n)
        return err_set(e, ERR_NOTFOUND,
                       "%s: expected %zu files *.safetensors by the name of %s, found %zu; the "
                       "checkpoint was not copied whole",
                       dir, files_by_name(l->name[0]), l->name[0], l->n);
    return 0;
}

/* Without an index the names alone say what belongs together. */
static int open_all(struct weights **out, const char *dir, const char *head, struct err *e)
{
    struct file_list *l = file_list_new(), *there = file_list_new();
    int st = l && there ? file_list_dir(l, dir, head, ".safetensors", e) : weights_no_memory(e);

    if (st == 0 && (st = check_count(l, dir, e)) == 0 &&
        (st = file_list_dir(there, dir, "", ".safetensors", e)) == 0) {
        warn_left_out(dir, "no index names and that are not called quant_model_weight*", there, l);
        st = open_listed(out, l, dir, e);
    }
    file_list_free(l);
    file_list_free(there);
    return st;
}

int weights_open_dir(struct weights **out, const char *path, struct err *e)
{
    const char *head;
    char *index;
    int st = find_head(&head, path, e);

    if (st < 0 || (st = find_index(&index, path, head, e)) < 0)
        return st;
    st = index ? open_indexed(out, path, index, e) : open_all(out, path, head, e);
    free(index);
    return st;
}
