#include "folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void need(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "folder: %s\n", what);
    exit(1);
}

static void fresh(struct folder *f)
{
    f->header = json_object();
    buf_init(&f->data, BUF_MAX_BODY);
    need(f->header != NULL, "no memory");
}

void folder_make(struct folder *f)
{
    strcpy(f->path, "/tmp/sluice-folder-XXXXXX");
    need(mkdtemp(f->path) != NULL, "no temporary directory");
    fresh(f);
}

void folder_add(struct folder *f, const char *name, const char *dtype, size_t size, uint64_t rows,
                uint64_t cols, const void *data)
{
    size_t from = f->data.len, n = size * (rows ? rows : 1) * cols;
    json_t *shape = rows ? json_pack("[I,I]", (json_int_t)rows, (json_int_t)cols)
                         : json_pack("[I]", (json_int_t)cols);

    need(buf_append(&f->data, data, n) == 0, "no memory");
    json_object_set_new(f->header, name,
                        json_pack("{s:s,s:o,s:[I,I]}", "dtype", dtype, "shape", shape,
                                  "data_offsets", (json_int_t)from, (json_int_t)(from + n)));
}

void folder_drop(struct folder *f, const char *name)
{
    json_object_del(f->header, name);
}

static FILE *open_file(const struct folder *f, const char *name)
{
    char path[512];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", f->path, name);
    need((file = fopen(path, "wb")) != NULL, path);
    return file;
}

void folder_write(struct folder *f, const char *name)
{
    char *text = json_dumps(f->header, 0);
    FILE *file = open_file(f, name);
    size_t len = strlen(text);
    uint64_t n = len + f->pad;

    need(fwrite(&n, 1, 8, file) == 8 && fwrite(text, 1, len, file) == len &&
             fprintf(file, "%*s", (int)f->pad, "") == (int)f->pad &&
             fwrite(f->data.data, 1, f->data.len, file) == f->data.len,
         "cannot write");
    fclose(file);
    free(text);
}

void folder_text(const struct folder *f, const char *name, const char *text)
{
    FILE *file = open_file(f, name);

    need(fputs(text, file) >= 0, "cannot write");
    fclose(file);
}

void folder_clear(struct folder *f)
{
    DIR *d = opendir(f->path);
    struct dirent *de;
    char path[512];

    while (d && (de = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", f->path, de->d_name);
        if (de->d_name[0] != '.')
            unlink(path);
    }
    closedir(d);
    json_decref(f->header);
    buf_finish(&f->data);
    fresh(f);
}

void folder_remove(struct folder *f)
{
    folder_clear(f);
    json_decref(f->header);
    buf_finish(&f->data);
    rmdir(f->path);
}
