#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/log.h"
#include "base/opts.h"
#include "base/status.h"

struct values {
    bool verbose, cache;
    int64_t port, len;
    double share;
    const char *host, *mode;
    struct opt_list hosts;
    json_t *kv;
};

#define AT(m) offsetof(struct values, m)

static const struct opt_spec specs[] = {
    { "--verbose -v", OPT_FLAG, AT(verbose), NULL, NULL, 0, 0, "talk" },
    { "--cache", OPT_BOOL, AT(cache), "true", NULL, 0, 0, "keep" },
    { "--port -p", OPT_INT, AT(port), "8000", NULL, 0, 65535, "where" },
    { "--max-model-len", OPT_SIZE, AT(len), "0", "auto", -1, 1 << 30, "how long" },
    { "--share", OPT_FLOAT, AT(share), "0.5", NULL, 0.1, 1, "how much" },
    { "--host", OPT_STRING, AT(host), NULL, NULL, 0, 0, "who" },
    { "--mode", OPT_STRING, AT(mode), "slow", "slow fast", 0, 0, "how" },
    { "--decoder-hosts", OPT_LIST, AT(hosts), NULL, NULL, 0, 0, "many" },
    { "--kv-transfer-config", OPT_JSON, AT(kv), NULL, NULL, 0, 0, "json" },
    { "--gpu-only", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, "no GPU" },
    { "--backend", OPT_IGNORED, 0, NULL, "auto triton", 0, 0, "one backend" },
    { "--sizes", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, "no sizes" },
    { "--enable-lora", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, "no LoRA" },
    { "--spec-tokens", OPT_REFUSED, 0, "0", NULL, 0, 0, "no speculation" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};

#define MAX_ARGS 32

/* One parse of arguments split at '|'. */
struct run {
    struct values v;
    struct opts_seen seen;
    struct opt_list rest;
    struct err e;
    char line[512];
    char *argv[MAX_ARGS];
    int argc, st;
};

static struct run *parse(const char *line)
{
    struct run *r = calloc(1, sizeof *r);

    assert_non_null(r);
    strcpy(r->line, line);
    for (char *p = strtok(r->line, "|"); p; p = strtok(NULL, "|"))
        r->argv[r->argc++] = p;
    r->st = opts_parse(specs, &r->v, r->argc, r->argv, &r->rest, &r->seen, &r->e);
    return r;
}

static void done(struct run *r)
{
    if (r->st == 0)
        opts_finish(specs, &r->v, &r->seen);
    free(r->rest.v);
    free(r);
}

static void defaults_come_first(void **state)
{
    struct run *r = parse("");

    (void)state;
    assert_int_equal(r->st, 0);
    assert_true(r->v.cache);
    assert_false(r->v.verbose);
    assert_int_equal(r->v.port, 8000);
    assert_string_equal(r->v.mode, "slow");
    assert_null(r->v.kv);
    assert_false(opts_given(specs, &r->seen, "--port"));
    done(r);
}

static void spellings_are_those_of_vllm(void **state)
{
    struct run *r = parse(
        "model|--port=1|--max_model_len|4k|--no-cache|-v|--decoder-hosts|a|b|c|"
        "--share|0.25|--host=-x|--gpu-only|--no-gpu-only|--backend|triton|--sizes|"
        "1|2|4|--no-enable-lora|--spec-tokens|None|--spec_tokens=0|--mode|None");

    (void)state;
    assert_string_equal(r->e.text, "");
    assert_int_equal(r->st, 0);
    assert_int_equal(r->v.port, 1);
    assert_int_equal(r->v.len, 4000);
    assert_false(r->v.cache);
    assert_true(r->v.verbose);
    assert_int_equal(r->v.hosts.n, 3);
    assert_string_equal(r->v.hosts.v[2], "c");
    assert_string_equal(r->v.host, "-x");
    assert_string_equal(r->v.mode, "slow");
    assert_int_equal(r->rest.n, 1);
    assert_string_equal(r->rest.v[0], "model");
    assert_true(opts_given(specs, &r->seen, "-p"));
    done(r);
}

static void the_last_one_counts(void **state)
{
    struct run *r = parse(
        "-p|1|-p|2|--cache=false|--decoder-hosts|a|--decoder-hosts|b|c|--|--port");

    (void)state;
    assert_int_equal(r->st, 0);
    assert_int_equal(r->v.port, 2);
    assert_false(r->v.cache);
    assert_int_equal(r->v.hosts.n, 2);
    assert_string_equal(r->rest.v[0], "--port");
    done(r);
}

static void sizes_read_as_people_write_them(void **state)
{
    static const struct {
        const char *arg;
        int64_t want;
    } rows[] = { { "--max-model-len=1.5k", 1500 },    { "--max-model-len=4K", 4096 },
                 { "--max-model-len=2M", 2 << 20 },   { "--max-model-len=1m", 1000000 },
                 { "--max-model-len=auto", -1 },      { "--max-model-len=-1", -1 },
                 { "--max-model-len=131072", 131072 } };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct run *r = parse(rows[i].arg);

        assert_int_equal(r->st, 0);
        assert_int_equal(r->v.len, rows[i].want);
        done(r);
    }
}

