/* A GGUF file and the folder that it was made from give the same quantized checkpoint, byte for byte.
 * The file is written here as llama.cpp's converter would: its names, experts in one tensor, Llama's
 * rows of q and k in rotary pairs, llama3's bands as divisors, DeepSeek's kv_b whole or in its two
 * halves, and its prediction layer without what repeats the model. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../model/gguf_build.h"
#include "model/model.h"
#include "model/weights.h"
#include "ops/quantize.h"
#include "text/pretok.h"

#define F32       0
#define BF16      30
#define ALIGNMENT 32
#define MAX_OUT   128

struct out {
    char name[96];
    uint32_t type, n_dims;
    uint64_t shape[3];
    unsigned char *data; /* owned */
    size_t bytes;
};

struct file {
    struct out out[MAX_OUT];
    uint32_t n;
    const struct weights *from;
    uint32_t experts, pairs; /* pairs: rows of a head that go to rotary pairs; 0: none do */
    bool split;              /* kv_b in two halves */
};

static const struct {
    const char *hf, *gguf;
} names[] = {
    { "input_layernorm", "attn_norm" },
    { "post_attention_layernorm", "ffn_norm" },
    { "self_attn.q_proj", "attn_q" },
    { "self_attn.k_proj", "attn_k" },
    { "self_attn.v_proj", "attn_v" },
    { "self_attn.o_proj", "attn_output" },
    { "self_attn.q_norm", "attn_q_norm" },
    { "self_attn.k_norm", "attn_k_norm" },
    { "mlp.gate_proj", "ffn_gate" },
    { "mlp.up_proj", "ffn_up" },
    { "mlp.down_proj", "ffn_down" },
    { "mlp.gate", "ffn_gate_inp" },
    { "self_attn.q_a_proj", "attn_q_a" },
    { "self_attn.q_a_layernorm", "attn_q_a_norm" },
    { "self_attn.q_b_proj", "attn_q_b" },
    { "self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa" },
    { "self_attn.kv_a_layernorm", "attn_kv_a_norm" },
    { "self_attn.kv_b_proj", "attn_kv_b" },
    { "mlp.shared_experts.gate_proj", "ffn_gate_shexp" },
    { "mlp.shared_experts.up_proj", "ffn_up_shexp" },
    { "mlp.shared_experts.down_proj", "ffn_down_shexp" },
    { "eh_proj", "nextn.eh_proj" },
    { "enorm", "nextn.enorm" },
    { "hnorm", "nextn.hnorm" },
    { "shared_head.norm", "nextn.shared_head_norm" },
};

static struct out *add(struct file *f, const char *name, size_t bytes)
{
    struct out *o = &f->out[f->n++];

    assert_true(f->n <= MAX_OUT);
    *o = (struct out){ .type = BF16, .bytes = bytes, .data = calloc(1, bytes) };
    assert_non_null(o->data);
    snprintf(o->name, sizeof o->name, "%s", name);
    return o;
}

/* Rows i and i + dim / 2 of each head become neighbours. */
static void pair_rows(struct out *o, const unsigned char *from, uint32_t dim)
{
    size_t row = o->bytes / o->shape[0];

    for (uint64_t i = 0; i < o->shape[0]; i++) {
        uint64_t in = i % dim, half = dim / 2;
        uint64_t to = i - in + (in < half ? 2 * in : 2 * (in - half) + 1);

        memcpy(o->data + to * row, from + i * row, row);
    }
}

static void add_plain(struct file *f, const char *name, const struct tensor *t, bool pairs)
{
    struct out *o = add(f, name, t->bytes);

    o->n_dims = t->n_dims;
    o->type = t->type == K_F32 ? F32 : BF16;
    memcpy(o->shape, t->shape, t->n_dims * sizeof t->shape[0]);
    if (pairs && f->pairs)
        pair_rows(o, t->data, f->pairs);
    else
        memcpy(o->data, t->data, t->bytes);
}

