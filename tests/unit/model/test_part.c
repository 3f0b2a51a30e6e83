/* What ranks hold of a model: shares, slices of stored matrices of every kind, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rand.h"
#include "base/status.h"
#include "folder.h"
#include "gguf_build.h"
#include "model/arch.h"
#include "model/load_quant.h"
#include "model/quant.h"
#include "model/safetensors.h"
#include "sys/map.h"

static struct kernels *kernels;

static int setup(void **state)
{
    struct k_options o = { .threads = 1 };
    struct err e = { 0 };

    (void)state;
    return kernels_open(&kernels, &o, &e);
}

static int teardown(void **state)
{
    (void)state;
    kernels_close(kernels);
    return 0;
}

static void test_shares(void **state)
{
    static const uint32_t all[] = { 1, 8, 160, 512, 1000, 49152 }, units[] = { 1, 8, 16, 128 };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t j = 0; j < sizeof units / sizeof units[0]; j++)
            for (uint32_t size = 1; size <= 16; size++) {
                uint32_t next = 0, unit = units[j], first = share_of(all[i], unit, 0, size).n;

                for (uint32_t rank = 0; rank < size; rank++) {
                    struct share s = share_of(all[i], unit, rank, size);

                    assert_true(s.from == next && (s.from % unit == 0 || s.n == 0));
                    assert_true(s.n <= first && s.n + 2 * unit > first);
                    next = s.from + s.n;
                }
                assert_int_equal(next, all[i]);
            }
    assert_int_equal(share_of(160, 16, 0, 4).n, 48);
    assert_int_equal(share_of(160, 16, 3, 4).n, 32);
    assert_int_equal(share_of(160, 8, 1, 4).from, 40);
}

/* ---- slices ---- */

struct bed {
    struct folder f;
    struct model m;
    struct arch arch;
    struct weights *w;
    struct quant *q;
    struct model_options opt;
    struct load l;
    struct err e;
    char gguf[128]; /* path of the file, which messages name */
};

static int make(void **state)
{
    struct bed *b = calloc(1, sizeof *b);

    folder_make(&b->f);
    *state = b;
    return 0;
}

static void shut(struct bed *b)
{
    quant_close(b->q);
    weights_close(b->w);
    b->q = NULL;
    b->w = NULL;
}

static int destroy(void **state)
{
    struct bed *b = *state;

    shut(b);
    folder_remove(&b->f);
    free(b);
    return 0;
}

static void begin(struct bed *b)
{
    b->arch = (struct arch){ .hf = "Test" };
    b->m = (struct model){ .k = kernels, .arch = &b->arch, .math = K_MATH_FLOAT };
    b->l = (struct load){ .m = &b->m, .w = b->w, .quant = b->q, .opt = &b->opt, .e = &b->e };
}

/* The folder as `says` (a description, a config.json or "") reads it. */
static void open_folder(struct bed *b, const char *says)
{
    int st = 0;

    shut(b);
    folder_write(&b->f, "model.safetensors");
    b->q = quant_new();
    if (weights_open_dir(&b->w, b->f.path, &b->e) < 0)
        fail_msg("%s", b->e.text);
    if (strstr(says, "quantization_config"))
        st = quant_read_config(b->q, says, strlen(says), NULL, "config.json", &b->e);
    else if (*says)
        st = quant_read_description(b->q, says, strlen(says), "description.json", &b->e);
    if (st < 0)
        fail_msg("%s", b->e.text);
    begin(b);
}

/* A GGUF file of one matrix of random blocks. type: ggml's number. */
static void open_gguf(struct bed *b, uint32_t rows, uint32_t cols, uint32_t type, enum k_type ours)
{
    struct buf file;
    size_t bytes = k_type_bytes(ours, (uint64_t)rows * cols), from;
    FILE *f;

    shut(b);
    buf_init(&file, 1 << 20);
    put_header(&file, 3, 1, 0);
    put_matrix(&file, "layer.weight", rows, cols, type, 0);
    pad_to(&file, 32);
    from = file.len;
    for (size_t i = 0; i < bytes; i++)
        buf_putc(&file, (char)(rand_uniform(type, i, 0) * 256));
    /* the half floats of a block are its scales: small ones, and no NaN */
    for (size_t i = 1; i < bytes; i++)
        file.data[from + i] = (char)(file.data[from + i] & 0x2f);
    file.data[from] = 1;
    snprintf(b->gguf, sizeof b->gguf, "%s/model.gguf", b->f.path);
    f = fopen(b->gguf, "w");
    assert_true(f && fwrite(file.data, 1, file.len, f) == file.len && fclose(f) == 0);
    buf_finish(&file);
    assert_int_equal(quant_open_gguf(&b->q, NULL, b->gguf, &b->e), 0);
    if (weights_open_gguf(&b->w, b->gguf, &b->e) < 0)
        fail_msg("%s", b->e.text);
    begin(b);
}

