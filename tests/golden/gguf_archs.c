/* Architectures from GGUF files: the same weights as in the tiny folders, written as llama.cpp's
 * converter does (experts stacked, kv_b whole or split in a transposed key and a value part), give
 * the same logits bit for bit.
 *
 *     golden_gguf_archs MODEL   (exit 77 where it is not on this machine) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/model/gguf_build.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "peers.h"
#include "rig.h"
#include "sys/map.h"

#define MAX_OUT   200
#define ALIGNMENT 32
enum { GGML_F32 = 0, GGML_BF16 = 30 };

struct out {
    char name[64];
    uint32_t n_dims;
    uint64_t shape[3]; /* outermost first */
    uint32_t type;
    unsigned char *data;
    size_t bytes;
};

static const struct safetensors *source;
static struct out outs[MAX_OUT];
static uint32_t n_outs;
static bool split_kv_b;
static bool with_drafts; /* the prediction layer is written, too */

static const struct {
    const char *hf, *gguf;
} names[] = {
    { "input_layernorm.weight", "attn_norm.weight" },
    { "post_attention_layernorm.weight", "ffn_norm.weight" },
    { "self_attn.q_proj.weight", "attn_q.weight" },
    { "self_attn.k_proj.weight", "attn_k.weight" },
    { "self_attn.v_proj.weight", "attn_v.weight" },
    { "self_attn.o_proj.weight", "attn_output.weight" },
    { "self_attn.q_norm.weight", "attn_q_norm.weight" },
    { "self_attn.k_norm.weight", "attn_k_norm.weight" },
    { "self_attn.q_a_proj.weight", "attn_q_a.weight" },
    { "self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight" },
    { "self_attn.q_b_proj.weight", "attn_q_b.weight" },
    { "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight" },
    { "self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight" },
    { "self_attn.kv_b_proj.weight", "attn_kv_b.weight" },
    { "mlp.gate_proj.weight", "ffn_gate.weight" },
    { "mlp.up_proj.weight", "ffn_up.weight" },
    { "mlp.down_proj.weight", "ffn_down.weight" },
    { "mlp.gate.weight", "ffn_gate_inp.weight" },
    { "mlp.gate.e_score_correction_bias", "exp_probs_b.bias" },
    { "mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight" },
    { "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight" },
    { "mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight" },
    { "mlp.experts.0.gate_proj.weight", "ffn_gate_exps.weight" },
    { "mlp.experts.0.up_proj.weight", "ffn_up_exps.weight" },
    { "mlp.experts.0.down_proj.weight", "ffn_down_exps.weight" },
    { "eh_proj.weight", "nextn.eh_proj.weight" },
    { "enorm.weight", "nextn.enorm.weight" },
    { "hnorm.weight", "nextn.hnorm.weight" },
    { "shared_head.norm.weight", "nextn.shared_head_norm.weight" },
};

/* ---- keys ---- */

struct key {
    const char *name;
    uint32_t u32;
    float f32;
};

static const struct model_case {
    const char *name, *gguf;
    uint32_t layers;
    const struct key *keys;
} cases[] = {
    { "qwen3_tiny", "qwen3", 3,
      (const struct key[]){ { "block_count", 3, 0 },
                            { "embedding_length", 64, 0 },
                            { "feed_forward_length", 160, 0 },
                            { "attention.head_count", 6, 0 },
                            { "attention.head_count_kv", 2, 0 },
                            { "attention.key_length", 32, 0 },
                            { "attention.value_length", 32, 0 },
                            { "context_length", 4096, 0 },
                            { "vocab_size", 512, 0 },
                            { "rope.freq_base", 0, 1e6f },
                            { "attention.layer_norm_rms_epsilon", 0, 1e-6f },
                            { 0 } } },
    { "qwen3_moe_tiny", "qwen3moe", 3,
      (const struct key[]){ { "block_count", 3, 0 },
                            { "embedding_length", 64, 0 },
                            { "feed_forward_length", 160, 0 },
                            { "attention.head_count", 4, 0 },
                            { "attention.head_count_kv", 2, 0 },
                            { "attention.key_length", 32, 0 },
                            { "attention.value_length", 32, 0 },
                            { "context_length", 4096, 0 },
                            { "vocab_size", 512, 0 },
                            { "rope.freq_base", 0, 1e6f },
                            { "attention.layer_norm_rms_epsilon", 0, 1e-6f },
                            { "expert_count", 8, 0 },
                            { "expert_used_count", 3, 0 },
                            { "expert_feed_forward_length", 32, 0 },
                            { 0 } } },
    /* Heads of 32 + 16 numbers, values of 48, a latent of 64. */
    { "deepseek_v3_tiny", "deepseek2", 4,
      (const struct key[]){ { "block_count", 4, 0 },
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
                            { 0 } } },
};

