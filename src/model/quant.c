#include "model/quant.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/config_json.h"
#include "model/quant_targets.h"
#include "sys/map.h"

struct quant {
    enum quant_format format;
    char *file;
    json_t *types;                 /* ModelSlim: tensor -> type */
    struct quant_targets *targets; /* compressed-tensors */
};

static const char *const format_names[] = { "none", "ascend", "fp8", "compressed-tensors" };

const char *quant_format_name(enum quant_format f)
{
    return format_names[f];
}

struct quant *quant_new(void)
{
    return calloc(1, sizeof(struct quant));
}

void quant_close(struct quant *q)
{
    if (!q)
        return;
    json_decref(q->types);
    quant_targets_free(q->targets);
    free(q->file);
    free(q);
}

enum quant_format quant_format(const struct quant *q)
{
    return q->format;
}

const char *quant_file(const struct quant *q)
{
    return q->file ? q->file : "";
}

const char *quant_entry(const struct quant *q, const char *tensor)
{
    return json_string_value(json_object_get(q->types, tensor));
}

const struct quant_targets *quant_targets(const struct quant *q)
{
    return q->targets;
}

json_t *quant_entries(const struct quant *q)
{
    return q->types;
}

static int settle(struct quant *q, enum quant_format f, const char *file, struct err *e)
{
    char *copy = strdup(file);

    if (!copy)
        return err_set(e, ERR_NOMEM, "no memory");
    free(q->file);
    q->file = copy;
    q->format = f;
    return 0;
}

static json_t *read_object(const char *text, size_t len, const char *file, struct err *e)
{
    json_error_t je;
    json_t *j = json_loadb(text ? text : "", len, 0, &je);

    if (j && json_is_object(j))
        return j;
    if (j)
        err_set(e, ERR_BADMSG, "%s: not a JSON object", file);
    else
        err_set(e, ERR_BADMSG, "%s: line %d: %s", file, je.line, je.text);
    json_decref(j);
    return NULL;
}

int quant_read_description(struct quant *q, const char *text, size_t len, const char *file,
                           struct err *e)
{
    json_t *j = read_object(text, len, file, e);
    int st;

    if (!j)
        return ERR_BADMSG;
    if ((st = settle(q, QUANT_ASCEND, file, e)) < 0) {
        json_decref(j);
        return st;
    }
    json_decref(q->types);
    q->types = j;
    return 0;
}

/* The string of a key, "" if it is absent or something else. */
static const char *text_of(const json_t *j, const char *key)
{
    const char *s = json_string_value(json_object_get(j, key));

    return s ? s : "";
}

static int read_fp8(const json_t *c, const char *file, struct err *e)
{
    const json_t *block = json_object_get(c, "weight_block_size");
    const char *fmt = text_of(c, "fmt"), *act = text_of(c, "activation_scheme");
    json_int_t rows = json_integer_value(json_array_get(block, 0));
    json_int_t cols = json_integer_value(json_array_get(block, 1));

    if (!json_is_array(block))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: \"quantization_config\": fp8 without \"weight_block_size\" (a scale a "
                       "tensor) is not supported; fp8 with blocks of [128, 128] is",
                       file);
    if (json_array_size(block) != 2 || rows != K_F8_BLOCK || cols != K_F8_BLOCK)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: \"quantization_config\": fp8 with \"weight_block_size\" [%lld, %lld] is "
            "not supported; [128, 128] is",
            file, (long long)rows, (long long)cols);
    if (*fmt && strcmp(fmt, "e4m3") != 0)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: \"quantization_config\": fp8 in format \"%.32s\" is not supported; e4m3 "
            "is",
            file, fmt);
    if (*act && strcmp(act, "dynamic") != 0)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: \"quantization_config\": fp8 with \"activation_scheme\" \"%.32s\" is not "
            "supported; dynamic is",
            file, act);
    return 0;
}

