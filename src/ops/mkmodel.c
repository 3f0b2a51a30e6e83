#include "ops/mkmodel.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "kernel/kernel.h"
#include "model/gguf.h"
#include "model/model.h"
#include "ops/blueprint.h"
#include "ops/hf_files.h"
#include "ops/outdir.h"
#include "ops/parts.h"
#include "ops/progress.h"
#include "ops/synth.h"
#include "sys/map.h"
#include "sys/topo.h"

#define CHUNK_BYTES (4u << 20)
#define MAX_THREADS 256

/* Everything of one run; the lock guards what is below it. */
struct making {
    const struct mkmodel_options *opt;
    struct blueprint blue;
    struct parts parts;
    struct synth synth;
    struct shards *shards;
    struct progress progress;

    pthread_mutex_t lock;
    size_t tensor; /* the next rows to be made */
    uint64_t row;
    int status;
    struct err error;
};

/* A thread's own. */
struct worker {
    struct making *m;
    struct synth_maker *maker;
    pthread_t thread;
    bool started;
};

static uint64_t row_bytes(const struct shard_tensor *t)
{
    return shard_tensor_bytes(t) / t->shape[0];
}

/* The next rows that no one makes yet. False: all are made, or something failed. */
static bool take(struct making *m, size_t *tensor, uint32_t *first, uint32_t *n)
{
    bool some = false;

    pthread_mutex_lock(&m->lock);
    if (m->status == 0 && m->tensor < m->parts.n) {
        const struct shard_tensor *t = &m->parts.t[m->tensor];
        uint64_t rows = CHUNK_BYTES / row_bytes(t), left = t->shape[0] - m->row;

        rows = rows == 0 ? 1 : rows > left ? left : rows;
        *tensor = m->tensor;
        *first = (uint32_t)m->row;
        *n = (uint32_t)rows;
        m->row += rows;
        if (m->row == t->shape[0]) {
            m->tensor++;
            m->row = 0;
        }
        some = true;
    }
    pthread_mutex_unlock(&m->lock);
    return some;
}

static void fail(struct making *m, int st, const struct err *e)
{
    pthread_mutex_lock(&m->lock);
    if (m->status == 0) {
        m->status = st;
        m->error = *e;
    }
    pthread_mutex_unlock(&m->lock);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct making *m = w->m;
    struct err e = { "" };
    uint32_t first, n;
    size_t i;

    while (take(m, &i, &first, &n)) {
        uint64_t bytes = row_bytes(&m->parts.t[i]);
        const void *rows = synth_rows(w->maker, &m->parts.piece[i], first, n);
        int st = shards_write(m->shards, i, first * bytes, rows, n * bytes, &e);

        if (st < 0)
            fail(m, st, &e);
        progress_add(&m->progress, n * bytes);
    }
    return NULL;
}

/* What a worker makes at a time: a chunk, or one row if that is more. */
static uint64_t most_bytes(const struct making *m)
{
    uint64_t most = CHUNK_BYTES;

    for (size_t i = 0; i < m->parts.n; i++)
        most = row_bytes(&m->parts.t[i]) > most ? row_bytes(&m->parts.t[i]) : most;
    return most;
}

/* The calling thread works too; a thread that cannot be started is done without. */
static int make_all(struct making *m, struct err *e)
{
    uint32_t want = m->opt->threads ? m->opt->threads : topo_cpus(), n = 0;
    struct worker w[MAX_THREADS];

    for (; n < want && n < MAX_THREADS; n++) {
        w[n] = (struct worker){ .m = m, .maker = synth_maker_new(&m->synth, most_bytes(m)) };
        if (!w[n].maker)
            break;
    }
    if (n == 0)
        return err_set(e, ERR_NOMEM, "no memory");
    for (uint32_t i = 1; i < n; i++)
        w[i].started = pthread_create(&w[i].thread, NULL, work, &w[i]) == 0;
    work(&w[0]);
    for (uint32_t i = 0; i < n; i++) {
        if (w[i].started)
            pthread_join(w[i].thread, NULL);
        synth_maker_free(w[i].maker);
    }
    return m->status < 0 ? err_set(e, m->status, "%s", m->error.text) : 0;
}

static enum part_store store_of(const struct blue_tensor *t, enum mkmodel_layout layout)
{
    if (t->kind == BLUE_CORRECTION)
        return STORE_F32;
    if (layout == MKMODEL_FP8 && t->role != BLUE_FLOAT)
        return STORE_F8;
    if (layout == MKMODEL_W8A8 && t->role == BLUE_ATTENTION)
        return STORE_STATIC;
    if (layout == MKMODEL_W8A8 && t->role == BLUE_MLP)
        return STORE_DYNAMIC;
    return STORE_BF16;
}

static int list_parts(struct making *m, struct err *e)
{
    enum mkmodel_layout layout = m->opt->layout;
    int st = parts_init(&m->parts, layout == MKMODEL_W8A8, e);

    for (size_t i = 0; st == 0 && i < m->blue.n; i++) {
        const struct blue_tensor *t = &m->blue.t[i];

        /* A static linear's bias is part of its quant_bias. */
        if (layout == MKMODEL_W8A8 && t->kind == BLUE_VECTOR)
            continue;
        st = parts_add(&m->parts, t->name, i, store_of(t, layout), t->rows,
                       t->kind == BLUE_MATRIX ? t->cols : 0, e);
    }
    return st;
}

