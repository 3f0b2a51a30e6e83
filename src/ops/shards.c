#include "ops/shards.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "model/weights.h"

struct place {
    uint32_t file;
    uint64_t offset; /* in the file's data, later in the file */
};

struct shard_file {
    char *path;
    const char *name; /* the end of path */
    int fd;
    size_t first, n; /* its tensors */
    uint64_t bytes;  /* of data */
};

struct shards {
    const struct shard_tensor *t;
    size_t n;
    struct place *at;
    struct shard_file *file;
    uint32_t n_files;
    char *index; /* path */
    uint64_t bytes;
};

static const struct {
    const char *name;
    uint32_t bytes;
} types[SHARD_TYPES] = {
    [SHARD_F32] = { "F32", 4 }, [SHARD_I32] = { "I32", 4 },         [SHARD_BF16] = { "BF16", 2 },
    [SHARD_I8] = { "I8", 1 },   [SHARD_F8_E4M3] = { "F8_E4M3", 1 },
};

uint32_t shard_type_bytes(enum shard_type type)
{
    return types[type].bytes;
}

uint64_t shard_tensor_bytes(const struct shard_tensor *t)
{
    uint64_t n = types[t->type].bytes;

    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for the table of tensors");
}

static int io_error(const char *path, struct err *e)
{
    return err_set(e, ERR_IO, "cannot write %s: %s%s", path, strerror(errno),
                   errno == ENOSPC ? " (free some room, or name another place)" : "");
}

/* Which tensors go into which file. */
static int divide(struct shards *s, uint64_t max_bytes, struct err *e)
{
    struct shard_file *f = NULL;

    for (size_t i = 0; i < s->n; i++) {
        uint64_t bytes = shard_tensor_bytes(&s->t[i]);

        if (!f || (f->bytes > 0 && f->bytes + bytes > max_bytes)) {
            if (s->n_files == WEIGHTS_MAX_FILES)
                return err_set(e, ERR_LIMIT,
                               "more than %d files: raise --max-shard-size above %llu bytes",
                               WEIGHTS_MAX_FILES, (unsigned long long)max_bytes);
            f = &s->file[s->n_files++];
            f->first = i;
        }
        f->n++;
        f->bytes += bytes;
        s->bytes += bytes;
        s->at[i].file = s->n_files - 1;
    }
    return 0;
}

/* The widest elements first, so that every tensor is aligned. */
static void lay_out(struct shards *s, const struct shard_file *f)
{
    uint64_t offset = 0;

    for (uint32_t width = 4; width > 0; width /= 2)
        for (size_t i = f->first; i < f->first + f->n; i++)
            if (types[s->t[i].type].bytes == width) {
                s->at[i].offset = offset;
                offset += shard_tensor_bytes(&s->t[i]);
            }
}

/* Appends the entry of a tensor. */
static void put_entry(struct buf *b, const struct shard_tensor *t, uint64_t offset)
{
    buf_puts(b, b->len > 1 ? "," : "");
    json_put_text(b, t->name);
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", types[t->type].name);
    for (uint32_t i = 0; i < t->n_dims; i++)
        buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
    buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)offset,
               (unsigned long long)(offset + shard_tensor_bytes(t)));
}

/* The header, padded so that the data behind it and its length begin at a multiple of 64. */
static int put_header(struct shards *s, const struct shard_file *f, struct buf *b)
{
    buf_puts(b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = f->first; i < f->first + f->n; i++)
        put_entry(b, &s->t[i], s->at[i].offset);
    buf_putc(b, '}');
    while (b->status == 0 && (b->len + 8) % 64)
        buf_putc(b, ' ');
    return b->status;
}

static int write_at(const struct shard_file *f, uint64_t at, const void *data, size_t n,
                    struct err *e)
{
    const char *p = data;

    while (n > 0) {
        ssize_t k = pwrite(f->fd, p, n, (off_t)at);

        if (k < 0 && errno != EINTR)
            return io_error(f->path, e);
        if (k > 0) {
            p += k;
            at += (uint64_t)k;
            n -= (size_t)k;
        }
    }
    return 0;
}

/* A file system without fallocate says so, and then a full disk shows while writing. */
static int take_room(const struct shard_file *f, uint64_t bytes, struct err *e)
{
    if (fallocate(f->fd, 0, 0, (off_t)bytes) == 0)
        return 0;
    if (errno != EOPNOTSUPP && errno != ENOSYS)
        return io_error(f->path, e);
    return ftruncate(f->fd, (off_t)bytes) < 0 ? io_error(f->path, e) : 0;
}

