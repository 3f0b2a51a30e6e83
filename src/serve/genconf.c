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

/* The file's object, or NULL when the folder has none. */
static int read_file(json_t **out, const char *dir, struct err *e)
{
    char path[4096];
    struct map m;
    int st;

    *out = NULL;
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    st = map_open(&m, path, e);
    if (st == ERR_NOTFOUND)
        return 0;
    if (st < 0)
        return st;
    st = json_read(out, (const char *)m.data, m.size, NULL, e);
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
    json_t *file = NULL;
    int st = 0;

    sampling_init(s);
    *max_tokens = 0;
    if (strcmp(from, "vllm") == 0)
        from = NULL;
    else if (strcmp(from, "auto") == 0)
        from = is_dir(cfg->model) ? cfg->model : NULL;
    if (from && (st = read_file(&file, from, e)) == 0 && file)
        st = apply(file, s, max_tokens, e);
    json_decref(file);
    if (st < 0)
        return err_prefix(e, st, "generation_config.json");
    if (cfg->override_generation && (st = apply(cfg->override_generation, s, max_tokens, e)) < 0)
        return err_prefix(e, st, "--override-generation-config");
    return 0;
}