/* All experts' matrices of one kind; asked for by the first expert's. */
static void add_experts(struct file *f, unsigned layer, const char *kind, const struct tensor *t)
{
    char name[96];
    struct out *o;

    snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, kind);
    o = add(f, name, f->experts * t->bytes);
    o->n_dims = 3;
    o->shape[0] = f->experts;
    memcpy(o->shape + 1, t->shape, 2 * sizeof t->shape[0]);
    for (uint32_t i = 0; i < f->experts; i++) {
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, i,
                 kind);
        memcpy(o->data + i * t->bytes, weights_find(f->from, name)->t.data, t->bytes);
    }
}

/* deepseek_v3_tiny's kv_b [4 heads][32 + 48][64] as keys [4][64][32] and values [4][48][64]. */
static void add_halves(struct file *f, unsigned layer, const struct tensor *t)
{
    enum { HEADS = 4, NOPE = 32, V = 48, LATENT = 64 };
    const uint16_t *from = (const uint16_t *)(const void *)t->data;
    char name[96];
    struct out *k, *v;

    snprintf(name, sizeof name, "blk.%u.attn_k_b.weight", layer);
    k = add(f, name, 2 * HEADS * LATENT * NOPE);
    snprintf(name, sizeof name, "blk.%u.attn_v_b.weight", layer);
    v = add(f, name, 2 * HEADS * V * LATENT);
    k->n_dims = v->n_dims = 3;
    memcpy(k->shape, (uint64_t[]){ HEADS, LATENT, NOPE }, sizeof k->shape);
    memcpy(v->shape, (uint64_t[]){ HEADS, V, LATENT }, sizeof v->shape);
    for (uint32_t h = 0; h < HEADS; h++, from += (NOPE + V) * LATENT) {
        for (uint32_t i = 0; i < NOPE * LATENT; i++)
            ((uint16_t *)(void *)k->data)[(h * LATENT + i % LATENT) * NOPE + i / LATENT] = from[i];
        memcpy(v->data + 2 * h * V * LATENT, from + NOPE * LATENT, 2 * V * LATENT);
    }
}

static void add_layer_tensor(struct file *f, const struct tensor *t)
{
    char rest[64], name[96], kind[16];
    unsigned layer, expert;

    assert_int_equal(sscanf(t->name, "model.layers.%u.%63s", &layer, rest), 2);
    if (sscanf(rest, "mlp.experts.%u.%15[a-z]", &expert, kind) == 2) {
        if (expert == 0)
            add_experts(f, layer, kind, t);
        return;
    }
    if (strcmp(rest, "mlp.gate.e_score_correction_bias") == 0) {
        snprintf(name, sizeof name, "blk.%u.exp_probs_b.bias", layer);
        add_plain(f, name, t, false);
        return;
    }
    if (f->split && strcmp(rest, "self_attn.kv_b_proj.weight") == 0) {
        add_halves(f, layer, t);
        return;
    }
    rest[strlen(rest) - strlen(".weight")] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(rest, names[i].hf) == 0) {
            snprintf(name, sizeof name, "blk.%u.%s.weight", layer, names[i].gguf);
            add_plain(f, name, t, i == 2 || i == 3);
        }
}

static void add_tensors(struct file *f)
{
    for (size_t i = 0; i < f->from->n; i++) {
        const struct tensor *t = &f->from->w[i].t;

        if (strcmp(t->name, "model.embed_tokens.weight") == 0)
            add_plain(f, "token_embd.weight", t, false);
        else if (strcmp(t->name, "model.norm.weight") == 0)
            add_plain(f, "output_norm.weight", t, false);
        else if (strcmp(t->name, "lm_head.weight") == 0)
            add_plain(f, "output.weight", t, false);
        else
            add_layer_tensor(f, t);
    }
}

struct key {
    const char *name;
    uint32_t u32;
    float f32; /* where u32 is 0 */
};

static void put_keys(struct buf *b, const char *arch, const struct key *k)
{
    char name[96];

    put_key_text(b, "general.architecture", arch);
    if (strcmp(arch, "deepseek2") == 0) {
        put_key_text(b, "deepseek2.rope.scaling.type", "yarn");
        put_text(b, "deepseek2.expert_weights_norm");
        put_u32(b, T_BOOL);
        buf_putc(b, 1);
    }
    for (; k->name; k++) {
        snprintf(name, sizeof name, "%s.%s", arch, k->name);
        if (k->u32)
            put_key_u32(b, name, k->u32);
        else
            put_key_f32(b, name, k->f32);
    }
}

