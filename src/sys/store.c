#include "sys/store.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

#define PATH_BYTES 4096

struct place {
    const char *variable, *below;
};

static int find_folder(char *out, size_t cap, struct err *e)
{
    static const struct place places[] = { { "SLUICE_CACHE_DIR", "" },
                                           { "XDG_CACHE_HOME", "/sluice" },
                                           { "HOME", "/.cache/sluice" } };

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const char *root = getenv(places[i].variable);

        if (root && root[0] == '/' &&
            (size_t)snprintf(out, cap, "%s%s", root, places[i].below) < cap)
            return 0;
    }
    return err_set(
        e, ERR_NOTFOUND,
        "there is no folder for kept files: none of SLUICE_CACHE_DIR, XDG_CACHE_HOME and "
        "HOME is an absolute path");
}

static int find_file(char *out, size_t cap, const char *name, struct err *e)
{
    char folder[PATH_BYTES];
    int st = find_folder(folder, sizeof folder, e);

    if (st < 0)
        return st;
    if ((size_t)snprintf(out, cap, "%s/%s", folder, name) >= cap)
        return err_set(e, ERR_TOOLONG, "the path of the kept file %s is too long", name);
    return 0;
}

/* All folders on the way to the file. */
static int make_folders(char *path, struct err *e)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        int failed;

        *slash = '\0';
        failed = mkdir(path, 0755) < 0 && errno != EEXIST ? errno : 0;
        if (failed)
            err_set(e, ERR_IO, "cannot make the folder %s: %s", path, strerror(failed));
        *slash = '/';
        if (failed)
            return ERR_IO;
    }
    return 0;
}

static int read_all(FILE *f, char **out, size_t *len, const char *path, struct err *e)
{
    char *data = malloc(STORE_MAX_BYTES + 1);
    size_t n;

    if (!data)
        return err_set(e, ERR_NOMEM, "no memory to read %s", path);
    n = fread(data, 1, STORE_MAX_BYTES + 1, f);
    if (ferror(f) || n > STORE_MAX_BYTES) {
        free(data);
        return ferror(f)
                   ? err_set(e, ERR_IO, "cannot read %s", path)
                   : err_set(e, ERR_TOOLONG, "%s has more than %u bytes", path, STORE_MAX_BYTES);
    }
    data[n] = '\0';
    *out = data;
    *len = n;
    return 0;
}

int store_read(char **out, size_t *len, const char *name, struct err *e)
{
    char path[PATH_BYTES];
    FILE *f;
    int st = find_file(path, sizeof path, name, e);

    if (st < 0)
        return st;
    f = fopen(path, "rbe");
    if (!f)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open %s: %s", path,
                       strerror(errno));
    st = read_all(f, out, len, path, e);
    fclose(f);
    return st;
}

static int write_all(const char *path, const void *data, size_t len, struct err *e)
{
    FILE *f = fopen(path, "wbe");
    bool ok;

    if (!f)
        return err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
    ok = fwrite(data, 1, len, f) == len;
    ok = fclose(f) == 0 && ok;
    if (!ok)
        return err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno));
    return 0;
}

int store_write(const char *name, const void *data, size_t len, struct err *e)
{
    char path[PATH_BYTES], fresh[PATH_BYTES + 32];
    int st;

    if ((st = find_file(path, sizeof path, name, e)) < 0 || (st = make_folders(path, e)) < 0)
        return st;
    snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    st = write_all(fresh, data, len, e);
    if (st == 0 && rename(fresh, path) < 0)
        st = err_set(e, ERR_IO, "cannot put %s in its place: %s", path, strerror(errno));
    if (st < 0)
        unlink(fresh);
    return st;
}