/* One side of a group of compressed-tensors: int8, symmetric, with the strategy. */
static int check_args(const json_t *a, const char *side, const char *strategy, bool dynamic,
                      const char *file, struct err *e)
{
    const char *type = text_of(a, "type"), *found = text_of(a, "strategy");
    json_int_t bits = json_integer_value(json_object_get(a, "num_bits"));

    if (!json_is_object(a))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: \"quantization_config\": a group without \"%s\" is not supported; int8 "
                       "weights with int8 activations are",
                       file, side);
    if (bits != 8 || strcmp(type, "int") != 0)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%s: \"quantization_config\": %s of %lld bits in \"%.32s\" are not supported; "
            "8 bits in int are",
            file, side, (long long)bits, type);
    if (strcmp(found, strategy) != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: \"quantization_config\": %s with strategy \"%.32s\" are not supported; "
                       "%s is",
                       file, side, found, strategy);
    if (!json_is_true(json_object_get(a, "symmetric")))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: \"quantization_config\": asymmetric %s are not supported; symmetric "
                       "ones are",
                       file, side);
    if (json_is_true(json_object_get(a, "dynamic")) != dynamic)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: \"quantization_config\": %s must have \"dynamic\" %s", file, side,
                       dynamic ? "true" : "false");
    return 0;
}

static int read_compressed(const json_t *c, const char *file, struct err *e)
{
    json_t *groups = json_object_get(c, "config_groups"), *g;
    const char *format = text_of(c, "format"), *name;
    int st;

    if (strcmp(format, "int-quantized") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: \"quantization_config\": compressed-tensors in format \"%.64s\" is not "
                       "supported; int-quantized (int8 weights, int8 activations) is",
                       file, format);
    if (json_object_size(groups) == 0)
        return err_set(e, ERR_BADMSG, "%s: \"quantization_config\" has no \"config_groups\"", file);
    json_object_foreach(groups, name, g)
    {
        if ((st = check_args(json_object_get(g, "weights"), "weights", "channel", false, file, e)) <
                0 ||
            (st = check_args(json_object_get(g, "input_activations"), "input_activations", "token",
                             true, file, e)) < 0)
            return st;
    }
    if (json_is_object(json_object_get(c, "kv_cache_scheme")))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: \"quantization_config\": \"kv_cache_scheme\" is not supported", file);
    return 0;
}

static int settle_compressed(struct quant *q, const json_t *c, const char *file, struct err *e)
{
    struct quant_targets *t;
    int st;

    if ((st = read_compressed(c, file, e)) < 0 || (st = quant_targets_read(&t, c, file, e)) < 0)
        return st;
    if ((st = settle(q, QUANT_COMPRESSED, file, e)) < 0) {
        quant_targets_free(t);
        return st;
    }
    quant_targets_free(q->targets);
    q->targets = t;
    return 0;
}

static int read_method(struct quant *q, const json_t *c, const char *file, struct err *e)
{
    const char *method = text_of(c, "quant_method");
    int st;

    if (strcmp(method, "fp8") == 0)
        return (st = read_fp8(c, file, e)) < 0 ? st : settle(q, QUANT_FP8, file, e);
    if (strcmp(method, "compressed-tensors") == 0)
        return settle_compressed(q, c, file, e);
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: \"quantization_config\" with method \"%.64s\" is not supported; supported "
                   "are fp8 and compressed-tensors, ModelSlim's quant_model_description.json, and "
                   "GGUF files",
                   file, *method ? method : "?");
}

int quant_read_config(struct quant *q, const char *text, size_t len, const char *overrides,
                      const char *file, struct err *e)
{
    json_t *j = read_object(text, len, file, e);
    const json_t *c;
    int st = 0;

    if (!j)
        return ERR_BADMSG;
    if (overrides && (st = config_override(j, overrides, e)) < 0)
        err_prefix(e, st, "--hf-overrides");
    c = json_object_get(j, "quantization_config");
    if (st == 0 && c && !json_is_null(c))
        st = read_method(q, c, file, e);
    json_decref(j);
    return st;
}

/* The description in a folder, by the names that the tool gives it: quant_model_description.json,
 * else the only quant_model_description_*.json; "" if there is none. */
