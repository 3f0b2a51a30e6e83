/* The same weights from a HuggingFace folder and from a GGUF file give the same logits. The file is
 * written here from the tiny folder, as llama.cpp's converter would: rows of q and k in rotary
 * pairs, the bands of llama3 as divisors of the frequencies, the head as a tensor of its own or not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/model/gguf_build.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "rig.h"
#include "sys/map.h"

#define BF16     30
#define HEAD_DIM 32u
#define N_PAIRS  (HEAD_DIM / 2)
#define MAX_OUT  40

struct out {
    char name[64];
    const struct tensor *t; /* NULL: the frequency factors */
    bool pairs;             /* rows of each head go to rotary pairs */
};

static float factors[N_PAIRS];

static const struct {
    const char *hf, *gguf;
} layer_names[] = {
    { "input_layernorm", "attn_norm" }, { "post_attention_layernorm", "ffn_norm" },
    { "self_attn.q_proj", "attn_q" },   { "self_attn.k_proj", "attn_k" },
    { "self_attn.v_proj", "attn_v" },   { "self_attn.o_proj", "attn_output" },
    { "mlp.gate_proj", "ffn_gate" },    { "mlp.up_proj", "ffn_up" },
    { "mlp.down_proj", "ffn_down" },
};

/* llama.cpp's name of a tensor. */
static void set_name(struct out *o, const char *hf)
{
    unsigned layer;
    char rest[64];

    if (strcmp(hf, "model.embed_tokens.weight") == 0)
        strcpy(o->name, "token_embd.weight");
    else if (strcmp(hf, "model.norm.weight") == 0)
        strcpy(o->name, "output_norm.weight");
    else if (sscanf(hf, "model.layers.%u.%63s", &layer, rest) == 2) {
        for (size_t i = 0; i < sizeof layer_names / sizeof layer_names[0]; i++)
            if (strncmp(rest, layer_names[i].hf, strlen(layer_names[i].hf)) == 0) {
                snprintf(o->name, sizeof o->name, "blk.%u.%s.weight", layer, layer_names[i].gguf);
                o->pairs = i == 2 || i == 3;
            }
    }
}

static uint32_t list_tensors(struct out *o, const struct safetensors *st, bool tied)
{
    size_t n;
    const struct tensor *t = safetensors_tensors(st, &n);
    uint32_t count = 0;

    for (size_t i = 0; i < n; i++) {
        o[count] = (struct out){ .t = &t[i] };
        set_name(&o[count++], t[i].name);
        if (!tied && strcmp(t[i].name, "model.embed_tokens.weight") == 0)
            o[count++] = (struct out){ "output.weight", &t[i], false };
    }
    o[count++] = (struct out){ "rope_freqs.weight", NULL, false };
    return count;
}

