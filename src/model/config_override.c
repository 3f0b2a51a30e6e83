/* --hf-overrides: a JSON object over that of config.json. */
#include <jansson.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "model/config_json.h"

/* Nested no deeper than json_read allows. */
static int merge(json_t *into, json_t *over)
{
    const char *key;
    json_t *value;

    json_object_foreach(over, key, value)
    {
        json_t *old = json_object_get(into, key);

        if (json_is_object(old) && json_is_object(value)) {
            if (merge(old, value) < 0)
                return -1;
        } else if (json_object_set(into, key, value) < 0) {
            return -1;
        }
    }
    return 0;
}

int config_override(json_t *j, const char *text, struct err *e)
{
    json_t *over;
    int st = json_read(&over, text, strlen(text), NULL, e);

    if (st < 0)
        return st;
    if (!json_is_object(over))
        st = err_set(e, ERR_BADMSG,
                     "expected a JSON object like {\"rope_theta\": 10000}, found %.64s", text);
    else if (json_is_object(j) && merge(j, over) < 0)
        st = err_set(e, ERR_NOMEM, "no memory");
    json_decref(over);
    return st;
}
