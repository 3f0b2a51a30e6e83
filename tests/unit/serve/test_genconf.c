/* Defaults for sampling: generation_config.json and --override-generation-config. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "serve/config.h"
#include "serve/genconf.h"

static char dir[32], file[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "genconf-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(file, sizeof file, "%s/generation_config.json", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(dir);
}

static void write_file(const char *text)
{
    FILE *f = fopen(file, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

struct loaded {
    struct sampling s;
    uint32_t max_tokens;
    struct err e;
    int st;
};

static struct loaded load(const char *from, const char *override)
{
    struct serve_config cfg = { .model = dir, .generation_config = from };
    struct loaded l = { .e = { "" } };

    if (override)
        assert_int_equal(
            json_read(&cfg.override_generation, override, strlen(override), NULL, &l.e), 0);
    l.st = genconf_load(&cfg, &l.s, &l.max_tokens, &l.e);
    json_decref(cfg.override_generation);
    return l;
}

#define FILE_TEXT                                                                                  \
    "{\"temperature\":0.25,\"top_p\":0.5,\"top_k\":20,\"repetition_penalty\":1.5,"                 \
    "\"max_new_tokens\":77,\"do_sample\":true,\"eos_token_id\":[1,2]}"

static void the_models_file_counts(void **state)
{
    struct loaded l;

    (void)state;
    write_file(FILE_TEXT);
    l = load("auto", NULL);
    assert_string_equal(l.e.text, "");
    assert_true(l.s.temperature == 0.25f && l.s.top_p == 0.5f && l.s.repetition_penalty == 1.5f);
    assert_int_equal(l.s.top_k, 20);
    assert_int_equal(l.max_tokens, 77);
}

static void vllm_means_no_file(void **state)
{
    struct loaded l;

    (void)state;
    write_file(FILE_TEXT);
    l = load("vllm", NULL);
    assert_true(l.s.temperature == 1 && l.s.top_p == 1 && l.s.top_k == 0);
    assert_int_equal(l.max_tokens, 0);
}

static void a_folder_may_be_named(void **state)
{
    struct loaded l;

    (void)state;
    l = load("auto", NULL); /* no file: nothing changes */
    assert_int_equal(l.st, 0);
    assert_true(l.s.temperature == 1);
    l = load(dir, NULL); /* but one that was named must be there */
    assert_int_equal(l.st, ERR_NOTFOUND);
    assert_non_null(strstr(l.e.text, dir));
    write_file(FILE_TEXT);
    l = load(dir, NULL);
    assert_true(l.s.temperature == 0.25f);
}

static void the_option_wins(void **state)
{
    struct loaded l;

    (void)state;
    write_file(FILE_TEXT);
    l = load("auto", "{\"temperature\":0.75,\"max_new_tokens\":9}");
    assert_true(l.s.temperature == 0.75f && l.s.top_p == 0.5f);
    assert_int_equal(l.max_tokens, 9);
    l = load("vllm", "{\"top_k\":3}");
    assert_int_equal(l.s.top_k, 3);
    assert_true(l.s.temperature == 1);
}

static void mistakes_are_named(void **state)
{
    struct loaded l;

    (void)state;
    l = load("vllm", "{\"top_p\":2}");
    assert_int_equal(l.st, ERR_BADMSG);
    assert_non_null(strstr(l.e.text, "--override-generation-config: top_p must be a number"));
    write_file("{\"top_k\":\"many\"}");
    l = load("auto", NULL);
    assert_int_equal(l.st, ERR_BADMSG);
    assert_non_null(strstr(l.e.text, "top_k must be a whole number"));
    assert_non_null(strstr(l.e.text, file));
    write_file("{");
    l = load("auto", NULL);
    assert_non_null(strstr(l.e.text, file));
}

#define IN_DIR(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(the_models_file_counts), IN_DIR(vllm_means_no_file), IN_DIR(a_folder_may_be_named),
        IN_DIR(the_option_wins),        IN_DIR(mistakes_are_named),
    };

    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
