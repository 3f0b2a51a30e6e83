#include "model/shard_index.h"

#include <jansson.h>
#include <string.h>

#include "base/status.h"
#include "model/weights_file.h"

static int list_files(struct file_list *l, json_t *map, struct err *e)
{
    const char *tensor, *file;
    json_t *j;
    int st;

    json_object_foreach(map, tensor, j)
    {
        file = json_string_value(j);
        if (!file || !*file || strchr(file, '/'))
            return err_set(e, ERR_BADMSG,
                           "tensor %.128s: expected the name of a file beside the index, found "
                           "%.128s",
                           tensor, file ? file : "no string");
        if ((st = file_list_add(l, file, e)) < 0)
            return st;
    }
    file_list_sort(l);
    return 0;
}

int shard_index_parse(struct shard_index *out, const char *text, size_t len, struct err *e)
{
    json_error_t je;
    struct shard_index x = { .root = json_loadb(text ? text : "", len, 0, &je) };
    int st;

    x.map = json_object_get(x.root, "weight_map");
    if (!x.root)
        st = err_set(e, ERR_BADMSG, "line %d: %s", je.line, je.text);
    else if (!json_is_object(x.map))
        st = err_set(e, ERR_BADMSG, "no object \"weight_map\"");
    else if (!(x.files = file_list_new()))
        st = weights_no_memory(e);
    else
        st = list_files(x.files, x.map, e);
    if (st < 0) {
        shard_index_finish(&x);
        return st;
    }
    *out = x;
    return 0;
}

void shard_index_finish(struct shard_index *x)
{
    json_decref(x->root);
    file_list_free(x->files);
    *x = (struct shard_index){ 0 };
}

int shard_index_check(const struct shard_index *x, const struct weights *w, struct err *e)
{
    const char *tensor;
    json_t *j;

    json_object_foreach(x->map, tensor, j)
    {
        const struct weight *f = weights_find(w, tensor);
        const char *found = f ? strrchr(f->file, '/') + 1 : NULL;

        if (!f || strcmp(found, json_string_value(j)) != 0)
            return err_set(e, ERR_BADMSG, "tensor %.128s: expected in %s, found in %s", tensor,
                           json_string_value(j), f ? found : "no file");
    }
    return 0;
}