static void write_file(struct file *f, const char *arch, const struct key *k, const char *path)
{
    uint64_t offset = 0, n_keys = 1;
    FILE *out = fopen(path, "wb");
    struct buf b;

    while (k[n_keys - 1].name)
        n_keys++;
    n_keys += strcmp(arch, "deepseek2") == 0 ? 2 : 0;
    buf_init(&b, BUF_MAX_REPLY);
    put_header(&b, 3, f->n, n_keys);
    put_keys(&b, arch, k);
    for (uint32_t i = 0; i < f->n; i++) {
        const struct out *o = &f->out[i];

        put_text(&b, o->name);
        put_u32(&b, o->n_dims);
        for (uint32_t d = o->n_dims; d-- > 0;)
            put_u64(&b, o->shape[d]);
        put_u32(&b, o->type);
        put_u64(&b, offset);
        offset += (o->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    pad_to(&b, ALIGNMENT);
    for (uint32_t i = 0; i < f->n; i++) {
        buf_append(&b, f->out[i].data, f->out[i].bytes);
        pad_to(&b, ALIGNMENT);
        free(f->out[i].data);
    }
    assert_non_null(out);
    assert_int_equal(b.status, 0);
    assert_int_equal(fwrite(b.data, 1, b.len, out), b.len);
    fclose(out);
    buf_finish(&b);
}

static void run(const char *in, const char *out)
{
    struct quantize_options o = { .in = in,
                                  .out = out,
                                  .no_smooth = true,
                                  .float_above = INFINITY,
                                  .max_shard_bytes = 1u << 20,
                                  .threads = 1,
                                  .quiet = true };
    struct err e = { "" };

    if (quantize(&o, &e) < 0)
        fail_msg("%s: %s", in, e.text);
}

/* What the two folders' configurations say of the arithmetic. */
static void check_config(const char *x, const char *y)
{
    struct model_config a, b;
    double fa[64], fb[64], sa, sb;
    struct err e = { "" };

    assert_int_equal(model_read_config(&a, x, NULL, &e), 0);
    assert_int_equal(model_read_config(&b, y, NULL, &e), 0);
    assert_string_equal(a.arch, b.arch);
    assert_int_equal(a.head_dim, b.head_dim);
    assert_int_equal(a.heads, b.heads);
    assert_int_equal(a.kv_heads, b.kv_heads);
    assert_int_equal(a.max_position, b.max_position);
    assert_int_equal(a.tied_embeddings, b.tied_embeddings);
    assert_int_equal(a.experts, b.experts);
    assert_int_equal(a.experts_per_token, b.experts_per_token);
    assert_int_equal(a.expert_normalize, b.expert_normalize);
    assert_int_equal(a.expert_sigmoid, b.expert_sigmoid);
    assert_int_equal(a.expert_group_two, b.expert_group_two);
    assert_int_equal(a.expert_bias, b.expert_bias);
    assert_int_equal(a.expert_groups, b.expert_groups);
    assert_int_equal(a.expert_top_groups, b.expert_top_groups);
    assert_true(a.expert_scale == b.expert_scale);
    assert_int_equal(a.first_dense, b.first_dense);
    assert_int_equal(a.shared_experts, b.shared_experts);
    assert_int_equal(a.mtp_layers, b.mtp_layers);
    assert_int_equal(a.n_layers, b.n_layers);
    assert_int_equal(a.q_lora, b.q_lora);
    assert_int_equal(a.kv_lora, b.kv_lora);
    assert_int_equal(a.nope_dim, b.nope_dim);
    assert_int_equal(a.v_dim, b.v_dim);
    assert_true(a.yarn_mscale_all_dim == b.yarn_mscale_all_dim);
    assert_true(a.norm_eps == b.norm_eps);
    assert_int_equal(a.rope_dim, b.rope_dim);
    model_rope_freqs(&a, fa, &sa);
    model_rope_freqs(&b, fb, &sb);
    assert_true(sa == sb);
    for (uint32_t i = 0; i < a.rope_dim / 2; i++)
        assert_true(fabs(fa[i] / fb[i] - 1) < 1e-5);
}

static struct weights *folder(const char *name, const char **path)
{
    struct weights *w = NULL;
    struct err e = { "" };

    if (!(*path = golden(name)))
        skip();
    if (weights_open_dir(&w, *path, &e) < 0)
        fail_msg("%s", e.text);
    return w;
}

static void compare(const char *path, const char *file)
{
    run(path, scratch("a"));
    run(file, scratch("b"));
    assert_same_bytes(scratch("a"), scratch("b"));
    check_config(scratch("a"), scratch("b"));
    scratch_remove("a");
    scratch_remove("b");
}

static void qwen3_moe(void **state)
{
    static const struct key keys[] = {
        { "block_count", 3, 0 },
        { "embedding_length", 64, 0 },
        { "feed_forward_length", 160, 0 },
        { "attention.head_count", 4, 0 },
        { "attention.head_count_kv", 2, 0 },
        { "attention.key_length", 32, 0 },
        { "context_length", 4096, 0 },
        { "vocab_size", 512, 0 },
        { "rope.freq_base", 0, 1e6f },
        { "attention.layer_norm_rms_epsilon", 0, 1e-6f },
        { "expert_count", 8, 0 },
        { "expert_used_count", 3, 0 },
        { "expert_feed_forward_length", 32, 0 },
        { 0 },
    };
    const char *path;
    struct weights *w = folder("models/qwen3_moe_tiny", &path);
    struct file f = { .from = w, .experts = 8 };

    (void)state;
    add_tensors(&f);
    write_file(&f, "qwen3moe", keys, scratch("m.gguf"));
    weights_close(w);
    compare(path, scratch("m.gguf"));
}

/* The prediction layer is counted among the blocks. Text keys and flags come from put_keys. */
static void deepseek(void **state)
{
    static const struct key keys[] = {
        { "block_count", 5, 0 },
        { "nextn_predict_layers", 1, 0 },
        { "embedding_length", 128, 0 },
        { "feed_forward_length", 160, 0 },
        { "attention.head_count", 4, 0 },
        { "attention.head_count_kv", 1, 0 },
        { "attention.q_lora_rank", 160, 0 },
        { "attention.kv_lora_rank", 64, 0 },
        { "attention.key_length", 80, 0 },
        { "attention.value_length", 64, 0 },
        { "attention.key_length_mla", 48, 0 },
        { "attention.value_length_mla", 48, 0 },
        { "rope.dimension_count", 16, 0 },
        { "context_length", 2560, 0 },
        { "vocab_size", 512, 0 },
        { "leading_dense_block_count", 1, 0 },
        { "expert_count", 16, 0 },
        { "expert_used_count", 4, 0 },
        { "expert_shared_count", 1, 0 },
        { "expert_feed_forward_length", 32, 0 },
        { "expert_group_count", 4, 0 },
        { "expert_group_used_count", 2, 0 },
        { "expert_gating_func", 2, 0 },
        { "expert_weights_scale", 0, 2.5f },
        { "rope.freq_base", 0, 10000 },
        { "rope.scaling.factor", 0, 40 },
        { "rope.scaling.original_context_length", 64, 0 },
        { "rope.scaling.yarn_log_multiplier", 0, 0.1f },
        { "attention.layer_norm_rms_epsilon", 0, 1e-6f },
        { 0 },
    };
    const char *path;

    (void)state;
    for (int split = 0; split < 2; split++) {
        struct weights *w = folder("models/deepseek_v3_tiny", &path);
        struct file f = { .from = w, .experts = 16, .split = split };

        add_tensors(&f);
        write_file(&f, "deepseek2", keys, scratch("m.gguf"));
        weights_close(w);
        compare(path, scratch("m.gguf"));
    }
}

/* Divisors of the frequencies, as the converter writes them for llama3's scaling. */
static void add_divisors(struct file *f, const char *path)
{
    struct model_config c, plain;
    double a[64], b[64], unused;
    struct err e = { "" };
    struct out *o;

    assert_int_equal(model_read_config(&c, path, NULL, &e), 0);
    plain = c;
    plain.rope_scaling = ROPE_NONE;
    model_rope_freqs(&plain, a, &unused);
    model_rope_freqs(&c, b, &unused);
    o = add(f, "rope_freqs.weight", c.rope_dim / 2 * sizeof(float));
    o->type = 0;
    o->n_dims = 1;
    o->shape[0] = c.rope_dim / 2;
    for (uint32_t i = 0; i < c.rope_dim / 2; i++)
        ((float *)(void *)o->data)[i] = (float)(a[i] / b[i]);
}

static void llama(void **state)
{
    static const struct key keys[] = {
        { "block_count", 3, 0 },
        { "embedding_length", 96, 0 },
        { "feed_forward_length", 160, 0 },
        { "attention.head_count", 4, 0 },
        { "attention.head_count_kv", 1, 0 },
        { "attention.key_length", 32, 0 },
        { "rope.dimension_count", 32, 0 },
        { "context_length", 8192, 0 },
        { "vocab_size", 512, 0 },
        { "rope.freq_base", 0, 500000 },
        { "attention.layer_norm_rms_epsilon", 0, 1e-5f },
        { 0 },
    };
    const char *path;
    struct weights *w = folder("models/llama_tiny", &path);
    struct file f = { .from = w, .pairs = 32 };

    (void)state;
    add_tensors(&f);
    add_divisors(&f, path);
    write_file(&f, "llama", keys, scratch("m.gguf"));
    weights_close(w);
    compare(path, scratch("m.gguf"));
}

/* The words of a text, one a line. */
static int add_word(void *arg, const char *word, size_t len)
{
    struct buf *b = arg;

    return buf_append(b, word, len) < 0 ? -1 : buf_putc(b, '\n');
}

static void split(struct buf *b, const struct pretok *p, const char *text)
{
    struct pretok_work w;

    assert_int_equal(pretok_work_init(&w), 0);
    buf_reset(b);
    assert_int_equal(pretok_run(p, &w, text, strlen(text), add_word, b), 0);
    pretok_work_finish(&w);
}

/* A pre-tokenizer that tokenizer.json spells out splits as the name in the GGUF file does. */
static void pretokenizers(void **state)
{
    static const char *const of[] = { "gpt-2",       "smollm",       "llama-bpe",     "qwen2",
                                      "deepseek-v3", "deepseek-llm", "deepseek-coder" };
    static const char text[] = "I'll pay $1,234.56 in 2024!\r\n\n  don't WE'RE \u4f60\u597d123 "
                               "na\u00efve-caf\u00e9\t x=y[3]; \u3042\u3044 \U0001f600  ";
    struct buf a, b;
    struct err e = { "" };

    (void)state;
    buf_init(&a, BUF_MAX_LINE);
    buf_init(&b, BUF_MAX_LINE);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct pretok named = { 0 }, spelled = { 0 };
        struct pretok_named how, same;
        json_t *j = pretok_named_json(of[i], &same);

        assert_non_null(j);
        assert_int_equal(pretok_add_named(&named, of[i], &how, &e), 0);
        assert_int_equal(pretok_add_json(&spelled, j, &e), 0);
        assert_true(how.nfc == same.nfc && how.ignore_merges == same.ignore_merges);
        split(&a, &named, text);
        split(&b, &spelled, text);
        assert_string_equal(buf_str(&a), buf_str(&b));
        assert_true(a.len > sizeof text);
        pretok_finish(&named);
        pretok_finish(&spelled);
        json_decref(j);
    }
    assert_null(pretok_named_json("nobody", &(struct pretok_named){ 0 }));
    buf_finish(&a);
    buf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pretokenizers),
        cmocka_unit_test(qwen3_moe),
        cmocka_unit_test(deepseek),
        cmocka_unit_test(llama),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
