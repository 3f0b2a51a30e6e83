/* GET /v1/models and GET /v1/models/{id}. */
#include <stdio.h>
#include <string.h>

#include "base/rand.h"
#include "net/http_server.h"
#include "serve/gen.h"
#include "sys/clock.h"

static json_t *permission(int64_t now)
{
    char id[32] = "modelperm-";

    rand_hex(id + strlen(id), 8);
    return json_pack("{ss ss sI sb sb sb sb sb sb ss sn sb}", "id", id, "object",
                     "model_permission", "created", (json_int_t)now, "allow_create_engine", 0,
                     "allow_sampling", 1, "allow_logprobs", 1, "allow_search_indices", 0,
                     "allow_view", 1, "allow_fine_tuning", 0, "organization", "*", "group",
                     "is_blocking", 0);
}

static json_t *card(const struct serve *s, const char *name)
{
    int64_t now = (int64_t)clock_wall();

    return json_pack("{ss ss sI ss ss sn si s[o]}", "id", name, "object", "model", "created",
                     (json_int_t)now, "owned_by", "sluice", "root", s->cfg->model, "parent",
                     "max_model_len", (int)s->info.max_model_len, "permission", permission(now));
}

void on_models(struct serve *s, struct http_req *r)
{
    const struct opt_list *names = &s->cfg->served_names;
    json_t *data = json_array();

    for (size_t i = 0; i < names->n; i++)
        json_array_append_new(data, card(s, names->v[i]));
    if (names->n == 0)
        json_array_append_new(data, card(s, s->model_name));
    api_reply_json(s, r, 200, json_pack("{ss so}", "object", "list", "data", data));
}

void on_model(struct serve *s, struct http_req *r)
{
    const char *at = strstr(http_path(r), "/v1/models/"), *name = at ? at + 11 : "";
    struct oai_error e;

    if (request_model_ok(s, name)) {
        api_reply_json(s, r, 200, card(s, name));
        return;
    }
    oai_fail(&e, 404, oai_error_type(404), "model",
             "the model '%.200s' is not served here; /v1/models lists what is", name);
    api_reply_error(s, r, &e);
}
