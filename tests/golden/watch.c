/* model_watch_layers: each layer is told once in a step, in order, and when it is, its keys and values are
 * what they will be when the step is over: a stage's layers by their numbers in the model.
 *
 *     golden_watch MODEL   a tiny one */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/status.h"
#include "rig.h"

#define N_IDS      100u
#define CHUNK      40u
#define LAYERS_MAX 64u

struct watch {
    struct rig *r;
    uint32_t first, n;
    struct hash256 seen[LAYERS_MAX];
};

static struct hash256 plane_hash(const struct rig *r, uint32_t layer)
{
    const struct kv_layout *l = &r->kv;
    struct hash_part part[2];
    struct hash256 out;

    for (uint32_t kv = 0; kv < l->planes; kv++)
        part[kv] = (struct hash_part){ r->pool + kv_layout_offset(l, layer, kv, 0),
                                       l->n_blocks * kv_layout_block_bytes(l) };
    hash_sha256(&out, part, l->planes);
    return out;
}

static void on_layer(void *arg, uint32_t layer)
{
    struct watch *w = arg;

    expect(layer == w->first + w->n, "layer %u was told, not %u", layer, w->first + w->n);
    if (w->n < LAYERS_MAX)
        w->seen[w->n] = plane_hash(w->r, w->n);
    w->n++;
}

static void check_step(struct watch *w)
{
    expect(w->n == w->r->kv.n_layers, "%u of %u layers were told", w->n, w->r->kv.n_layers);
    for (uint32_t i = 0; i < w->n && i < w->r->kv.n_layers; i++) {
        struct hash256 now = plane_hash(w->r, i);

        expect(memcmp(&now, &w->seen[i], sizeof now) == 0,
               "layer %u was told before its keys and values were there", w->first + i);
    }
}

static void run(const char *path, uint32_t first, uint32_t n_layers)
{
    struct rig_options o = { .path = path,
                             .dtype = MODEL_DTYPE_FLOAT32,
                             .pool_tokens = 2 * N_IDS,
                             .max_tokens = CHUNK,
                             .max_logits = 1,
                             .first_layer = first,
                             .n_layers = n_layers };
    int32_t ids[N_IDS];
    struct watch w = { .first = first };
    struct rig_seq s;
    struct rig r;

    rig_open(&r, &o);
    w.r = &r;
    rig_seq_init(&r, &s, N_IDS);
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(i * 7 % model_config(r.m)->vocab);
    for (uint32_t at = 0; at < N_IDS; at += CHUNK) {
        struct rig_feed f = { &s, ids + at, N_IDS - at < CHUNK ? N_IDS - at : CHUNK };

        w.n = 0;
        model_watch_layers(r.w, on_layer, &w);
        rig_step(&r, &f, 1);
        check_step(&w);
    }
    model_watch_layers(r.w, NULL, NULL);
    w.n = 0;
    rig_step(&r, &(struct rig_feed){ &s, ids, 0 }, 0);
    expect(w.n == 0, "layers are told to nobody");
    rig_seq_finish(&s);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    char name[256], path[1024];
    const char *found;
    struct model_config c;
    struct err e;

    if (argc != 2) {
        fprintf(stderr, "usage: golden_watch MODEL\n");
        return 2;
    }
    snprintf(name, sizeof name, "models/%s", argv[1]);
    found = golden_path(name);
    if (!found)
        return 77;
    snprintf(path, sizeof path, "%s", found);
    if (model_read_config(&c, path, NULL, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    run(path, 0, 0);
    run(path, 1, c.n_layers - 1);
    return failures();
}
