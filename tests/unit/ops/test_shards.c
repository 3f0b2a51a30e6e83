/* The safetensors writer against the reader: cut anywhere, what comes back is what went in. */
#include "rig.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "model/weights.h"
#include "ops/outdir.h"
#include "ops/shards.h"
#include "ops/size.h"

#define N 5

static const struct shard_tensor tensors[N] = {
    { "a.weight", SHARD_I8, 2, { 3, 5 } }, { "a.scale", SHARD_F32, 2, { 3, 1 } },
    { "b.weight", SHARD_BF16, 1, { 7 } },  { "c.weight", SHARD_F8_E4M3, 2, { 1, 3 } },
    { "c.bias", SHARD_I32, 1, { 2 } },
};

static unsigned char byte_of(size_t tensor, uint64_t i)
{
    return (unsigned char)(tensor * 50 + i);
}

/* Writes all tensors byte by byte from the last to the first. */
static void write_all(const char *dir, uint64_t max_bytes)
{
    struct shards *s = NULL;
    struct err e = { "" };

    assert_int_equal(shards_create(&s, dir, "model", max_bytes, tensors, N, &e), 0);
    assert_int_equal(shards_bytes(s), 15 + 12 + 14 + 3 + 8);
    for (size_t i = N; i-- > 0;)
        for (uint64_t at = shard_tensor_bytes(&tensors[i]); at-- > 0;) {
            unsigned char b = byte_of(i, at);

            assert_int_equal(shards_write(s, i, at, &b, 1, &e), 0);
        }
    assert_int_equal(shards_finish(s, &e), 0);
    shards_destroy(s);
}

static void check(const char *dir, size_t files)
{
    struct weights *w = NULL;
    struct err e = { "" };

    if (weights_open_dir(&w, dir, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(w->n, N);
    assert_int_equal(w->n_files, files);
    for (size_t i = 0; i < N; i++) {
        const struct weight *f = weights_find(w, tensors[i].name);

        assert_non_null(f);
        assert_int_equal(f->t.bytes, shard_tensor_bytes(&tensors[i]));
        assert_int_equal((uintptr_t)f->t.data % shard_type_bytes(tensors[i].type), 0);
        for (uint64_t k = 0; k < f->t.bytes; k++)
            assert_int_equal(f->t.data[k], byte_of(i, k));
    }
    weights_close(w);
}

static void round_trip(void **state)
{
    static const struct {
        uint64_t max_bytes;
        size_t files;
    } cases[] = { { 1000, 1 }, { 27, 2 }, { 1, N } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct outdir *o = NULL;
        struct err e = { "" };

        assert_int_equal(outdir_create(&o, scratch("s"), false, &e), 0);
        write_all(outdir_stage(o), cases[i].max_bytes);
        check(outdir_stage(o), cases[i].files);
        outdir_destroy(o);
        assert_false(scratch_has("s"));
    }
}

/* A disk without room: the file is named, and so is the reason. */
static void no_room(void **state)
{
    struct rlimit small = { 10, RLIM_INFINITY }, was;
    struct outdir *o = NULL;
    struct shards *s = NULL;
    struct err e = { "" };

    (void)state;
    assert_int_equal(outdir_create(&o, scratch("s"), false, &e), 0);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    setrlimit(RLIMIT_FSIZE, &small);
    assert_int_equal(shards_create(&s, outdir_stage(o), "model", 1000, tensors, N, &e), ERR_IO);
    setrlimit(RLIMIT_FSIZE, &was);
    assert_non_null(strstr(e.text, "model-00001-of-00001.safetensors"));
    assert_non_null(strstr(e.text, "File too large"));
    outdir_destroy(o);
    assert_false(scratch_has("s"));
}

/* The folder is what it was until the commit, and then it holds all of it. */
static void commit(void **state)
{
    struct outdir *o = NULL;
    struct err e = { "" };

    (void)state;
    assert_int_equal(outdir_create(&o, scratch("s"), false, &e), 0);
    assert_int_equal(outdir_write(o, "config.json", "{}", 2, &e), 0);
    assert_int_equal(outdir_write(o, "tokenizer.json", "{}", 2, &e), 0);
    assert_false(scratch_has("s/config.json"));
    assert_int_equal(outdir_commit(o, &e), 0);
    outdir_destroy(o);
    assert_true(scratch_has("s/config.json") && scratch_has("s/tokenizer.json"));

    assert_int_equal(outdir_create(&o, scratch("s"), false, &e), ERR_EXISTS);
    scratch_write("s/notes.txt", "mine");
    assert_int_equal(outdir_create(&o, scratch("s"), true, &e), 0);
    assert_int_equal(outdir_write(o, "config.json", "{}", 2, &e), 0);
    assert_true(scratch_has("s/tokenizer.json"));
    assert_int_equal(outdir_commit(o, &e), 0);
    outdir_destroy(o);
    assert_true(scratch_has("s/config.json") && scratch_has("s/notes.txt"));
    assert_false(scratch_has("s/tokenizer.json")); /* of another model */
    scratch_remove("s");
}

static void sizes(void **state)
{
    struct err e = { "" };
    uint64_t n;

    (void)state;
    assert_int_equal(size_parse(&n, "--x", "5GB", &e), 0);
    assert_true(n == 5000000000u);
    assert_int_equal(size_parse(&n, "--x", "1.5GiB", &e), 0);
    assert_true(n == 3u << 29);
    assert_int_equal(size_parse(&n, "--x", "123", &e), 0);
    assert_true(n == 123);
    assert_int_equal(size_parse(&n, "--x", "5 elephants", &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "--x 5 elephants"));
    assert_int_equal(size_parse(&n, "--x", "0", &e), ERR_INVAL);
    assert_int_equal(size_parse(&n, "--x", "nan", &e), ERR_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(no_room),
        cmocka_unit_test(commit),
        cmocka_unit_test(sizes),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
