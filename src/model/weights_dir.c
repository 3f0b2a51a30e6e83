/* The safetensors files of a HuggingFace folder. */
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/safetensors.h"
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

struct name_list {
    char *name[WEIGHTS_MAX_FILES];
    size_t n;
};

static int list_add(struct name_list *l, const char *name, struct err *e)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->name[i], name) == 0)
            return 0;
    if (l->n == WEIGHTS_MAX_FILES)
        return err_set(e, ERR_LIMIT, "more than %d safetensors files", WEIGHTS_MAX_FILES);
    if (!(l->name[l->n] = strdup(name)))
        return weights_no_memory(e);
    l->n++;
    return 0;
}

static void list_free(struct name_list *l)
{
    for (size_t i = 0; l && i < l->n; i++)
        free(l->name[i]);
    free(l);
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Names in dir with the given end, sorted. */
static int list_dir(struct name_list *l, const char *dir, const char *tail, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int st = 0;

    if (!d)
        return err_set(e, ERR_NOTFOUND, "%s: cannot open the folder", dir);
    while (st == 0 && (de = readdir(d)))
        if (ends_with(de->d_name, tail))
            st = list_add(l, de->d_name, e);
    closedir(d);
    qsort(l->name, l->n, sizeof l->name[0], name_order);
    return st;
}

/* The index of the folder: model.safetensors.index.json, or the only other *.index.json. *path is
 * NULL if there is none. */
static int find_index(char **path, const char *dir, struct err *e)
{
    struct name_list *l = calloc(1, sizeof *l);
    const char *chosen = NULL;
    int st = l ? list_dir(l, dir, ".safetensors.index.json", e) : weights_no_memory(e);

    *path = NULL;
    for (size_t i = 0; st == 0 && i < l->n; i++)
        if (l->n == 1 || strcmp(l->name[i], "model.safetensors.index.json") == 0)
            chosen = l->name[i];
    if (st == 0 && l->n > 1 && !chosen)
        st = err_set(e, ERR_BADMSG,
                     "%s: %zu *.safetensors.index.json and none is model.safetensors.index.json",
                     dir, l->n);
    if (st == 0 && chosen && asprintf(path, "%s/%s", dir, chosen) < 0) {
        *path = NULL;
        st = weights_no_memory(e);
    }
    list_free(l);
    return st;
}

/* The files that the index names. */
static int list_index(struct name_list *l, json_t *map, struct err *e)
{
    const char *tensor, *file;
    json_t *j;
    int st;

    json_object_foreach(map, tensor, j)
    {
        file = json_string_value(j);
        if (!file || !*file || strchr(file, '/'))
            return err_set(e, ERR_BADMSG,
                           "tensor %.128s: expected the name of a file beside the index, found %s",
                           tensor, file ? file : "no string");
        if ((st = list_add(l, file, e)) < 0)
            return st;
    }
    qsort(l->name, l->n, sizeof l->name[0], name_order);
    return 0;
}

/* Every tensor of the index must be in the file that it names. */
static int check_index(const struct weights *w, json_t *map, struct err *e)
{
    const char *tensor;
    json_t *j;

    json_object_foreach(map, tensor, j)
    {
        const struct weight *f = weights_find(w, tensor);
        const char *found = f ? strrchr(f->file, '/') + 1 : NULL;

        if (!f || strcmp(found, json_string_value(j)) != 0)
            return err_set(e, ERR_BADMSG, "tensor %.128s: expected in %s, found in %s", tensor,
                           json_string_value(j), f ? found : "no file");
    }
    return 0;
}

static int open_listed(struct weights **out, const struct name_list *l, const char *dir,
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

static int open_indexed(struct weights **out, const char *dir, const char *index, struct err *e)
{
    struct name_list *l = calloc(1, sizeof *l);
    json_error_t je;
    json_t *root = json_load_file(index, 0, &je);
    json_t *map = json_object_get(root, "weight_map");
    struct weights *w = NULL;
    int st;

    if (!l)
        st = weights_no_memory(e);
    else if (!root)
        st = err_set(e, ERR_BADMSG, "%s: line %d: %s", index, je.line, je.text);
    else if (!json_is_object(map))
        st = err_set(e, ERR_BADMSG, "%s: no object \"weight_map\"", index);
    else if ((st = list_index(l, map, e)) < 0)
        err_prefix(e, st, "%s", index);
    else if ((st = open_listed(&w, l, dir, e)) == 0 && (st = check_index(w, map, e)) < 0)
        err_prefix(e, st, "%s", index);
    json_decref(root);
    list_free(l);
    if (st < 0) {
        weights_close(w);
        return st;
    }
    *out = w;
    return 0;
}

static int open_all(struct weights **out, const char *dir, struct err *e)
{
    struct name_list *l = calloc(1, sizeof *l);
    int st = l ? list_dir(l, dir, ".safetensors", e) : weights_no_memory(e);

    if (st == 0 && l->n == 0)
        st = err_set(e, ERR_NOTFOUND, "%s: no *.safetensors in the folder", dir);
    if (st == 0)
        st = open_listed(out, l, dir, e);
    list_free(l);
    return st;
}

int weights_open_dir(struct weights **out, const char *path, struct err *e)
{
    char *index;
    int st = find_index(&index, path, e);

    if (st < 0)
        return st;
    st = index ? open_indexed(out, path, index, e) : open_all(out, path, e);
    free(index);
    return st;
}
