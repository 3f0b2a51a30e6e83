/* A checkpoint in which some layers are int8 and some float, an expert among them: each linear is
 * taken as the description says. Made from the int8 folder by writing one dense layer's down_proj and
 * one expert as the floats that their codes stand for; so its logits are those of that folder, but
 * for the rounding of activations that those linears no longer do. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "../unit/model/folder.h"
#include "base/status.h"
#include "model/weights.h"
#include "rig.h"

#define NAME  "deepseek_v3_tiny_w8a8"
#define LIMIT 0.7 /* activations of other layers are rounded to int8 too: see the golden's README */

static const char *const floats[] = {
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.1.mlp.experts.5.gate_proj.weight",
    "model.layers.1.mlp.experts.5.up_proj.weight",
    "model.layers.1.mlp.experts.5.down_proj.weight",
};
#define N_FLOATS (sizeof floats / sizeof floats[0])

static void die(const char *what)
{
    fprintf(stderr, "mixed: %s\n", what);
    exit(1);
}

static bool is_chosen(const char *name)
{
    for (size_t i = 0; i < N_FLOATS; i++)
        if (strcmp(floats[i], name) == 0)
            return true;
    return false;
}

/* "x.weight_scale" and "x.weight_offset" of a chosen "x.weight". */
static bool is_side(const char *name)
{
    for (size_t i = 0; i < N_FLOATS; i++)
        if (strncmp(floats[i], name, strlen(floats[i])) == 0 && name[strlen(floats[i])] == '_')
            return true;
    return false;
}

static void add_as_float(struct folder *f, const struct weights *w, const struct tensor *t)
{
    uint64_t n = t->shape[0] * t->shape[1];
    float *values = malloc(n * sizeof *values), *scales = malloc(t->shape[0] * sizeof *scales);
    const struct weight *scale;
    char name[TENSOR_MAX_NAME];

    snprintf(name, sizeof name, "%s_scale", t->name);
    scale = weights_find(w, name);
    if (!values || !scales || !scale)
        die("no scales");
    k_dequant(scale->t.type, scales, scale->t.data, t->shape[0]);
    for (uint64_t i = 0; i < n; i++)
        values[i] = scales[i / t->shape[1]] * (float)(int8_t)t->data[i];
    folder_add(f, t->name, "F32", sizeof *values, t->shape[0], t->shape[1], values);
    free(values);
    free(scales);
}

static void copy_text(const struct folder *f, const char *from, const char *name, json_t *changes)
{
    char path[4096];
    json_t *j;
    char *text;

    snprintf(path, sizeof path, "%s/%s", from, name);
    if (!(j = json_load_file(path, 0, NULL)))
        die(path);
    json_object_update(j, changes);
    text = json_dumps(j, 0);
    folder_text(f, name, text);
    free(text);
    json_decref(j);
}

static void make_folder(struct folder *f, const char *from)
{
    json_t *types = json_object(), *none = json_object();
    struct weights *w;
    struct err e = { 0 };

    if (weights_open_dir(&w, from, &e) < 0)
        die(e.text);
    for (size_t i = 0; i < w->n; i++) {
        const struct tensor *t = &w->w[i].t;
        uint64_t rows = t->n_dims > 1 ? t->shape[0] : 0, cols = t->shape[t->n_dims > 1];

        if (is_chosen(t->name))
            add_as_float(f, w, t);
        else if (!is_side(t->name))
            folder_add(f, t->name, t->dtype, t->bytes / (rows ? rows : 1) / cols, rows, cols,
                       t->data);
    }
    for (size_t i = 0; i < N_FLOATS; i++)
        json_object_set_new(types, floats[i], json_string("FLOAT"));
    folder_write(f, "model.safetensors");
    copy_text(f, from, "quant_model_description.json", types);
    copy_text(f, from, "config.json", none);
    json_decref(types);
    json_decref(none);
    weights_close(w);
}

/* The logits of p7 after its last token. */
static void run(const char *path, const int32_t *ids, uint32_t n, float *out)
{
    const struct rig_options o = { .path = path,
                                   .dtype = MODEL_DTYPE_FLOAT32,
                                   .pool_tokens = 64,
                                   .max_tokens = 64,
                                   .max_logits = 1 };
    struct rig_seq s;
    struct rig r;

    rig_open(&r, &o);
    rig_seq_init(&r, &s, n);
    memcpy(out, rig_prefill(&r, &s, ids, n, 0), model_config(r.m)->vocab * sizeof *out);
    rig_seq_finish(&s);
    rig_close(&r);
}

int main(void)
{
    const char *found = golden_path("models/" NAME "/config.json");
    static float mixed[512], pure[512];
    struct folder f;
    struct golden *g;
    const int32_t *ids;
    char from[4096];
    double diff;
    size_t n;

    if (!found)
        return 77;
    snprintf(from, sizeof from, "%s", found);
    *strrchr(from, '/') = '\0';
    if (!(found = golden_path("goldens/" NAME ".safetensors")))
        return 77;
    g = golden_open(found);
    ids = golden_i32(g, "p7.ids", &n);
    folder_make(&f);
    make_folder(&f, from);
    run(f.path, ids, (uint32_t)n, mixed);
    run(from, ids, (uint32_t)n, pure);
    folder_remove(&f);
    golden_close(g);
    diff = max_diff(mixed, pure, 512);
    printf("mixed: largest difference of the logits %.3g\n", diff);
    /* Not the same program: the chosen linears do not round their inputs. */
    return diff > 0 && diff < LIMIT ? 0 : 1;
}
