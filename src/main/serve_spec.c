/* --speculative-config, and the options that stand for its keys, into the number of draft tokens. */
#include <string.h>

#include "base/log.h"
#include "base/opts.h"
#include "base/status.h"
#include "main/serve_flags.h"
#include "sched/sched.h"
#include "serve/config.h"

#define FLAG "--speculative-config"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static const char *const keys[] = {
    "method",
    "model",
    "num_speculative_tokens",
    "enforce_eager",
    "draft_tensor_parallel_size",
    "disable_padded_drafter_batch",
    "max_model_len",
    "quantization",
    "moe_backend",
    "attention_backend",
};

/* Methods that draft with the multi-token prediction layer of the checkpoint itself. */
static const char *const methods[] = { "mtp", "deepseek_mtp" };

static bool is_idle(const char *key)
{
    for (size_t i = 3; i < COUNT(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static int check_keys(json_t *o, struct err *e)
{
    const char *key;
    json_t *v;
    int st;

    json_object_foreach(o, key, v)
    {
        if ((st = serve_check_key(FLAG, "", key, keys, COUNT(keys), e)) < 0)
            return st;
        if (is_idle(key))
            log_info(FLAG ": %s has no effect: drafts are made by the model's own layer, which is "
                          "loaded and computed like its others",
                     key);
    }
    return 0;
}

/* A text of the configuration, or of the option that stands for it; not both. */
static int settle_text(const char **out, const json_t *o, const char *key, const char *flag,
                       struct err *e)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return err_set(e, ERR_INVAL, FLAG ": %s must be a text", key);
    if (*out)
        return err_set(e, ERR_INVAL, FLAG " has %s, and %s is given too; leave one out", key, flag);
    *out = json_string_value(v);
    return 0;
}

static int settle_tokens(struct serve_config *c, struct err *e)
{
    const json_t *v = json_object_get(c->speculative, "num_speculative_tokens");

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 1)
        return err_set(e, ERR_INVAL, FLAG ": num_speculative_tokens must be a number of 1 or more");
    if (c->spec_tokens > 0)
        return err_set(e, ERR_INVAL,
                       FLAG " has num_speculative_tokens, and --spec-tokens is given too; leave "
                            "one out");
    c->spec_tokens = json_integer_value(v);
    return 0;
}

static int check_method(const struct serve_config *c, struct err *e)
{
    const char *method = c->spec_method;

    for (size_t i = 0; method && i < COUNT(methods); i++)
        if (strcmp(methods[i], method) == 0)
            return 0;
    if (!method)
        return err_set(e, ERR_INVAL,
                       FLAG ": method is missing; this build has mtp (also called deepseek_mtp)");
    return err_set(e, ERR_UNSUPPORTED,
                   FLAG
                   ": method '%s' is not part of this build, which drafts with the model's own "
                   "multi-token prediction layer: mtp (also called deepseek_mtp)",
                   method);
}

int serve_check_spec(struct serve_config *c, struct err *e)
{
    int st;

    if ((st = check_keys(c->speculative, e)) < 0 ||
        (st = settle_text(&c->spec_method, c->speculative, "method", "--spec-method", e)) < 0 ||
        (st = settle_text(&c->spec_model, c->speculative, "model", "--spec-model", e)) < 0 ||
        (st = settle_tokens(c, e)) < 0)
        return st;
    if (json_object_size(c->speculative) == 0 && !c->spec_method && !c->spec_model &&
        c->spec_tokens == 0)
        return 0;
    if ((st = check_method(c, e)) < 0)
        return st;
    if (c->spec_model && strcmp(c->spec_model, c->model) != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       FLAG ": model '%s' is another one than '%s', but method %s drafts with the "
                            "model's own layer; leave it out",
                       c->spec_model, c->model, c->spec_method);
    if (c->spec_tokens > SPEC_MAX_TOKENS)
        return err_set(e, ERR_LIMIT,
                       FLAG ": num_speculative_tokens is %lld, at most %d are drafted",
                       (long long)c->spec_tokens, SPEC_MAX_TOKENS);
    /* One layer predicts one token; it may be asked again for those after that. */
    c->n_draft_tokens = c->spec_tokens > 0 ? (uint32_t)c->spec_tokens : 1;
    return 0;
}