static const char *text_at(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static void json_has_parts(void **state)
{
    struct run *r = parse("--kv-transfer-config|{\"kv_role\":\"a\",\"x\":{\"y\":1}}|"
                          "--kv_transfer_config.kv_role=kv_both|--kv-transfer-config.x.z|[1,2]|"
                          "--kv-transfer-config.p.q.r|text");
    const json_t *x = json_object_get(r->v.kv, "x");

    (void)state;
    assert_string_equal(r->e.text, "");
    assert_string_equal(text_at(r->v.kv, "kv_role"), "kv_both");
    assert_int_equal(json_integer_value(json_object_get(x, "y")), 1);
    assert_int_equal(json_array_size(json_object_get(x, "z")), 2);
    assert_string_equal(text_at(json_object_get(json_object_get(r->v.kv, "p"), "q"), "r"), "text");
    done(r);
}

/* Each line is refused with a sentence that has the given part. */
static void faults_are_named(void **state)
{
    static const char *const rows[][2] = {
        { "--prot|1", "did you mean '--port'" },
        { "--decoder-host|a", "did you mean '--decoder-hosts'" },
        { "--max-model-length|1", "did you mean '--max-model-len'" },
        { "--nothing-like-it-at-all|1", "--help" },
        { "--no-port", "unknown option '--no-port'" },
        { "--port", "--port needs a value" },
        { "--port|--host|x", "--port needs a value" },
        { "--port|eight", "'eight' is not a whole number" },
        { "--port|70000", "70000 is not in 0..65535" },
        { "--port|99999999999999999999", "not a whole number" },
        { "--share|nan", "not a number" },
        { "--share=2", "not in 0.1..1" },
        { "--mode|medium", "'medium' is not one of: slow fast" },
        { "--backend|cuda", "not one of: auto triton" },
        { "--max-model-len|1.5", "not a whole number" },
        { "--max-model-len|4x", "not a whole number" },
        { "--cache=maybe", "neither true nor false" },
        { "--decoder-hosts", "needs one or more values" },
        { "--kv-transfer-config|{\"a\":1,}", "--kv-transfer-config" },
        { "--kv-transfer-config|[1]", "JSON object is wanted" },
        { "--kv-transfer-config|{\xe2\x80\x9c"
          "a\xe2\x80\x9d:1}",
          "typographic quotation marks" },
        { "--kv-transfer-config..a|1", "empty name" },
        { "--host.x|1", "only options with a JSON value" },
        { "--enable-lora", "no LoRA" },
        { "--spec-tokens|3", "no speculation" },
        { "\xe2\x80\x93port|1", "an en dash (U+2013) where a hyphen belongs" },
        { "\xe2\x80\x94port|1", "write '--port'" },
        { "--max\xe2\x80\x93model\xe2\x80\x93len|1", "write '--max-model-len'" },
        { "--decoder-hosts|a|\xe2\x80\x93\xe2\x80\x93port|1", "write '--port'" },
        { "-\xe2\x80\x93host|1", "write '--host'" },
        { "--host|\xe2\x88\x92"
          "1",
          "a minus sign" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct run *r = parse(rows[i][0]);

        if (r->st == 0)
            fail_msg("accepted: %s", rows[i][0]);
        if (!strstr(r->e.text, rows[i][1]))
            fail_msg("%s: '%s' lacks '%s'", rows[i][0], r->e.text, rows[i][1]);
        done(r);
    }
}

static void positional_arguments_may_be_unwanted(void **state)
{
    char arg[] = "stray";
    char *argv[] = { arg };
    struct values v;
    struct err e = { "" };

    (void)state;
    assert_int_equal(opts_parse(specs, &v, 1, argv, NULL, NULL, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "stray"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_come_first),
        cmocka_unit_test(spellings_are_those_of_vllm),
        cmocka_unit_test(the_last_one_counts),
        cmocka_unit_test(sizes_read_as_people_write_them),
        cmocka_unit_test(json_has_parts),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(positional_arguments_may_be_unwanted),
    };

    log_set_level(LOG_WARNING);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