static int find_description(char out[NAME_MAX + 1], const char *dir, struct err *e)
{
    static const char plain[] = "quant_model_description.json", head[] = "quant_model_description_";
    DIR *d = opendir(dir);
    bool is_plain = false;
    unsigned n = 0;
    struct dirent *de;

    *out = '\0';
    if (!d)
        return err_set(e, ERR_NOTFOUND, "%s: cannot open the folder", dir);
    while (!is_plain && (de = readdir(d))) {
        const char *end = strrchr(de->d_name, '.');

        is_plain = strcmp(de->d_name, plain) == 0;
        if (!is_plain &&
            (strncmp(de->d_name, head, sizeof head - 1) != 0 || !end || strcmp(end, ".json") != 0))
            continue;
        strcpy(out, de->d_name);
        n++;
    }
    closedir(d);
    if (is_plain || n < 2)
        return 0;
    return err_set(e, ERR_BADMSG,
                   "%s: %u files quant_model_description_*.json; call the one that counts %s", dir,
                   n, plain);
}

static int read_folder(struct quant *q, const char *dir, const char *description,
                       const char *overrides, struct err *e)
{
    struct map m = { 0 };
    char *path;
    int st;

    if (asprintf(&path, "%s/%s", dir, *description ? description : "config.json") < 0)
        return err_set(e, ERR_NOMEM, "no memory");
    if ((st = map_open(&m, path, e)) == 0)
        st = *description ? quant_read_description(q, (const char *)m.data, m.size, path, e)
                          : quant_read_config(q, (const char *)m.data, m.size, overrides, path, e);
    map_close(&m);
    free(path);
    return st;
}

int quant_open(struct quant **out, const char *dir, const char *overrides, struct err *e)
{
    struct quant *q = quant_new();
    char description[NAME_MAX + 1];
    int st;

    if (!q)
        return err_set(e, ERR_NOMEM, "no memory");
    if ((st = find_description(description, dir, e)) < 0 ||
        (st = read_folder(q, dir, description, overrides, e)) < 0) {
        quant_close(q);
        return st;
    }
    *out = q;
    return 0;
}

int quant_open_gguf(struct quant **out, const char *flag, const char *path, struct err *e)
{
    if (flag && strcmp(flag, "gguf") != 0)
        return err_set(e, ERR_MISMATCH,
                       "--quantization %s: %s is a GGUF file; pass --quantization gguf or leave it "
                       "out",
                       flag, path);
    *out = quant_new();
    return *out ? 0 : err_set(e, ERR_NOMEM, "no memory");
}

static int flag_against_none(const char *flag, const char *path, struct err *e)
{
    if (strcmp(flag, "ascend") == 0)
        return err_set(e, ERR_MISMATCH,
                       "--quantization ascend: %s has no quant_model_description.json, so its "
                       "weights are not ModelSlim's int8; leave --quantization out, or give the "
                       "folder of the W8A8 checkpoint",
                       path);
    return err_set(e, ERR_MISMATCH,
                   "--quantization %s: %s/config.json has no \"quantization_config\", so its "
                   "weights are not quantized; leave --quantization out, or give the folder of the "
                   "quantized checkpoint",
                   flag, path);
}

int quant_check_flag(const struct quant *q, const char *flag, const char *path, struct err *e)
{
    const char *found = quant_format_name(q->format);
    bool known = false;

    if (!flag || strcmp(flag, found) == 0)
        return 0;
    for (size_t i = 1; i < sizeof format_names / sizeof format_names[0]; i++)
        known = known || strcmp(flag, format_names[i]) == 0;
    if (q->format != QUANT_NONE)
        return err_set(e, ERR_MISMATCH,
                       "--quantization %s: %s is quantized as %s, by %s; pass --quantization %s or "
                       "leave it out",
                       flag, path, found, q->file, found);
    if (!known)
        return err_set(
            e, ERR_UNSUPPORTED,
            "--quantization %s is not supported; ascend, fp8 and compressed-tensors are, "
            "and %s is not quantized: leave it out",
            flag, path);
    return flag_against_none(flag, path, e);
}