/* n rows of random numbers times columns [from, ..) of the loaded matrix; y is the caller's to free. */
#define ROWS 3
static float *multiply(const struct k_matrix *m, uint32_t from, uint32_t cols, uint32_t rows)
{
    const struct k_static *fixed = kernels->matrix_static(m);
    size_t in_bytes = (size_t)ROWS * cols * sizeof(float);
    float *in = kernels->alloc(kernels, in_bytes), *y = calloc((size_t)ROWS * rows, sizeof *y);
    struct k_act *a;

    for (uint32_t i = 0; i < ROWS * cols; i++)
        in[i] = (float)rand_uniform(7, i % cols + from, i / cols) - 0.5f;
    assert_int_equal(
        kernels->act_create(kernels, &a, ROWS, cols, kernels->matrix_form(m) | K_FORM_F32), 0);
    kernels->act_load(kernels, a, in, cols, ROWS, cols);
    if (fixed)
        kernels->act_static(kernels, a, ROWS, fixed);
    kernels->linear(kernels, y, rows, a, m, ROWS, false);
    kernels->act_destroy(kernels, a);
    kernels->free(kernels, in, in_bytes);
    return y;
}

static float *product(struct bed *b, struct load_part p, uint32_t cols)
{
    struct share r = p.only_rows, c = p.only_cols;
    struct k_matrix *m = NULL;
    float *y;

    if (load_matrix(&b->l, &m, &p, 1, cols, NULL) < 0)
        fail_msg("%s", b->e.text);
    y = multiply(m, c.from, c.n ? c.n : cols, r.n ? r.n : p.rows);
    kernels->unpack_free(kernels, m);
    return y;
}

/* Rows of the matrix give rows of the product, bit for bit. */
static void check_rows(struct bed *b, struct load_part p, uint32_t cols, const float *whole,
                       struct share rows)
{
    float *y;

    p.only_rows = rows;
    y = product(b, p, cols);
    for (uint32_t i = 0; i < ROWS; i++)
        assert_memory_equal(y + (size_t)i * rows.n, whole + (size_t)i * p.rows + rows.from,
                            rows.n * sizeof *y);
    free(y);
}

/* Columns give parts of the sums, and the parts together the product. */
static void check_columns(struct bed *b, struct load_part p, uint32_t cols, const float *whole,
                          const uint32_t *borders, double limit)
{
    uint32_t n = ROWS * p.rows;
    double *sum = calloc(n, sizeof *sum);

    for (uint32_t at = 0; at < cols; at = *borders++) {
        float *y;

        p.only_cols = (struct share){ at, *borders - at };
        y = product(b, p, cols);
        for (uint32_t i = 0; i < n; i++)
            sum[i] += (double)y[i];
        free(y);
    }
    for (uint32_t i = 0; i < n; i++)
        if (!(fabs(sum[i] - (double)whole[i]) <= limit * (1 + fabs((double)whole[i]))))
            fail_msg("output %u: the parts add up to %g, together it is %g", i, sum[i],
                     (double)whole[i]);
    free(sum);
}

/* Floats of rows and columns that are asked for. */
static void check_floats(struct bed *b, struct load_part p, uint32_t cols, struct share rows,
                         struct share columns)
{
    float *all, *some;

    assert_int_equal(load_floats(&b->l, &all, &p, cols), 0);
    p.only_rows = rows;
    p.only_cols = columns;
    assert_int_equal(load_floats(&b->l, &some, &p, cols), 0);
    for (uint32_t i = 0; i < rows.n; i++)
        assert_memory_equal(some + (size_t)i * columns.n,
                            all + (size_t)(rows.from + i) * cols + columns.from,
                            columns.n * sizeof *some);
    free(all);
    free(some);
}

static const struct load_part layer = { .name = "layer.weight", .rows = 200 };