static void put_keys(struct buf *b)
{
    put_key_text(b, "general.architecture", "llama");
    put_key_u32(b, "llama.block_count", 3);
    put_key_u32(b, "llama.embedding_length", 96);
    put_key_u32(b, "llama.feed_forward_length", 160);
    put_key_u32(b, "llama.attention.head_count", 4);
    put_key_u32(b, "llama.attention.head_count_kv", 1);
    put_key_u32(b, "llama.attention.key_length", HEAD_DIM);
    put_key_u32(b, "llama.rope.dimension_count", HEAD_DIM);
    put_key_u32(b, "llama.context_length", 8192);
    put_key_u32(b, "llama.vocab_size", 512);
    put_key_f32(b, "llama.rope.freq_base", 500000);
    put_key_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

static uint64_t bytes_of(const struct out *o)
{
    return o->t ? o->t->bytes : sizeof factors;
}

/* Row i of a head of d goes to 2i, its partner i + d/2 to 2i + 1. */
static void put_rows(struct buf *b, const struct out *o)
{
    size_t row = (size_t)o->t->shape[1] * 2;

    for (uint32_t i = 0; i < o->t->shape[0]; i++) {
        uint32_t j = i % HEAD_DIM, from = i - j + j / 2 + (j % 2) * (HEAD_DIM / 2);

        buf_append(b, o->t->data + from * row, row);
    }
}

static void put_tensor(struct buf *b, const struct out *o)
{
    if (!o->t)
        buf_append(b, factors, sizeof factors);
    else if (o->pairs)
        put_rows(b, o);
    else
        buf_append(b, o->t->data, o->t->bytes);
    pad_to(b, 32);
}

static void put_entry(struct buf *b, const struct out *o, uint64_t offset)
{
    if (o->t && o->t->n_dims == 2) {
        put_matrix(b, o->name, o->t->shape[0], o->t->shape[1], BF16, offset);
        return;
    }
    put_text(b, o->name);
    put_u32(b, 1);
    put_u64(b, o->t ? o->t->shape[0] : N_PAIRS);
    put_u32(b, o->t ? BF16 : 0);
    put_u64(b, offset);
}

static void write_gguf(const char *path, const struct safetensors *st, bool tied)
{
    struct out o[MAX_OUT] = { 0 };
    uint32_t n = list_tensors(o, st, tied);
    uint64_t offset = 0;
    struct buf b;
    FILE *f = fopen(path, "wb");

    buf_init(&b, BUF_MAX_REPLY);
    put_header(&b, 3, n, 12);
    put_keys(&b);
    for (uint32_t i = 0; i < n; i++) {
        put_entry(&b, &o[i], offset);
        offset += (bytes_of(&o[i]) + 31) / 32 * 32;
    }
    pad_to(&b, 32);
    for (uint32_t i = 0; i < n; i++)
        put_tensor(&b, &o[i]);
    expect(f && b.status == 0 && fwrite(b.data, 1, b.len, f) == b.len, "cannot write %s", path);
    if (f)
        fclose(f);
    buf_finish(&b);
}

/* Plain frequency over llama3's, as the converter stores it. */
static void make_factors(const char *folder)
{
    struct model_config c;
    struct err e = { 0 };
    double scaled[N_PAIRS], plain[N_PAIRS], scale;

    expect(model_read_config(&c, folder, NULL, &e) == 0, "%s", e.text);
    model_rope_freqs(&c, scaled, &scale);
    c.rope_scaling = ROPE_NONE;
    model_rope_freqs(&c, plain, &scale);
    for (uint32_t i = 0; i < N_PAIRS; i++)
        factors[i] = (float)(plain[i] / scaled[i]);
}

static void last_logits(const char *path, float *out)
{
    struct rig_options o = { .path = path,
                             .dtype = MODEL_DTYPE_FLOAT32,
                             .pool_tokens = 128,
                             .max_tokens = 70,
                             .max_logits = 1 };
    struct golden *g = golden_open(golden_path("goldens/llama_tiny.safetensors"));
    struct rig_seq s;
    struct rig r;
    size_t n;
    const int32_t *ids = golden_i32(g, "p70.ids", &n);

    rig_open(&r, &o);
    rig_seq_init(&r, &s, (uint32_t)n);
    memcpy(out, rig_prefill(&r, &s, ids, (uint32_t)n, 0), 512 * sizeof *out);
    rig_seq_finish(&s);
    rig_close(&r);
    golden_close(g);
}

int main(void)
{
    static float folder[512], tied[512], untied[512];
    char dir[] = "/tmp/sluice-gguf-XXXXXX", path[64], tensors[4200];
    const char *source = golden_path("models/llama_tiny");
    struct map map;
    struct safetensors *st;
    struct err e = { 0 };
    char model[4096];

    snprintf(model, sizeof model, "%s", source);
    snprintf(tensors, sizeof tensors, "%s/model.safetensors", model);
    if (!mkdtemp(dir) || map_open(&map, tensors, &e) < 0 ||
        safetensors_parse(&st, map.data, map.size, &e) < 0) {
        printf("%s\n", e.text);
        return 1;
    }
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    make_factors(model);
    last_logits(model, folder);
    write_gguf(path, st, true);
    last_logits(path, tied);
    write_gguf(path, st, false);
    last_logits(path, untied);
    /* The factors are rounded to float32: the angles differ in the last digits. */
    printf("GGUF against folder: max %.2e\n", max_diff(folder, tied, 512));
    expect(max_diff(folder, tied, 512) <= 2e-5, "GGUF and folder differ by %g",
           max_diff(folder, tied, 512));
    expect(memcmp(tied, untied, sizeof tied) == 0, "a head of its own changes logits by %g",
           max_diff(tied, untied, 512));
    unlink(path);
    rmdir(dir);
    safetensors_free(st);
    map_close(&map);
    return failures();
}
