#include "ops/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "sys/map.h"

#define STAGE_HEAD ".partial-"

struct outdir {
    char *path;
    char *stage; /* NULL: not made yet, or committed */
    bool made;   /* the folder is ours to remove again */
};

static const char *const tokenizer_files[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
};

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory");
}

static int io_error(const char *what, const char *path, struct err *e)
{
    return err_set(e, errno == ENOMEM ? ERR_NOMEM : ERR_IO, "cannot %s %s: %s", what, path,
                   strerror(errno));
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* What a checkpoint in the folder would be made of: these files would mix with the new ones. */
static bool is_checkpoint_file(const char *name)
{
    if (ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json") ||
        strncmp(name, "quant_model_description", 23) == 0 || strcmp(name, "config.json") == 0)
        return true;
    for (size_t i = 0; i < sizeof tokenizer_files / sizeof *tokenizer_files; i++)
        if (strcmp(name, tokenizer_files[i]) == 0)
            return true;
    return false;
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Calls fn for every entry of the folder until one returns less than 0. */
static int each_entry(const char *dir, int (*fn)(struct outdir *o, const char *name, struct err *e),
                      struct outdir *o, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *de;
    int st = 0;

    if (!d)
        return io_error("open the folder", dir, e);
    while (st == 0 && (de = readdir(d)))
        if (!is_dots(de->d_name))
            st = fn(o, de->d_name, e);
    closedir(d);
    return st;
}

static int refuse_entry(struct outdir *o, const char *name, struct err *e)
{
    return err_set(e, ERR_EXISTS,
                   "%s is not empty (it holds %s): name another folder, or give --force to replace "
                   "the checkpoint in it",
                   o->path, name);
}

static int remove_checkpoint_file(struct outdir *o, const char *name, struct err *e)
{
    char *path;
    int st = 0;

    if (!is_checkpoint_file(name))
        return 0;
    if (asprintf(&path, "%s/%s", o->path, name) < 0)
        return no_memory(e);
    if (unlink(path) < 0)
        st = io_error("remove", path, e);
    free(path);
    return st;
}

static int make(struct outdir *o, bool force, struct err *e)
{
    int st;

    if (mkdir(o->path, 0777) == 0)
        o->made = true;
    else if (errno != EEXIST)
        return io_error("make the folder", o->path, e);
    else if (!force && (st = each_entry(o->path, refuse_entry, o, e)) < 0)
        return st;
    if (asprintf(&o->stage, "%s/" STAGE_HEAD "XXXXXX", o->path) < 0) {
        o->stage = NULL;
        return no_memory(e);
    }
    if (mkdtemp(o->stage))
        return 0;
    st = io_error("make a folder in", o->path, e);
    free(o->stage);
    o->stage = NULL;
    return st;
}

int outdir_create(struct outdir **out, const char *path, bool force, struct err *e)
{
    struct outdir *o = calloc(1, sizeof *o);
    int st;

    if (!o)
        return no_memory(e);
    st = (o->path = strdup(path)) ? make(o, force, e) : no_memory(e);
    if (st < 0) {
        outdir_destroy(o);
        return st;
    }
    *out = o;
    return 0;
}

static int remove_staged(struct outdir *o, const char *name, struct err *e)
{
    char *path;

    (void)e;
    if (asprintf(&path, "%s/%s", o->stage, name) >= 0) {
        unlink(path);
        free(path);
    }
    return 0;
}

void outdir_destroy(struct outdir *o)
{
    struct err ignored = { "" };

    if (!o)
        return;
    if (o->stage) {
        each_entry(o->stage, remove_staged, o, &ignored);
        rmdir(o->stage);
    }
    if (o->made)
        rmdir(o->path); /* only goes while it is empty */
    free(o->stage);
    free(o->path);
    free(o);
}

const char *outdir_stage(const struct outdir *o)
{
    return o->stage;
}

static int write_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, data, n);

        if (k < 0 && errno != EINTR)
            return -1;
        if (k > 0) {
            data += k;
            n -= (size_t)k;
        }
    }
    return 0;
}

int outdir_write(struct outdir *o, const char *name, const void *data, size_t n, struct err *e)
{
    char *path;
    int fd, st = 0;

    if (asprintf(&path, "%s/%s", o->stage, name) < 0)
        return no_memory(e);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write_all(fd, data, n) < 0 || fsync(fd) < 0)
        st = io_error("write", path, e);
    if (fd >= 0)
        close(fd);
    free(path);
    return st;
}

int outdir_write_json(struct outdir *o, const char *name, const json_t *j, struct err *e)
{
    char *text = json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    size_t n = text ? strlen(text) : 0;
    int st;

    if (!text)
        return no_memory(e);
    text[n] = '\n'; /* in place of the terminator */
    st = outdir_write(o, name, text, n + 1, e);
    free(text);
    return st;
}

int outdir_copy(struct outdir *o, const char *from, const char *name, struct err *e)
{
    struct map m = { 0 };
    char *path;
    int st;

    if (asprintf(&path, "%s/%s", from, name) < 0)
        return no_memory(e);
    if ((st = map_open(&m, path, e)) == 0)
        st = outdir_write(o, name, m.size ? (const void *)m.data : "", m.size, e);
    map_close(&m);
    free(path);
    return st;
}

int outdir_copy_tokenizer(struct outdir *o, const char *from, unsigned *n, struct err *e)
{
    *n = 0;
    for (size_t i = 0; i < sizeof tokenizer_files / sizeof *tokenizer_files; i++) {
        int st = outdir_copy(o, from, tokenizer_files[i], e);

        if (st < 0 && st != ERR_NOTFOUND)
            return st;
        *n += st == 0;
    }
    return 0;
}

static int move(struct outdir *o, const char *name, struct err *e)
{
    char *from = NULL, *to = NULL;
    int st = 0;

    if (asprintf(&from, "%s/%s", o->stage, name) < 0)
        return no_memory(e);
    if (asprintf(&to, "%s/%s", o->path, name) < 0) {
        free(from);
        return no_memory(e);
    }
    if (rename(from, to) < 0)
        st = io_error("move into place", to, e);
    free(from);
    free(to);
    return st;
}

static int move_but_config(struct outdir *o, const char *name, struct err *e)
{
    return strcmp(name, "config.json") == 0 ? 0 : move(o, name, e);
}

int outdir_commit(struct outdir *o, struct err *e)
{
    int st;

    if ((st = each_entry(o->path, remove_checkpoint_file, o, e)) < 0 ||
        (st = each_entry(o->stage, move_but_config, o, e)) < 0 ||
        (st = move(o, "config.json", e)) < 0)
        return st;
    if (rmdir(o->stage) < 0)
        return io_error("remove", o->stage, e);
    free(o->stage);
    o->stage = NULL;
    o->made = false;
    return 0;
}