static int begin_file(struct shards *s, struct shard_file *f, struct err *e)
{
    unsigned char length[8];
    struct buf b;
    int st;

    lay_out(s, f);
    f->fd = open(f->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0)
        return io_error(f->path, e);
    buf_init(&b, SAFETENSORS_MAX_HEADER);
    if (put_header(s, f, &b) < 0) {
        st = err_set(e, ERR_LIMIT, "%s: the table of %zu tensors is too long", f->path, f->n);
    } else {
        for (unsigned i = 0; i < 8; i++)
            length[i] = (unsigned char)((uint64_t)b.len >> (8 * i));
        for (size_t i = f->first; i < f->first + f->n; i++)
            s->at[i].offset += 8 + b.len;
        if ((st = take_room(f, 8 + b.len + f->bytes, e)) == 0 &&
            (st = write_at(f, 0, length, 8, e)) == 0)
            st = write_at(f, 8, b.data, b.len, e);
    }
    buf_finish(&b);
    return st;
}

static int name_files(struct shards *s, const char *dir, const char *stem)
{
    for (uint32_t i = 0; i < s->n_files; i++) {
        if (asprintf(&s->file[i].path, "%s/%s-%05u-of-%05u.safetensors", dir, stem, i + 1,
                     s->n_files) < 0) {
            s->file[i].path = NULL;
            return ERR_NOMEM;
        }
        s->file[i].name = s->file[i].path + strlen(dir) + 1;
    }
    if (asprintf(&s->index, "%s/%s.safetensors.index.json", dir, stem) < 0) {
        s->index = NULL;
        return ERR_NOMEM;
    }
    return 0;
}

static int fill(struct shards *s, const char *dir, const char *stem, uint64_t max_bytes,
                struct err *e)
{
    int st;

    s->at = calloc(s->n ? s->n : 1, sizeof *s->at);
    s->file = calloc(WEIGHTS_MAX_FILES, sizeof *s->file);
    if (!s->at || !s->file)
        return no_memory(e);
    for (uint32_t i = 0; i < WEIGHTS_MAX_FILES; i++)
        s->file[i].fd = -1;
    if ((st = divide(s, max_bytes, e)) < 0)
        return st;
    if (name_files(s, dir, stem) < 0)
        return no_memory(e);
    for (uint32_t i = 0; st == 0 && i < s->n_files; i++)
        st = begin_file(s, &s->file[i], e);
    return st;
}

int shards_create(struct shards **out, const char *dir, const char *stem, uint64_t max_bytes,
                  const struct shard_tensor *t, size_t n, struct err *e)
{
    struct shards *s = calloc(1, sizeof *s);
    int st;

    if (!s)
        return no_memory(e);
    s->t = t;
    s->n = n;
    if ((st = fill(s, dir, stem, max_bytes, e)) < 0) {
        shards_destroy(s);
        return st;
    }
    *out = s;
    return 0;
}

int shards_write(struct shards *s, size_t i, uint64_t at, const void *data, size_t n, struct err *e)
{
    assert(i < s->n && at + n <= shard_tensor_bytes(&s->t[i]));
    return write_at(&s->file[s->at[i].file], s->at[i].offset + at, data, n, e);
}

static json_t *index_of(const struct shards *s)
{
    json_t *map = json_object();

    for (size_t i = 0; i < s->n; i++)
        json_object_set_new(map, s->t[i].name, json_string(s->file[s->at[i].file].name));
    return json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)s->bytes, "weight_map",
                     map);
}

int shards_finish(struct shards *s, struct err *e)
{
    json_t *index;
    int st = 0;

    for (uint32_t i = 0; i < s->n_files; i++) {
        if (fsync(s->file[i].fd) < 0 || close(s->file[i].fd) < 0)
            return io_error(s->file[i].path, e);
        s->file[i].fd = -1;
    }
    if (!(index = index_of(s)))
        return no_memory(e);
    if (json_dump_file(index, s->index, JSON_INDENT(2) | JSON_SORT_KEYS) < 0)
        st = io_error(s->index, e);
    json_decref(index);
    return st;
}

void shards_destroy(struct shards *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->file && i < WEIGHTS_MAX_FILES; i++) {
        if (s->file[i].fd >= 0)
            close(s->file[i].fd);
        free(s->file[i].path);
    }
    free(s->file);
    free(s->at);
    free(s->index);
    free(s);
}

uint64_t shards_bytes(const struct shards *s)
{
    return s->bytes;
}