static const struct model_case *test;

static void put_keys(struct buf *b)
{
    char name[96];

    put_key_text(b, "general.architecture", test->gguf);
    for (const struct key *k = test->keys; k->name; k++) {
        snprintf(name, sizeof name, "%s.%s", test->gguf, k->name);
        if (with_drafts && strcmp(k->name, "block_count") == 0)
            put_key_u32(b, name, k->u32 + 1); /* the prediction layer is one of them */
        else if (k->u32)
            put_key_u32(b, name, k->u32);
        else
            put_key_f32(b, name, k->f32);
    }
    if (with_drafts)
        put_key_u32(b, "deepseek2.nextn_predict_layers", 1);
    if (strcmp(test->gguf, "deepseek2") != 0)
        return;
    put_key_text(b, "deepseek2.rope.scaling.type", "yarn");
    put_text(b, "deepseek2.expert_weights_norm");
    put_u32(b, T_BOOL);
    buf_putc(b, 1);
}

static uint32_t count_keys(void)
{
    uint32_t n = (strcmp(test->gguf, "deepseek2") == 0 ? 3 : 1) + with_drafts;

    for (const struct key *k = test->keys; k->name; k++)
        n++;
    return n;
}

/* ---- tensors ---- */

static const struct tensor *find(const char *name)
{
    size_t n;
    const struct tensor *t = safetensors_tensors(source, &n);

    for (size_t i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0)
            return &t[i];
    return NULL;
}

static struct out *add(const char *name, const struct tensor *t, size_t bytes)
{
    struct out *o = &outs[n_outs++];

    expect(n_outs < MAX_OUT, "more than %d tensors", MAX_OUT);
    *o = (struct out){ .n_dims = t->n_dims, .bytes = bytes, .data = malloc(bytes) };
    snprintf(o->name, sizeof o->name, "%s", name);
    memcpy(o->shape, t->shape, sizeof o->shape);
    o->type = t->type == K_F32 ? GGML_F32 : GGML_BF16;
    return o;
}

/* All experts' matrices one after another. */
static void add_experts(const char *name, uint32_t layer, const char *rest, const struct tensor *t)
{
    const char *what = strchr(rest + strlen("mlp.experts."), '.') + 1;
    uint32_t n = 0;
    char one[128];
    struct out *o;

    do
        snprintf(one, sizeof one, "model.layers.%u.mlp.experts.%u.%s", layer, n++, what);
    while (find(one));
    o = add(name, t, --n * t->bytes);
    o->n_dims = 3;
    memmove(o->shape + 1, t->shape, 2 * sizeof *o->shape);
    o->shape[0] = n;
    for (uint32_t i = 0; i < n; i++) {
        snprintf(one, sizeof one, "model.layers.%u.mlp.experts.%u.%s", layer, i, what);
        memcpy(o->data + i * t->bytes, find(one)->data, t->bytes);
    }
}

/* k_b [heads][latent][nope] and v_b [heads][v][latent] out of kv_b [heads][nope, v][latent]. */
static void add_split(uint32_t layer, const struct tensor *t)
{
    enum { HEADS = 4, NOPE = 32, V = 48, LATENT = 64 };
    const uint16_t *from = (const uint16_t *)(const void *)t->data;
    char name[64];
    uint16_t *k, *v;
    struct out *o;

    snprintf(name, sizeof name, "blk.%u.attn_k_b.weight", layer);
    o = add(name, t, HEADS * LATENT * NOPE * sizeof *k);
    o->n_dims = 3;
    memcpy(o->shape, (uint64_t[]){ HEADS, LATENT, NOPE }, sizeof o->shape);
    k = (uint16_t *)(void *)o->data;
    snprintf(name, sizeof name, "blk.%u.attn_v_b.weight", layer);
    o = add(name, t, HEADS * V * LATENT * sizeof *v);
    o->n_dims = 3;
    memcpy(o->shape, (uint64_t[]){ HEADS, V, LATENT }, sizeof o->shape);
    v = (uint16_t *)(void *)o->data;
    for (uint32_t h = 0; h < HEADS; h++) {
        const uint16_t *head = from + h * (NOPE + V) * LATENT;

        for (uint32_t i = 0; i < NOPE; i++)
            for (uint32_t j = 0; j < LATENT; j++)
                k[(h * LATENT + j) * NOPE + i] = head[i * LATENT + j];
        memcpy(v + h * V * LATENT, head + NOPE * LATENT, V * LATENT * sizeof *v);
    }
}