static int read_config(json_t **out, const char *path, struct err *e)
{
    json_error_t je;
    json_t *j = json_load_file(path, JSON_REJECT_DUPLICATES, &je);

    if (!j && je.line < 0)
        return err_set(e, ERR_NOTFOUND, "cannot read the configuration %s: %s", path, je.text);
    if (!j)
        return err_set(e, ERR_BADMSG, "%s: line %d: %s", path, je.line, je.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return err_set(e, ERR_BADMSG, "%s: not a JSON object", path);
    }
    *out = j;
    return 0;
}

/* The file's own quantization goes: what is made is what --layout says. The configuration is read back
 * as the loader reads it, so that what it would refuse is refused before a weight is made. */
static int write_config(struct making *m, struct outdir *dir, json_t *j, struct err *e)
{
    struct model_config c;
    int st;

    json_object_del(j, "quantization_config");
    json_object_set_new(j, "torch_dtype", json_string("bfloat16"));
    if ((st = outdir_write_json(dir, "config.json", j, e)) < 0)
        return st;
    if ((st = model_read_config(&c, outdir_stage(dir), NULL, e)) < 0)
        return err_prefix(e, st, "%s", m->opt->config);
    if ((st = blueprint_make(&m->blue, &c, e)) < 0)
        return err_prefix(e, st, "%s", m->opt->config);
    if (m->opt->layout != MKMODEL_FP8)
        return 0;
    json_object_set_new(j, "quantization_config",
                        json_pack("{s:s, s:s, s:s, s:[i,i]}", "activation_scheme", "dynamic", "fmt",
                                  "e4m3", "quant_method", "fp8", "weight_block_size", K_F8_BLOCK,
                                  K_F8_BLOCK));
    return outdir_write_json(dir, "config.json", j, e);
}

static int tokenizer_of_gguf(const char *path, struct outdir *dir, struct err *e)
{
    struct gguf *g = NULL;
    struct map m = { 0 };
    int st = map_open(&m, path, e);

    if (st < 0)
        return st;
    if ((st = gguf_parse(&g, m.data, m.size, e)) == 0)
        st = hf_write_tokenizer(dir, g, e);
    gguf_free(g);
    map_close(&m);
    return st < 0 ? err_prefix(e, st, "--tokenizer %s", path) : 0;
}

static int copy_tokenizer(const struct mkmodel_options *opt, struct outdir *dir, struct err *e)
{
    size_t len = opt->tokenizer ? strlen(opt->tokenizer) : 0;
    unsigned n;
    int st;

    if (!opt->tokenizer)
        return 0;
    if (len > 5 && strcmp(opt->tokenizer + len - 5, ".gguf") == 0)
        return tokenizer_of_gguf(opt->tokenizer, dir, e);
    if ((st = outdir_copy_tokenizer(dir, opt->tokenizer, &n, e)) < 0)
        return st;
    return n ? 0
             : err_set(e, ERR_NOTFOUND, "--tokenizer %s: no tokenizer files there", opt->tokenizer);
}

static int write_description(const struct making *m, struct outdir *dir, struct err *e)
{
    json_t *j;
    int st;

    if (m->opt->layout != MKMODEL_W8A8)
        return 0;
    if (!(j = parts_description(&m->parts)))
        return err_set(e, ERR_NOMEM, "no memory");
    st = outdir_write_json(dir, "quant_model_description.json", j, e);
    json_decref(j);
    return st;
}

static int write_weights(struct making *m, struct outdir *dir, struct err *e)
{
    const char *stem = m->opt->layout == MKMODEL_W8A8 ? "quant_model_weights" : "model";
    int st;

    if ((st = shards_create(&m->shards, outdir_stage(dir), stem, m->opt->max_shard_bytes,
                            m->parts.t, m->parts.n, e)) < 0)
        return st;
    progress_init(&m->progress, "writing weights", shards_bytes(m->shards), m->opt->quiet);
    if ((st = make_all(m, e)) == 0)
        st = shards_finish(m->shards, e);
    progress_finish(&m->progress);
    return st;
}

static int make(struct making *m, json_t *config, struct err *e)
{
    struct outdir *dir;
    int st = outdir_create(&dir, m->opt->out, m->opt->force, e);

    if (st < 0)
        return st;
    synth_init(&m->synth, &m->blue, m->opt->seed);
    if ((st = write_config(m, dir, config, e)) == 0 && (st = copy_tokenizer(m->opt, dir, e)) == 0 &&
        (st = list_parts(m, e)) == 0 && (st = write_weights(m, dir, e)) == 0 &&
        (st = write_description(m, dir, e)) == 0)
        st = outdir_commit(dir, e);
    outdir_destroy(dir);
    return st;
}

int mkmodel(const struct mkmodel_options *opt, struct err *e)
{
    struct making *m = calloc(1, sizeof *m);
    json_t *config = NULL;
    int st;

    if (!m)
        return err_set(e, ERR_NOMEM, "no memory");
    m->opt = opt;
    pthread_mutex_init(&m->lock, NULL);
    if ((st = read_config(&config, opt->config, e)) == 0)
        st = make(m, config, e);
    shards_destroy(m->shards);
    parts_finish(&m->parts);
    blueprint_finish(&m->blue);
    pthread_mutex_destroy(&m->lock);
    json_decref(config);
    free(m);
    return st;
}
