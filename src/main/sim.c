/* sluice sim: options and wiring. */
#include "ops/sim.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/opts.h"
#include "base/status.h"
#include "main/main.h"
#include "main/tool.h"

struct settings {
    const char *model, *stages, *policies, *prompt_tokens;
    int64_t requests, base, min_chunk, output, concurrency, max_seqs, window, seed, short_tokens,
        warm_ups;
    double hit_ratio, rate, jitter, smooth, link_ms, long_wait;
    bool no_profile, json, help;
};

#define AT(member) offsetof(struct settings, member)

static const struct opt_spec specs[] = {
    { "--model", OPT_STRING, AT(model), "deepseek", NULL, 0, 0,
      "deepseek, qwen3, or a file: a fit that the server has kept, or an object with a, b, g, c, "
      "kappa, w and stages" },
    { "--pipeline-parallel-size -pp", OPT_STRING, AT(stages), "2", NULL, 0, 0,
      "stages; several numbers split by commas make a table each" },
    { "--policy", OPT_STRING, AT(policies), "static,static-best,equal-time,optimal", NULL, 0, 0,
      "policies to compare, split by commas: static, static-best, equal-time, optimal" },
    { "--prompt-tokens", OPT_STRING, AT(prompt_tokens), NULL, NULL, 0, 0,
      "tokens of a prompt, or LEAST-MOST; default: the model's own case" },
    { "--num-requests", OPT_INT, AT(requests), "1", NULL, 1, SIM_MAX_REQUESTS, "requests in all" },
    { "--num-warmups", OPT_INT, AT(warm_ups), "5", NULL, 0, 1000,
      "longest prompts, one after another, before the clock begins" },
    { "--concurrency", OPT_INT, AT(concurrency), "1", NULL, 1, SIM_MAX_REQUESTS,
      "clients, each with one request at a time" },
    { "--rate", OPT_FLOAT, AT(rate), "0", NULL, 0, 1e6,
      "requests a second that arrive at random, whatever is still running; 0: by --concurrency" },
    { "--hit-ratio", OPT_FLOAT, AT(hit_ratio), "0", NULL, 0, 1,
      "share of each prompt that is in the prefix cache" },
    { "--output-tokens", OPT_INT, AT(output), "1", NULL, 1, 65536, "tokens generated for each" },
    { "--max-num-batched-tokens", OPT_SIZE, AT(base), "0", NULL, 0, SIM_MAX_PROMPT,
      "tokens of a step; 0: the model's own case, else 32768" },
    { "--max-num-seqs", OPT_INT, AT(max_seqs), "32", NULL, 1, 4096, "requests in one step" },
    { "--min-chunk", OPT_INT, AT(min_chunk), "0", NULL, 0, SIM_MAX_PROMPT,
      "smallest chunk that is planned; 0: chosen" },
    { "--smooth-factor", OPT_FLOAT, AT(smooth), "1", NULL, 1e-9, 1,
      "share of the prediction in a chunk's size" },
    { "--short-threshold", OPT_INT, AT(short_tokens), "0", NULL, 0, SIM_MAX_PROMPT,
      "prompts up to so many tokens go first; 0: in order of arrival" },
    { "--long-max-wait-ms", OPT_FLOAT, AT(long_wait), "0", NULL, 0, 1e9,
      "after which the oldest long one goes first all the same; 0: never" },
    { "--window", OPT_INT, AT(window), "0", NULL, 0, SIM_MAX_STAGES + 1,
      "steps in flight; 0: stages + 1" },
    { "--link-ms", OPT_FLOAT, AT(link_ms), "0", NULL, 0, 1e6,
      "time to pass a step on to the next stage" },
    { "--jitter", OPT_FLOAT, AT(jitter), "0", NULL, 0, 0.9, "of step times, as a share" },
    { "--no-profile", OPT_FLAG, AT(no_profile), NULL, NULL, 0, 0,
      "the scheduler does not know the model: it learns from the steps" },
    { "--seed", OPT_INT, AT(seed), "1", NULL, 0, 0, "of lengths, arrivals and jitter" },
    { "--json", OPT_FLAG, AT(json), NULL, NULL, 0, 0, "print JSON" },
    { "--help -h", OPT_FLAG, AT(help), NULL, NULL, 0, 0, "this text" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};

static int read_number(uint32_t *out, const char **text, uint32_t most, const char *flag,
                       struct err *e)
{
    char *end;
    unsigned long v;

    errno = 0;
    v = strtoul(*text, &end, 10);
    if (end == *text || **text == '-' || errno || v == 0 || v > most)
        return err_set(e, ERR_INVAL, "%s: '%s' is not a number from 1 to %u", flag, *text, most);
    *out = (uint32_t)v;
    *text = end;
    return 0;
}

static int read_stages(struct sim_plan *p, const char *text, struct err *e)
{
    int st;

    while (*text) {
        if (p->n_stages == SIM_MAX_STAGE_RUNS)
            return err_set(e, ERR_INVAL, "--pipeline-parallel-size: more than %u numbers",
                           SIM_MAX_STAGE_RUNS);
        st = read_number(&p->stages[p->n_stages++], &text, SIM_MAX_STAGES,
                         "--pipeline-parallel-size", e);
        if (st < 0)
            return st;
        if (*text && *text++ != ',')
            return err_set(e, ERR_INVAL, "--pipeline-parallel-size: numbers are split by commas");
    }
    return p->n_stages ? 0 : err_set(e, ERR_INVAL, "--pipeline-parallel-size is empty");
}

static int read_lengths(struct sim_options *o, const char *text, struct err *e)
{
    int st = read_number(&o->n_tokens_least, &text, SIM_MAX_PROMPT, "--prompt-tokens", e);

    if (st < 0)
        return st;
    o->n_tokens_most = o->n_tokens_least;
    if (*text == '-') {
        text++;
        st = read_number(&o->n_tokens_most, &text, SIM_MAX_PROMPT, "--prompt-tokens", e);
    }
    if (st < 0)
        return st;
    if (*text || o->n_tokens_most < o->n_tokens_least)
        return err_set(e, ERR_INVAL,
                       "--prompt-tokens: one number, or the least and the most as "
                       "4096-65536");
    return 0;
}

static int read_policies(struct sim_plan *p, const char *text, struct err *e)
{
    const struct {
        const char *name;
        bool *flag;
    } names[] = { { "static", &p->fixed },
                  { "static-best", &p->best },
                  { "equal-time", &p->equal_time },
                  { "optimal", &p->optimal } };

    while (*text) {
        size_t n = strcspn(text, ","), i = 0;

        while (i < 4 && (strlen(names[i].name) != n || strncmp(names[i].name, text, n) != 0))
            i++;
        if (i == 4)
            return err_set(e, ERR_INVAL,
                           "--policy: '%.*s' is none of static, static-best, equal-time, optimal",
                           (int)n, text);
        *names[i].flag = true;
        text += n + (text[n] == ',');
    }
    return 0;
}

static struct sim_options options_of(const struct settings *s, const struct sim_model *m)
{
    return (struct sim_options){
        .link = { s->link_ms, 0 },
        .jitter = s->jitter,
        .seed = (uint64_t)s->seed,
        .base = s->base   ? (uint32_t)s->base
                : m->base ? m->base
                          : 32768,
        .min_chunk = (uint32_t)s->min_chunk,
        .smooth = s->smooth,
        .unknown = s->no_profile,
        .short_first = { .enabled = s->short_tokens > 0,
                         .threshold = (uint32_t)s->short_tokens,
                         .long_max_wait = s->long_wait / 1e3 },
        .n_requests = (uint32_t)s->requests,
        .n_tokens_least = m->prompt,
        .n_tokens_most = m->prompt,
        .n_output = (uint32_t)s->output,
        .n_warm_up = (uint32_t)s->warm_ups,
        .hit_ratio = s->hit_ratio,
        .rate = s->rate,
        .concurrency = (uint32_t)s->concurrency,
        .max_seqs = (uint32_t)s->max_seqs,
        .window = (uint32_t)s->window,
    };
}

/* Requests that may be in the scheduler at a time hold their tokens there. */
static int check_size(const struct sim_options *o, struct err *e)
{
    uint32_t n = o->rate > 0 ? o->n_requests : o->concurrency;

    if ((uint64_t)o->n_tokens_most * n > SIM_MAX_TOKENS)
        return err_set(e, ERR_INVAL, "%u requests of up to %u tokens at a time; %u tokens at most",
                       n, o->n_tokens_most, SIM_MAX_TOKENS);
    return 0;
}

static int make_plan(struct sim_plan *p, const struct settings *s, struct err *e)
{
    int st;

    *p = (struct sim_plan){ .json = s->json };
    if ((st = sim_model_load(&p->model, s->model, e)) < 0 ||
        (st = read_stages(p, s->stages, e)) < 0 || (st = read_policies(p, s->policies, e)) < 0)
        return st;
    p->base = options_of(s, &p->model);
    if (s->prompt_tokens && (st = read_lengths(&p->base, s->prompt_tokens, e)) < 0)
        return st;
    if (p->base.n_tokens_most == 0)
        return err_set(e, ERR_INVAL, "--prompt-tokens is needed with a model from a file");
    return check_size(&p->base, e);
}

static int run(const void *settings, const char *const *args, struct err *e)
{
    const struct settings *s = settings;
    struct sim_plan p;
    struct buf out;
    int st = make_plan(&p, s, e);

    (void)args;
    if (st < 0)
        return st;
    buf_init(&out, BUF_MAX_REPLY);
    st = sim_report(&p, &out, e);
    if (st == 0)
        fputs(buf_str(&out), stdout);
    buf_finish(&out);
    return st;
}

int main_sim(int argc, char **argv)
{
    static const struct tool tool = { "sim", specs, "sluice sim [OPTIONS]", 0, run };
    struct settings s = { 0 };

    return tool_main(&tool, &s, &s.help, argc, argv);
}