static void add_layer_tensor(uint32_t layer, const char *rest, const struct tensor *t)
{
    char name[64];

    if (strncmp(rest, "mlp.experts.", 12) == 0 && strncmp(rest, "mlp.experts.0.", 14) != 0)
        return;
    if (split_kv_b && strcmp(rest, "self_attn.kv_b_proj.weight") == 0) {
        add_split(layer, t);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(rest, names[i].hf) == 0) {
            snprintf(name, sizeof name, "blk.%u.%s", layer, names[i].gguf);
            if (strncmp(rest, "mlp.experts.", 12) == 0)
                add_experts(name, layer, rest, t);
            else
                memcpy(add(name, t, t->bytes)->data, t->data, t->bytes);
            return;
        }
    expect(false, "no GGUF name for %s", rest);
}

/* The prediction layer's embedding and head, which repeat the model's: a file may leave them out. */
static bool is_repeated(const char *rest)
{
    return strcmp(rest, "embed_tokens.weight") == 0 || strcmp(rest, "shared_head.head.weight") == 0;
}

static void convert(void)
{
    static const struct {
        const char *hf, *gguf;
    } ends[] = {
        { "model.embed_tokens.weight", "token_embd.weight" },
        { "model.norm.weight", "output_norm.weight" },
        { "lm_head.weight", "output.weight" },
    };
    size_t n;
    const struct tensor *t = safetensors_tensors(source, &n);

    for (size_t i = 0; i < n; i++) {
        unsigned layer;
        char rest[128];

        if (sscanf(t[i].name, "model.layers.%u.%127s", &layer, rest) == 2) {
            if (layer < test->layers + with_drafts && !is_repeated(rest))
                add_layer_tensor(layer, rest, &t[i]);
            continue;
        }
        for (size_t j = 0; j < 3; j++)
            if (strcmp(t[i].name, ends[j].hf) == 0)
                memcpy(add(ends[j].gguf, &t[i], t[i].bytes)->data, t[i].data, t[i].bytes);
    }
}

static void put_entry(struct buf *b, const struct out *o, uint64_t offset)
{
    put_text(b, o->name);
    put_u32(b, o->n_dims);
    for (uint32_t i = o->n_dims; i-- > 0;)
        put_u64(b, o->shape[i]);
    put_u32(b, o->type);
    put_u64(b, offset);
}

