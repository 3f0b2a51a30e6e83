/* Models of pipelines: the two built in, and files. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "ops/sim.h"
#include "sys/map.h"

/* Fitted to two published measurements each: chunks of 32,768 tokens, and chunks of equal time. */
static const struct sim_model built_in[] = {
    { "deepseek", { 1.589e-6, 0.042, 1.26e-3, 25, 0.5, 0 }, 2, 131072, 32768, 27.0, 22.5 },
    { "qwen3", { 1.107e-6, 0.0482, 0, 25, 0.5, 0 }, 2, 262144, 32768, 61.4, 53.6 },
};

static double number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static int read_model(struct sim_model *m, const json_t *root, const char *name, struct err *e)
{
    const json_t *stages = json_object_get(root, "stages"), *one = root;
    double n = number(root, "stages", NAN);

    if (json_is_array(stages)) { /* a fit that was kept: the first stage stands for all */
        n = (double)json_array_size(stages);
        one = json_array_get(stages, 0);
    }
    *m = (struct sim_model){ .name = name,
                             .time = { number(one, "a", NAN), number(one, "b", NAN),
                                       number(one, "g", 0), number(one, "c", NAN),
                                       number(one, "kappa", 0.5), number(one, "w", 0) } };
    if (!(n >= 1 && n <= SIM_MAX_STAGES))
        return err_set(e, ERR_INVAL, "%s: 'stages' must be 1 to %u, or a list of stages", name,
                       SIM_MAX_STAGES);
    m->stages = (uint32_t)n;
    if (!isfinite(m->time.a + m->time.b + m->time.c + m->time.g + m->time.w + m->time.kappa))
        return err_set(e, ERR_INVAL, "%s: a, b and c (ms and tokens) are needed, as numbers", name);
    return 0;
}

static int load_file(struct sim_model *m, const char *path, struct err *e)
{
    struct map file;
    json_t *root = NULL;
    int st = map_open(&file, path, e);

    if (st < 0)
        return err_prefix(e, st, "a model is deepseek, qwen3 or a file");
    st = json_read(&root, (const char *)file.data, file.size, NULL, e);
    if (st == 0)
        st = read_model(m, root, path, e);
    else
        err_prefix(e, st, "%s", path);
    json_decref(root);
    map_close(&file);
    return st;
}

int sim_model_load(struct sim_model *out, const char *name, struct err *e)
{
    for (size_t i = 0; i < sizeof built_in / sizeof built_in[0]; i++)
        if (strcmp(built_in[i].name, name) == 0) {
            *out = built_in[i];
            return 0;
        }
    return load_file(out, name, e);
}

struct stage_time sim_model_split(const struct sim_model *m, uint32_t stages)
{
    double r = (double)m->stages / stages;
    double c = (0.5 + 1.0 / stages) / (0.5 + 1.0 / m->stages);

    return (struct stage_time){ .a = r * m->time.a,
                                .b = r * m->time.b,
                                .g = r * m->time.g,
                                .c = c * m->time.c,
                                .kappa = m->time.kappa,
                                .w = r * m->time.w };
}
