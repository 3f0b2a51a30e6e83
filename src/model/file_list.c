#include "model/file_list.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "model/weights_file.h"

struct file_list *file_list_new(void)
{
    return calloc(1, sizeof(struct file_list));
}

void file_list_free(struct file_list *l)
{
    for (size_t i = 0; l && i < l->n; i++)
        free(l->name[i]);
    free(l);
}

int file_list_add(struct file_list *l, const char *name, struct err *e)
{
    if (file_list_has(l, name))
        return 0;
    if (l->n == WEIGHTS_MAX_FILES)
        return err_set(e, ERR_LIMIT, "more than %d safetensors files", WEIGHTS_MAX_FILES);
    if (!(l->name[l->n] = strdup(name)))
        return weights_no_memory(e);
    l->n++;
    return 0;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void file_list_sort(struct file_list *l)
{
    qsort(l->name, l->n, sizeof l->name[0], name_order);
}

static bool matches(const char *s, const char *head, const char *tail)
{
    size_t n = strlen(s), h = strlen(head), t = strlen(tail);

    return n >= h && n >= t && memcmp(s, head, h) == 0 && strcmp(s + n - t, tail) == 0;
}

int file_list_dir(struct file_list *l, const char *dir, const char *head, const char *tail,
                  struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int st = 0;

    if (!d)
        return err_set(e, ERR_NOTFOUND, "%s: cannot open the folder", dir);
    while (st == 0 && (de = readdir(d)))
        if (matches(de->d_name, head, tail))
            st = file_list_add(l, de->d_name, e);
    closedir(d);
    file_list_sort(l);
    return st;
}

bool file_list_has(const struct file_list *l, const char *name)
{
    for (size_t i = l->n; i-- > 0;) /* an index names one file many times in a row */
        if (strcmp(l->name[i], name) == 0)
            return true;
    return false;
}

size_t file_list_others(struct buf *out, const struct file_list *a, const struct file_list *b)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n; i++) {
        if (file_list_has(b, a->name[i]))
            continue;
        if (n++ < FILE_LIST_NAMED)
            buf_printf(out, "%s%s", n > 1 ? ", " : "", a->name[i]);
    }
    if (n > FILE_LIST_NAMED)
        buf_printf(out, " and %zu more", n - FILE_LIST_NAMED);
    return n;
}
