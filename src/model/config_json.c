/* The values of config.json's keys, with their types checked. */
#include <math.h>

#include "base/status.h"
#include "model/config_json.h"

int config_u32(const json_t *j, const char *key, uint32_t *out, struct err *e)
{
    const json_t *v = json_object_get(j, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
        return err_set(e, ERR_BADMSG, "\"%s\" must be a count below 2^32", key);
    *out = (uint32_t)json_integer_value(v);
    return 1;
}

int config_f64(const json_t *j, const char *key, double *out, struct err *e)
{
    const json_t *v = json_object_get(j, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return err_set(e, ERR_BADMSG, "\"%s\" must be a number", key);
    *out = json_number_value(v);
    return 1;
}

int config_bool(const json_t *j, const char *key, bool *out, struct err *e)
{
    const json_t *v = json_object_get(j, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return err_set(e, ERR_BADMSG, "\"%s\" must be true or false", key);
    *out = json_is_true(v);
    return 1;
}

int config_need_u32(const json_t *j, const char *key, uint32_t *out, struct err *e)
{
    int st = config_u32(j, key, out, e);

    return st == 0 ? err_set(e, ERR_BADMSG, "\"%s\" is missing", key) : st < 0 ? st : 0;
}

/* The string of a key, "" if absent; NULL (with a sentence) if it is something else. */
const char *config_text(const json_t *j, const char *key, struct err *e)
{
    const json_t *v = json_object_get(j, key);

    if (!v || json_is_null(v))
        return "";
    if (!json_is_string(v))
        err_set(e, ERR_BADMSG, "\"%s\" must be a string", key);
    return json_string_value(v);
}