/* borders: where the columns are cut, the last of them their number. */
static void check_slices(struct bed *b, uint32_t cols, const uint32_t *borders, double limit)
{
    float *whole = product(b, layer, cols);
    struct load_part pairs = layer;

    check_rows(b, layer, cols, whole, (struct share){ 0, 56 });
    check_rows(b, layer, cols, whole, (struct share){ 56, 100 });
    check_rows(b, layer, cols, whole, (struct share){ 130, 70 });
    check_columns(b, layer, cols, whole, borders, limit);
    free(whole);
    pairs.head_dim = 20;
    whole = product(b, pairs, cols);
    check_rows(b, pairs, cols, whole, (struct share){ 60, 80 });
    free(whole);
    check_floats(b, layer, cols, (struct share){ 70, 90 },
                 (struct share){ borders[0], borders[1] - borders[0] });
}

static void add_random(struct bed *b, const char *name, const char *dtype, uint64_t rows,
                       uint64_t cols)
{
    size_t size = strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0 ? 4
                  : strcmp(dtype, "BF16") == 0                           ? 2
                                                                         : 1;
    size_t n = (rows ? rows : 1) * cols;
    unsigned char *data = calloc(n, size);

    for (size_t i = 0; i < n; i++) {
        float v = (float)rand_uniform(strlen(name), i, 1) - 0.5f;
        int32_t whole = (int32_t)(v * 200);

        if (strcmp(dtype, "BF16") == 0)
            memcpy(data + 2 * i, &(uint16_t){ k_float_to_bf16(v) }, 2);
        else if (strcmp(dtype, "F8_E4M3") == 0)
            data[i] = k_float_to_f8(v);
        else if (strcmp(dtype, "I8") == 0)
            data[i] = (unsigned char)whole;
        else if (strcmp(dtype, "I32") == 0)
            memcpy(data + 4 * i, &(int32_t){ whole * 50 }, 4);
        else
            memcpy(data + 4 * i, &(float){ fabsf(v) + 0.01f }, 4);
    }
    folder_add(&b->f, name, dtype, size, rows, cols, data);
    free(data);
}

static void test_plain(void **state)
{
    static const uint32_t borders[] = { 16, 96, 330 };
    struct bed *b = *state;

    add_random(b, "layer.weight", "BF16", 200, 330);
    open_folder(b, "");
    check_slices(b, 330, borders, 1e-5);
    b->m.math = K_MATH_FAST;
    check_slices(b, 330, borders, 0.02);
}

static void test_static(void **state)
{
    static const uint32_t borders[] = { 48, 96, 320 };
    static const float scale = 0.005f, offset = 3;
    struct bed *b = *state;

    add_random(b, "layer.weight", "I8", 200, 320);
    add_random(b, "layer.deq_scale", "F32", 0, 200);
    add_random(b, "layer.quant_bias", "I32", 0, 200);
    folder_add(&b->f, "layer.input_scale", "F32", 4, 0, 1, &scale);
    folder_add(&b->f, "layer.input_offset", "F32", 4, 0, 1, &offset);
    open_folder(b, "{\"layer.weight\":\"W8A8\"}");
    check_slices(b, 320, borders, 1e-4);
}

/* A scale a token is that of the columns which are there: the integers of a part are others. */
static void test_dynamic(void **state)
{
    static const uint32_t borders[] = { 48, 96, 320 };
    struct bed *b = *state;

    add_random(b, "layer.weight", "I8", 200, 320);
    add_random(b, "layer.weight_scale", "F32", 200, 1);
    open_folder(b, "{\"layer.weight\":\"W8A8_DYNAMIC\"}");
    check_slices(b, 320, borders, 2);
    folder_drop(&b->f, "layer.weight");
    add_random(b, "layer.weight", "I8", 200, 320);
    open_folder(
        b, "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
           "\"int-quantized\",\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":8,\"type\":"
           "\"int\",\"symmetric\":true,\"strategy\":\"channel\",\"dynamic\":false},"
           "\"input_activations\":{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":"
           "\"token\",\"dynamic\":true}}}}}");
    check_slices(b, 320, borders, 2);
}

/* Cuts at borders of the blocks of scales, and within them. */
static void test_f8(void **state)
{
    static const uint32_t at[] = { 128, 256, 330 }, within[] = { 48, 144, 330 };
    struct bed *b = *state;

    add_random(b, "layer.weight", "F8_E4M3", 200, 330);
    add_random(b, "layer.weight_scale_inv", "F32", 2, 3);
    open_folder(b, "{\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
                   "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]}}");
    check_slices(b, 330, at, 1e-5);
    check_slices(b, 330, within, 1e-5);
}

