#include "serve/genconf.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "serve/config.h"
#include "sys/map.h"

static int apply_number(const json_t *o, const char *name, double min, double max, float *out,
                        struct err *e)
{
    const json_t *v = json_object_get(o, name);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_number(v) || json_number_value(v) < min || json_number_value(v) > max)
        return err_set(e, ERR_BADMSG, "%s must be a number in %g..%g", name, min, max);
    *out = (float)json_number_value(v);
    return 0;
}

static int apply_whole(const json_t *o, const char *name, uint32_t *out, struct err *e)
{
    const json_t *v = json_object_get(o, name);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < -1 || json_integer_value(v) > INT32_MAX)
        return err_set(e, ERR_BADMSG, "%s must be a whole number", name);
    *out = json_integer_value(v) < 0 ? 0 : (uint32_t)json_integer_value(v);
    return 0;
}

static int apply(const json_t *o, struct sampling *s, uint32_t *max_tokens, struct err *e)
{
    int st;

    if ((st = apply_number(o, "temperature", 0, 1e6, &s->temperature, e)) < 0 ||
        (st = apply_number(o, "top_p", 1e-9, 1, &s->top_p, e)) < 0 ||
        (st = apply_number(o, "min_p", 0, 1, &s->min_p, e)) < 0 ||
        (st = apply_number(o, "repetition_penalty", 1e-9, 1e6, &s->repetition_penalty, e)) < 0 ||
        (st = apply_whole(o, "top_k", &s->top_k, e)) < 0)
        return st;
    return apply_whole(o, "max_new_tokens", max_tokens, e);
}

/* Takes over what the folder's file says. ERR_NOTFOUND when it has none. */
static int apply_file(const char *dir, struct sampling *s, uint32_t *max_tokens, struct err *e)
{
    char path[4096];
    json_t *o = NULL;
    struct map m;
    int st;

    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    if ((st = map_open(&m, path, e)) < 0)
        return st;
    if ((st = json_read(&o, (const char *)m.data, m.size, NULL, e)) == 0)
        st = apply(o, s, max_tokens, e);
    json_decref(o);
    map_close(&m);
    if (st < 0)
        return err_prefix(e, st, "%s", path);
    log_info("defaults for sampling from %s", path);
    return 0;
}

static bool is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int genconf_load(const struct serve_config *cfg, struct sampling *s, uint32_t *max_tokens,
                 struct err *e)
{
    const char *from = cfg->generation_config;
    int st = 0;

    sampling_init(s);
    *max_tokens = 0;
    if (strcmp(from, "auto") == 0) {
        /* a model need not have the file */
        if (is_dir(cfg->model) && (st = apply_file(cfg->model, s, max_tokens, e)) == ERR_NOTFOUND)
            st = 0;
    } else if (strcmp(from, "vllm") != 0) {
        st = apply_file(from, s, max_tokens, e);
        st = st < 0 ? err_prefix(e, st, "--generation-config") : 0;
    }
    if (st < 0)
        return st;
    if (cfg->override_generation && (st = apply(cfg->override_generation, s, max_tokens, e)) < 0)
        return err_prefix(e, st, "--override-generation-config");
    return 0;
}
