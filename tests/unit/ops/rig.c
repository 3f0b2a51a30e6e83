#include "rig.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/weights.h"

static char root[64];

int scratch_setup(void **state)
{
    (void)state;
    /* In memory where that is possible: what is tested makes its files durable, which takes a busy
     * disk its time. */
    strcpy(root, "/dev/shm/sluice-ops-XXXXXX");
    if (mkdtemp(root))
        return 0;
    strcpy(root, "/tmp/sluice-ops-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *sb, int flag, struct FTW *f)
{
    (void)sb;
    (void)flag;
    (void)f;
    return remove(path);
}

static int remove_tree(const char *path)
{
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int scratch_teardown(void **state)
{
    (void)state;
    return remove_tree(root);
}

const char *scratch(const char *name)
{
    static char path[8][256];
    static unsigned at;
    char *p = path[at++ % 8];

    snprintf(p, sizeof path[0], "%s/%s", root, name);
    return p;
}

void scratch_remove(const char *name)
{
    remove_tree(scratch(name));
}

void scratch_write(const char *name, const char *text)
{
    FILE *f = fopen(scratch(name), "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

bool scratch_has(const char *name)
{
    return access(scratch(name), F_OK) == 0;
}

const char *golden(const char *name)
{
    static char path[8][512];
    static unsigned at;
    const char *shared = getenv("SLUICE_SHARED");
    char *p = path[at++ % 8];

    snprintf(p, sizeof path[0], "%s/golden/%s", shared ? shared : TEST_ROOT "/../shared", name);
    if (access(p, R_OK) == 0)
        return p;
    snprintf(p, sizeof path[0], "%s/tests/data/golden/%s", TEST_ROOT, name);
    return access(p, R_OK) == 0 ? p : NULL;
}

static struct weights *open_folder(const char *path)
{
    struct weights *w = NULL;
    struct err e = { "" };

    if (weights_open_dir(&w, path, &e) < 0)
        fail_msg("%s", e.text);
    return w;
}

static void compare(const struct weights *a, const struct weights *b, bool bytes)
{
    for (size_t i = 0; i < a->n; i++) {
        const struct tensor *t = &a->w[i].t;
        const struct weight *other = weights_find(b, t->name);

        if (!other)
            fail_msg("%s is in %s but not in %s", t->name, a->path, b->path);
        else if (strcmp(other->t.dtype, t->dtype) != 0 || other->t.n_dims != t->n_dims ||
                 memcmp(other->t.shape, t->shape, t->n_dims * sizeof t->shape[0]) != 0)
            fail_msg("%s differs in dtype or shape: %s, %s", t->name, t->dtype, other->t.dtype);
        else if (bytes && memcmp(other->t.data, t->data, t->bytes) != 0)
            fail_msg("%s differs in its bytes", t->name);
    }
}

void assert_same_tensors(const char *got, const char *want)
{
    struct weights *a = open_folder(got), *b = open_folder(want);

    compare(a, b, false);
    compare(b, a, false);
    weights_close(a);
    weights_close(b);
}

void assert_same_bytes(const char *x, const char *y)
{
    struct weights *a = open_folder(x), *b = open_folder(y);

    compare(a, b, true);
    compare(b, a, true);
    weights_close(a);
    weights_close(b);
}
