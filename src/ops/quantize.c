#include "ops/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/status.h"
#include "ops/calibrate.h"
#include "ops/emit.h"
#include "ops/hf_files.h"
#include "ops/outdir.h"
#include "ops/plan.h"
#include "ops/progress.h"
#include "ops/report.h"
#include "ops/runner.h"
#include "ops/texts.h"
#include "ops/tokens.h"

struct job {
    const struct quantize_options *opt;
    struct intake in;
    struct kernels *k;
    struct tokens tokens; /* of the report's text */
    struct calibration seen;
    struct plan plan;
    double before; /* mean surprise of the report's text */
    struct err *e;
};

static bool needs_model(const struct quantize_options *o)
{
    return o->report || o->fixed || !o->no_smooth || isfinite(o->float_above);
}

/* Runs the float model: what its linears read, and how well it does. */
static int observe(struct job *j)
{
    struct tokens text = { 0 };
    struct k_options ko = { .threads = j->opt->threads };
    struct runner *r = NULL;
    int st;

    if ((st = tokens_read(&text, j->opt->in, j->opt->calibration, text_calibration, &j->in.from.cfg,
                          j->e)) == 0 &&
        (st = tokens_read(&j->tokens, j->opt->in, j->opt->report_text, text_report, &j->in.from.cfg,
                          j->e)) == 0 &&
        (st = kernels_open(&j->k, &ko, j->e)) == 0 &&
        (st = runner_create(&r, j->k, j->opt->in, MODEL_DTYPE_FLOAT32, j->e)) == 0) {
        log_info("calibrating on %zu tokens", text.n);
        st = calibrate(&j->seen, r, text.ids, text.n, j->e);
        if (st == 0 && j->opt->report)
            j->before = runner_score(r, j->tokens.ids, j->tokens.n);
    }
    runner_destroy(r);
    tokens_finish(&text);
    return st;
}

static int make_plan(struct job *j)
{
    const struct quantize_options *o = j->opt;
    const struct plan_options po = {
        .fixed = o->fixed, .smooth = !o->no_smooth, .alpha = o->alpha, .float_above = o->float_above
    };
    struct progress p;
    uint64_t bytes = 0;
    int st;

    if (!needs_model(o))
        return plan_make(&j->plan, &j->in, NULL, NULL, &po, NULL, j->e);
    if ((st = observe(j)) < 0)
        return st;
    for (size_t i = 0; i < j->in.blue.n; i++) {
        long layer = weights_layer_of(j->in.blue.t[i].name);

        if (layer >= 0 && layer < (long)j->in.from.cfg.n_layers)
            bytes += j->in.source[i]->t.bytes;
    }
    progress_init(&p, "trying factors", bytes, o->quiet);
    st = plan_make(&j->plan, &j->in, &j->seen, j->k, &po, &p, j->e);
    progress_finish(&p);
    return st;
}

static int write_config(struct job *j, struct outdir *dir)
{
    char path[4096];
    json_t *c;
    int st;

    if (j->in.from.gguf) {
        c = hf_config(&j->in.from.cfg);
    } else {
        snprintf(path, sizeof path, "%s/config.json", j->opt->in);
        c = json_load_file(path, 0, NULL);
    }
    if (!c)
        return err_set(j->e, ERR_NOMEM, "no memory for config.json");
    json_object_del(c, "quantization_config");
    json_object_set_new(c, "torch_dtype", json_string("bfloat16"));
    st = outdir_write_json(dir, "config.json", c, j->e);
    json_decref(c);
    return st;
}

/* A checkpoint without a tokenizer stays one. */
static int write_tokenizer(struct job *j, struct outdir *dir)
{
    unsigned n;
    int st;

    if (!j->in.from.gguf)
        return outdir_copy_tokenizer(dir, j->opt->in, &n, j->e);
    st = hf_write_tokenizer(dir, weights_gguf(j->in.from.w), j->e);
    if (st == ERR_UNSUPPORTED || st == ERR_NOTFOUND) {
        log_warning(
            "no tokenizer is written, serve with --skip-tokenizer-init or put one there: %s",
            j->e->text);
        return 0;
    }
    return st;
}

static bool same_place(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int write_all(struct job *j)
{
    const struct quantize_options *o = j->opt;
    struct outdir *dir;
    int st = outdir_create(&dir, o->out, o->force, j->e);

    if (st < 0)
        return st;
    if ((st = make_plan(j)) == 0 && (st = write_config(j, dir)) == 0 &&
        (st = write_tokenizer(j, dir)) == 0 &&
        (st = emit(dir, &j->in, &j->plan, o->max_shard_bytes, o->quiet, j->e)) == 0)
        st = outdir_commit(dir, j->e);
    outdir_destroy(dir);
    return st;
}

/* The result as it will be served. */
static int judge(struct job *j)
{
    struct runner *r = NULL;
    int st = runner_create(&r, j->k, j->opt->out, MODEL_DTYPE_AUTO, j->e);

    if (st == 0) {
        report_errors(stdout, &j->in, &j->plan);
        report_perplexity(stdout, j->tokens.n, j->before,
                          runner_score(r, j->tokens.ids, j->tokens.n));
    }
    runner_destroy(r);
    return st;
}

int quantize(const struct quantize_options *opt, struct err *e)
{
    struct job j = { .opt = opt, .e = e };
    int st;

    if (same_place(opt->in, opt->out))
        return err_set(e, ERR_INVAL,
                       "%s is both what is read and what is written: name another "
                       "folder",
                       opt->out);
    if ((st = intake_open(&j.in, opt->in, e)) == 0 && (st = write_all(&j)) == 0) {
        report_floats(&j.in, &j.plan);
        if (opt->report)
            st = judge(&j);
    }
    plan_finish(&j.plan);
    calibration_finish(&j.seen);
    tokens_finish(&j.tokens);
    intake_close(&j.in);
    kernels_close(j.k);
    return st;
}
