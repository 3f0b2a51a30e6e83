/* Files kept from one start to the next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"
#include "sys/store.h"

static char root[64];

static int open_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/sluice-store-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static void expect_kept(const char *name, const char *want)
{
    char *got;
    size_t len;

    assert_int_equal(store_read(&got, &len, name, NULL), 0);
    assert_int_equal(len, strlen(want));
    assert_string_equal(got, want);
    free(got);
}

static void expect_file(const char *below)
{
    char path[256];
    struct stat st;

    snprintf(path, sizeof path, "%s%s", root, below);
    assert_int_equal(stat(path, &st), 0);
    unlink(path);
}

static void the_last_writing_counts(void **state)
{
    struct err e = { "" };
    char *got;
    size_t len;

    (void)state;
    setenv("SLUICE_CACHE_DIR", root, 1);
    assert_int_equal(store_read(&got, &len, "x.json", &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "x.json"));
    assert_int_equal(store_write("x.json", "first and long", 14, NULL), 0);
    assert_int_equal(store_write("x.json", "last", 4, NULL), 0);
    expect_kept("x.json", "last");
    expect_file("/x.json");
}

/* Other variables, and folders that do not exist yet. */
static void folders_are_made(void **state)
{
    char path[128];

    (void)state;
    unsetenv("SLUICE_CACHE_DIR");
    setenv("HOME", root, 1);
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(store_write("y", "home", 4, NULL), 0);
    expect_kept("y", "home");
    expect_file("/.cache/sluice/y");
    snprintf(path, sizeof path, "%s/xdg", root);
    setenv("XDG_CACHE_HOME", path, 1);
    assert_int_equal(store_write("y", "xdg", 3, NULL), 0);
    expect_file("/xdg/sluice/y");
}

static void what_cannot_be_kept_is_said(void **state)
{
    struct err e = { "" };
    char path[128], *got, *big = calloc(1, STORE_MAX_BYTES + 1);
    size_t len;

    (void)state;
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "relative", 1);
    assert_int_equal(store_write("y", "", 0, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "SLUICE_CACHE_DIR"));
    snprintf(path, sizeof path, "%s/file", root);
    setenv("SLUICE_CACHE_DIR", root, 1);
    assert_int_equal(store_write("file", "x", 1, NULL), 0);
    assert_int_equal(store_write("big", big, STORE_MAX_BYTES + 1, NULL), 0);
    assert_int_equal(store_read(&got, &len, "big", &e), ERR_TOOLONG);
    setenv("SLUICE_CACHE_DIR", path, 1); /* a file, not a folder */
    assert_int_equal(store_write("y", "", 0, &e), ERR_IO);
    expect_file("/file");
    expect_file("/big");
    free(big);
}

static int close_root(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_writing_counts),
        cmocka_unit_test(folders_are_made),
        cmocka_unit_test(what_cannot_be_kept_is_said),
    };

    return cmocka_run_group_tests(tests, open_root, close_root);
}