static void test_blocks(void **state)
{
    static const uint32_t of32[] = { 32, 96, 512 }, of256[] = { 256, 512 };
    static const struct {
        uint32_t ggml;
        enum k_type type;
        const uint32_t *borders;
    } kinds[] = {
        { 2, K_Q4_0, of32 },   { 3, K_Q4_1, of32 },   { 6, K_Q5_0, of32 },
        { 7, K_Q5_1, of32 },   { 8, K_Q8_0, of32 },   { 12, K_Q4_K, of256 },
        { 13, K_Q5_K, of256 }, { 14, K_Q6_K, of256 }, { 30, K_BF16, of256 },
    };
    struct bed *b = *state;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        open_gguf(b, 200, 512, kinds[i].ggml, kinds[i].type);
        check_slices(b, 512, kinds[i].borders, 1e-4);
    }
}

/* Rows of one of several matrices in a tensor. */
static void test_stack(void **state)
{
    struct bed *b = *state;
    struct load_part p = { .name = "layer.weight", .rows = 40, .slice = 3, .slices = 5 };
    float *whole;

    add_random(b, "layer.weight", "BF16", 200, 64);
    json_object_set_new(json_object_get(b->f.header, "layer.weight"), "shape",
                        json_pack("[i,i,i]", 5, 40, 64));
    open_folder(b, "");
    whole = product(b, p, 64);
    check_rows(b, p, 64, whole, (struct share){ 8, 16 });
    check_columns(b, p, 64, whole, (const uint32_t[]){ 24, 64 }, 1e-5);
    free(whole);
}

/* ---- what is refused ---- */

static void refuse_heads(struct bed *b, uint32_t tp, uint32_t heads, uint32_t dim, const char *part)
{
    struct share s;

    b->m.part.tp_size = tp;
    b->m.cfg.heads = b->m.cfg.kv_heads = heads;
    b->m.heads = heads / tp;
    b->e.text[0] = '\0';
    assert_int_equal(part_heads(&b->l, &s, "layer.weight", heads, dim), ERR_UNSUPPORTED);
    if (!strstr(b->e.text, part))
        fail_msg("\"%s\" has no \"%s\"", b->e.text, part);
}

static void test_block_borders(void **state)
{
    struct bed *b = *state;
    struct k_matrix *m = NULL;
    struct load_part p = { .name = "layer.weight", .rows = 8, .only_cols = { 0, 64 } };
    struct share s;

    open_gguf(b, 8, 1024, 12, K_Q4_K);
    refuse_heads(b, 8, 16, 64, "--tensor-parallel-size 1, 2, 4 would do");
    assert_non_null(strstr(b->e.text, "16 heads of 64 in Q4_K, whose blocks are of 256"));
    b->m.part.tp_size = 4;
    b->m.heads = 4;
    b->m.first_head = 8;
    assert_int_equal(part_heads(&b->l, &s, "layer.weight", 16, 64), 0);
    assert_true(s.from == 512 && s.n == 256);
    assert_int_equal(load_matrix(&b->l, &m, &p, 1, 1024, NULL), ERR_UNSUPPORTED);
    assert_non_null(strstr(b->e.text, "columns 0 to 63 are not whole blocks of 256"));
    b->m.part.tp_size = 8;
    assert_int_equal(part_ffn(&b->l, &s, "layer.weight", 1024), ERR_UNSUPPORTED);
    assert_non_null(strstr(b->e.text, "cannot be shared by 8 tensor-parallel ranks; up to 4 can"));
    b->m.part.tp_size = 3;
    b->m.part.tp_rank = 0;
    assert_int_equal(part_ffn(&b->l, &s, "layer.weight", 1024), 0);
    assert_true(s.from == 0 && s.n == 512);
}

static void refuse(struct model_part part, int status, const char *sentence)
{
    struct model_options o = { .path = LLAMA_TINY, .part = part };
    struct model *m = NULL;
    struct err e = { 0 };
    int st = model_open(&m, kernels, &o, &e);

    if (st != status || !strstr(e.text, sentence))
        fail_msg("status %s, \"%s\"", status_name(st), e.text);
    assert_null(m);
}