static void write_gguf(const char *path)
{
    uint64_t offset = 0;
    struct buf b;
    FILE *f = fopen(path, "wb");

    n_outs = 0;
    convert();
    buf_init(&b, BUF_MAX_REPLY);
    put_header(&b, 3, n_outs, count_keys());
    put_keys(&b);
    for (uint32_t i = 0; i < n_outs; i++) {
        put_entry(&b, &outs[i], offset);
        offset += (outs[i].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    pad_to(&b, ALIGNMENT);
    for (uint32_t i = 0; i < n_outs; i++) {
        buf_append(&b, outs[i].data, outs[i].bytes);
        pad_to(&b, ALIGNMENT);
        free(outs[i].data);
    }
    expect(f && b.status == 0 && fwrite(b.data, 1, b.len, f) == b.len, "cannot write %s", path);
    if (f)
        fclose(f);
    buf_finish(&b);
}

/* ---- */

static int32_t prompt[70];

static void read_prompt(void)
{
    char name[128];
    struct golden *g;
    const int32_t *ids;
    size_t n;

    snprintf(name, sizeof name, "goldens/%s.safetensors", test->name);
    g = golden_open(golden_path(name));
    ids = golden_i32(g, "p70.ids", &n);
    expect(ids && n == 70, "no prompt of 70 tokens");
    if (ids && n == 70)
        memcpy(prompt, ids, sizeof prompt);
    golden_close(g);
}

/* part: NULL, or that of a rank with one thread. */
static void last_logits(const char *path, enum model_dtype dtype, const struct model_part *part,
                        float *out)
{
    struct rig_options o = { .path = path,
                             .dtype = dtype,
                             .pool_tokens = 128,
                             .max_tokens = 70,
                             .max_logits = 1,
                             .threads = part ? 1 : 0 };
    struct rig_seq s;
    struct rig r;

    if (part)
        o.part = *part;
    rig_open(&r, &o);
    rig_seq_init(&r, &s, 70);
    memcpy(out, rig_prefill(&r, &s, prompt, 70, 0), 512 * sizeof *out);
    rig_seq_finish(&s);
    rig_close(&r);
}

/* Two ranks that share the stacked experts, if there are any, each with the prompt. */
struct pair {
    struct peers_world peers;
    const char *path;
    enum model_dtype dtype;
    float got[2][512];
};

static void run_rank(void *arg, uint32_t rank)
{
    struct pair *p = arg;
    struct model_part part = peers_part(&p->peers, rank, true);

    last_logits(p->path, p->dtype, &part, p->got[rank]);
}

static void check_pair(const char *path, enum model_dtype dtype, const float *want)
{
    static struct pair p;

    p.path = path;
    p.dtype = dtype;
    peers_open(&p.peers, 2, 1, 0);
    peers_run(&p.peers, run_rank, &p);
    for (uint32_t i = 0; i < 2; i++)
        expect(memcmp(want, p.got[i], sizeof p.got[i]) == 0,
               "GGUF, rank %u of 2 that share experts differs by %g (dtype %d)", i,
               max_diff(want, p.got[i], 512), dtype);
    peers_close(&p.peers);
}

/* Logits of the draft behind a prompt of 7. */
static void draft_logits(const char *path, float *out)
{
    static const int32_t ids[] = { 3, 141, 59, 26, 5, 358, 97, 93 };
    static const uint32_t pos[] = { 0, 1, 2, 3, 4, 5, 6 }, last = 6;
    struct rig_options o = {
        .path = path, .pool_tokens = 64, .max_tokens = 16, .max_logits = 1, .mtp = true
    };
    struct rig_seq s;
    struct rig r;
    size_t ld;

    rig_open(&r, &o);
    rig_seq_init(&r, &s, 8);
    rig_prefill(&r, &s, ids, 7, 0);
    {
        struct k_seq seq = { 0, 7, 0, s.blocks };
        struct model_batch b = { .n = 7, .ids = ids + 1, .pos = pos, .seqs = &seq, .n_seqs = 1 };

        model_draft(r.m, r.w, r.planes + test->layers, &b, NULL);
        memcpy(out, model_draft_logits(r.m, r.w, &last, 1, &ld), 512 * sizeof *out);
    }
    rig_seq_finish(&s);
    rig_close(&r);
}

static void check_drafts(const char *folder, const char *path)
{
    static float want[512], got[512];

    with_drafts = true;
    write_gguf(path);
    draft_logits(folder, want);
    draft_logits(path, got);
    expect(memcmp(want, got, sizeof want) == 0, "drafts of GGUF and folder differ by %g",
           max_diff(want, got, 512));
    unlink(path);
}

static void check_file(const char *folder, const char *path)
{
    static float want[512], got[512];

    write_gguf(path);
    for (int dtype = MODEL_DTYPE_AUTO; dtype <= MODEL_DTYPE_FLOAT32; dtype++) {
        last_logits(folder, dtype, NULL, want);
        last_logits(path, dtype, NULL, got);
        expect(memcmp(want, got, sizeof want) == 0, "GGUF%s and folder differ by %g (dtype %d)",
               split_kv_b ? " with kv_b split" : "", max_diff(want, got, 512), dtype);
        check_pair(path, dtype, want);
    }
    unlink(path);
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/sluice-gguf-XXXXXX", path[64], folder[4096], tensors[4200];
    struct safetensors *st;
    struct map map;
    struct err e = { 0 };

    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, argv[1]) == 0)
            test = &cases[i];
    if (!test)
        return 2;
    snprintf(path, sizeof path, "models/%s", test->name);
    if (!golden_path(path))
        return 77;
    snprintf(folder, sizeof folder, "%s", golden_path(path));
    snprintf(tensors, sizeof tensors, "%s/model.safetensors", folder);
    if (!mkdtemp(dir) || map_open(&map, tensors, &e) < 0 ||
        safetensors_parse(&st, map.data, map.size, &e) < 0) {
        printf("%s\n", e.text);
        return 1;
    }
    source = st;
    read_prompt();
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    check_file(folder, path);
    if (strcmp(test->gguf, "deepseek2") == 0) {
        split_kv_b = true;
        check_file(folder, path);
        check_drafts(folder, path);
    }
    rmdir(dir);
    safetensors_free(st);
    map_close(&map);
    return failures();
}