static void test_sizes(void **state)
{
    static const struct model_peers peers;
    struct model_options o = { .path = LLAMA_TINY,
                               .part = { .tp_size = 4, .tp_rank = 3, .peers = &peers } };
    struct model_kv_shape s;
    struct model *m;
    struct err e = { 0 };

    (void)state;
    refuse((struct model_part){ .tp_size = 3, .peers = &peers }, ERR_UNSUPPORTED,
           "4 attention heads and 1 KV heads cannot be shared by 3 tensor-parallel ranks; "
           "--tensor-parallel-size 1, 2, 4 would do");
    refuse((struct model_part){ .tp_size = 2, .tp_rank = 2, .peers = &peers }, ERR_INVAL,
           "rank 2 of 2");
    refuse((struct model_part){ .tp_size = 2 }, ERR_INVAL, "needs its peers");
    assert_int_equal(model_open(&m, kernels, &o, &e), 0);
    model_kv_shape(m, &s);
    assert_true(s.kv_heads == 1 && s.first_head == 0 && s.all_heads == 1);
    model_close(m);
}

/* ---- stages ---- */

/* The tensors of the tiny model that begin with one of the names (NULL: no more) go to the folder. */
static void add_tensors(struct bed *b, const char *const *names)
{
    struct map map = { 0 };
    struct safetensors *st = NULL;
    const struct tensor *t;
    size_t n;

    if (map_open(&map, LLAMA_TINY "/model.safetensors", &b->e) < 0 ||
        safetensors_parse(&st, map.data, map.size, &b->e) < 0)
        fail_msg("%s", b->e.text);
    t = safetensors_tensors(st, &n);
    for (; *names; names++)
        for (size_t i = 0; i < n; i++)
            if (strncmp(t[i].name, *names, strlen(*names)) == 0)
                folder_add(&b->f, t[i].name, t[i].dtype, 2, t[i].n_dims > 1 ? t[i].shape[0] : 0,
                           t[i].shape[t[i].n_dims - 1], t[i].data);
    safetensors_free(st);
    map_close(&map);
}

static void add_config(struct bed *b)
{
    struct map map = { 0 };
    char *text;

    assert_int_equal(map_open(&map, LLAMA_TINY "/config.json", &b->e), 0);
    text = strndup((const char *)map.data, map.size);
    folder_text(&b->f, "config.json", text);
    free(text);
    map_close(&map);
}

static int open_stage(struct bed *b, uint32_t first, uint32_t n, uint64_t *bytes)
{
    const struct model_options o = { .path = b->f.path, .first_layer = first, .n_layers = n };
    struct model *m;
    int st = model_open(&m, kernels, &o, &b->e);

    if (st < 0)
        return st;
    *bytes = model_weight_bytes(m);
    model_close(m);
    return 0;
}

/* A stage needs its own tensors and no others, and minds none of the others either. */
static void test_stage_files(void **state)
{
    static const char *const first[] = { "model.layers.0.", "model.embed_tokens.", NULL };
    static const char *const middle[] = { "model.layers.1.", NULL };
    static const char *const last[] = { "model.layers.2.", "model.norm.", "model.embed_tokens.",
                                        NULL };
    static const char *const *const parts[] = { first, middle, last };
    struct bed *b = *state;
    uint64_t alone, among, all = 0, whole;

    for (uint32_t i = 0; i < 3; i++) {
        folder_clear(&b->f);
        add_config(b);
        add_tensors(b, parts[i]);
        folder_write(&b->f, "model.safetensors");
        for (uint32_t stage = 0; stage < 3; stage++) {
            int st = open_stage(b, stage, 1, &alone);

            assert_int_equal(st, stage == i ? 0 : ERR_BADMSG);
            if (stage == i)
                all += alone;
        }
    }
    folder_clear(&b->f);
    add_config(b);
    for (uint32_t i = 0; i < 3; i++)
        add_tensors(b, parts[i]);
    folder_write(&b->f, "model.safetensors");
    assert_int_equal(open_stage(b, 2, 1, &among), 0);
    assert_int_equal(among, alone);
    assert_int_equal(open_stage(b, 0, 3, &whole), 0);
    assert_int_equal(whole, all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test_setup_teardown(test_plain, make, destroy),
        cmocka_unit_test_setup_teardown(test_static, make, destroy),
        cmocka_unit_test_setup_teardown(test_dynamic, make, destroy),
        cmocka_unit_test_setup_teardown(test_f8, make, destroy),
        cmocka_unit_test_setup_teardown(test_blocks, make, destroy),
        cmocka_unit_test_setup_teardown(test_stack, make, destroy),
        cmocka_unit_test_setup_teardown(test_block_borders, make, destroy),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test_setup_teardown(test_stage_files, make, destroy),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
