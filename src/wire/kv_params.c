#include "wire/kv_params.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static int wrong(struct err *e, const char *member, const char *wanted)
{
    return err_set(e, ERR_BADMSG, "kv_transfer_params.%s must be %s", member, wanted);
}

static int get_bool(bool *out, const json_t *obj, const char *member, struct err *e)
{
    const json_t *v = json_object_get(obj, member);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return wrong(e, member, "true, false or null");
    *out = json_is_true(v);
    return 0;
}

/* A string below cap bytes. Numbers are taken too: engine ids are often written as such. */
static int get_text(char *out, size_t cap, const json_t *obj, const char *member, struct err *e)
{
    const json_t *v = json_object_get(obj, member);

    if (!v || json_is_null(v))
        return 0;
    if (json_is_integer(v)) {
        snprintf(out, cap, "%lld", (long long)json_integer_value(v));
        return 0;
    }
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return wrong(e, member, "a string or null");
    if (json_string_length(v) >= cap)
        return err_set(e, ERR_LIMIT, "kv_transfer_params.%s is longer than %zu bytes", member,
                       cap - 1);
    memcpy(out, json_string_value(v), json_string_length(v) + 1);
    return 0;
}

/* A whole number in min..max; digits in a string are taken too, as ports are often written. */
static int get_number(int64_t *out, const json_t *obj, const char *member, int64_t min, int64_t max,
                      struct err *e)
{
    const json_t *v = json_object_get(obj, member);
    int64_t n;

    if (!v || json_is_null(v))
        return 0;
    if (json_is_integer(v)) {
        n = json_integer_value(v);
    } else if (json_is_string(v) && json_string_length(v) > 0) {
        char *end;

        n = strtoll(json_string_value(v), &end, 10);
        if (*end)
            return wrong(e, member, "a whole number or null");
    } else {
        return wrong(e, member, "a whole number or null");
    }
    if (n < min || n > max)
        return err_set(e, ERR_BADMSG, "kv_transfer_params.%s: %lld is not in %lld..%lld", member,
                       (long long)n, (long long)min, (long long)max);
    *out = n;
    return 0;
}

static int get_u32(uint32_t *out, const json_t *obj, const char *member, int64_t min, struct err *e)
{
    int64_t n = *out;
    int st = get_number(&n, obj, member, min, UINT32_MAX, e);

    *out = (uint32_t)n;
    return st;
}

/* [ids], or [[ids]] as peers with several cache groups write it, of which we know one. */
static int get_blocks(struct kv_params *p, const json_t *obj, struct err *e)
{
    const json_t *list = json_object_get(obj, "remote_block_ids"), *v;
    size_t n, i;

    if (!list || json_is_null(list))
        return 0;
    if (json_array_size(list) == 1 && json_is_array(json_array_get(list, 0)))
        list = json_array_get(list, 0);
    if (!json_is_array(list))
        return wrong(e, "remote_block_ids", "a list of block ids or null");
    n = json_array_size(list);
    if (n > KV_PARAMS_MAX_BLOCKS)
        return err_set(e, ERR_LIMIT,
                       "kv_transfer_params.remote_block_ids has %zu entries, at most %u", n,
                       KV_PARAMS_MAX_BLOCKS);
    p->remote_block_ids = malloc((n ? n : 1) * sizeof *p->remote_block_ids);
    if (!p->remote_block_ids)
        return ERR_NOMEM;
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_integer_value(v);

        if (!json_is_integer(v) || id < 0 || id > UINT32_MAX)
            return err_set(e, ERR_BADMSG, "kv_transfer_params.remote_block_ids[%zu] is no block id",
                           i);
        p->remote_block_ids[i] = (uint32_t)id;
    }
    p->n_blocks = (uint32_t)n;
    return 0;
}

static int get_output(struct kv_params *p, const json_t *obj, struct err *e)
{
    const json_t *list = json_object_get(obj, "output_token_ids"), *v;
    size_t n = json_array_size(list), i;

    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return wrong(e, "output_token_ids", "a list of token ids or null");
    if (n > KV_PARAMS_MAX_OUTPUT)
        return err_set(e, ERR_LIMIT,
                       "kv_transfer_params.output_token_ids has %zu entries, at most %u", n,
                       KV_PARAMS_MAX_OUTPUT);
    if (n > 0 && !(p->output_ids = malloc(n * sizeof *p->output_ids)))
        return ERR_NOMEM;
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_integer_value(v);

        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return err_set(e, ERR_BADMSG, "kv_transfer_params.output_token_ids[%zu] is no token id",
                           i);
        p->output_ids[i] = (int32_t)id;
    }
    p->n_output = (uint32_t)n;
    return 0;
}

static int decode(struct kv_params *p, const json_t *obj, struct err *e)
{
    int64_t port = 0, last = -1;
    int st;

    if ((st = get_bool(&p->do_remote_decode, obj, "do_remote_decode", e)) < 0 ||
        (st = get_bool(&p->do_remote_prefill, obj, "do_remote_prefill", e)) < 0 ||
        (st = get_text(p->remote_engine_id, sizeof p->remote_engine_id, obj, "remote_engine_id",
                       e)) < 0 ||
        (st = get_text(p->remote_request_id, sizeof p->remote_request_id, obj, "remote_request_id",
                       e)) < 0 ||
        (st = get_text(p->transfer_id, sizeof p->transfer_id, obj, "transfer_id", e)) < 0 ||
        (st = get_text(p->remote_bootstrap_addr, sizeof p->remote_bootstrap_addr, obj,
                       "remote_bootstrap_addr", e)) < 0 ||
        (st = get_text(p->remote_host, sizeof p->remote_host, obj, "remote_host", e)) < 0 ||
        (st = get_number(&port, obj, "remote_port", 0, UINT16_MAX, e)) < 0 ||
        (st = get_blocks(p, obj, e)) < 0 || (st = get_output(p, obj, e)) < 0 ||
        (st = get_u32(&p->remote_block_size, obj, "remote_block_size", 0, e)) < 0 ||
        (st = get_u32(&p->num_prompt_blocks, obj, "num_prompt_blocks", 0, e)) < 0 ||
        (st = get_u32(&p->remote_ptp_size, obj, "remote_ptp_size", 1, e)) < 0 ||
        (st = get_u32(&p->remote_pp_size, obj, "remote_pp_size", 1, e)) < 0 ||
        (st = get_number(&last, obj, "last_token_id", -1, INT32_MAX, e)) < 0)
        return st;
    if (p->do_remote_decode && p->do_remote_prefill)
        return err_set(e, ERR_BADMSG,
                       "kv_transfer_params: do_remote_decode and do_remote_prefill are both true");
    p->remote_port = (uint16_t)port;
    p->last_token_id = (int32_t)last;
    return 0;
}

int kv_params_decode(struct kv_params *out, const json_t *obj, struct err *e)
{
    struct kv_params p = { .remote_ptp_size = 1, .remote_pp_size = 1, .last_token_id = -1 };
    int st;

    if (!json_is_object(obj))
        return err_set(e, ERR_BADMSG, "kv_transfer_params must be an object");
    if ((st = decode(&p, obj, e)) < 0) {
        kv_params_finish(&p);
        return st;
    }
    *out = p;
    return 0;
}

static json_t *text_or_null(const char *text)
{
    return text[0] ? json_string(text) : json_null();
}

static json_t *encode_blocks(const struct kv_params *p)
{
    json_t *list;

    if (!p->remote_block_ids)
        return json_null();
    if (!(list = json_array()))
        return NULL;
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        if (json_array_append_new(list, json_integer(p->remote_block_ids[i])) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

json_t *kv_params_encode(const struct kv_params *p)
{
    json_t *o = json_object();

    /* A setter with a NULL value fails, so each line also checks its constructor. */
    if (!o || json_object_set_new(o, "do_remote_prefill", json_boolean(p->do_remote_prefill)) < 0 ||
        json_object_set_new(o, "do_remote_decode", json_boolean(p->do_remote_decode)) < 0 ||
        json_object_set_new(o, "remote_engine_id", text_or_null(p->remote_engine_id)) < 0 ||
        json_object_set_new(o, "remote_request_id", text_or_null(p->remote_request_id)) < 0 ||
        json_object_set_new(o, "remote_block_ids", encode_blocks(p)) < 0 ||
        json_object_set_new(o, "remote_host", text_or_null(p->remote_host)) < 0 ||
        json_object_set_new(o, "remote_port", json_integer(p->remote_port)) < 0 ||
        json_object_set_new(o, "remote_block_size", json_integer(p->remote_block_size)) < 0 ||
        json_object_set_new(o, "num_prompt_blocks", json_integer(p->num_prompt_blocks)) < 0 ||
        json_object_set_new(o, "remote_ptp_size", json_integer(p->remote_ptp_size)) < 0 ||
        json_object_set_new(o, "remote_pp_size", json_integer(p->remote_pp_size)) < 0 ||
        json_object_set_new(o, "last_token_id", json_integer(p->last_token_id)) < 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

int kv_params_copy(struct kv_params *dst, const struct kv_params *src)
{
    struct kv_params p = *src;

    p.remote_block_ids = NULL;
    p.output_ids = NULL;
    if (src->n_output) {
        p.output_ids = malloc(src->n_output * sizeof *p.output_ids);
        if (!p.output_ids)
            return ERR_NOMEM;
        memcpy(p.output_ids, src->output_ids, src->n_output * sizeof *p.output_ids);
    }
    if (src->remote_block_ids) {
        size_t n = src->n_blocks ? src->n_blocks : 1;

        p.remote_block_ids = malloc(n * sizeof *p.remote_block_ids);
        if (!p.remote_block_ids) {
            free(p.output_ids);
            return ERR_NOMEM;
        }
        memcpy(p.remote_block_ids, src->remote_block_ids,
               src->n_blocks * sizeof *p.remote_block_ids);
    }
    *dst = p;
    return 0;
}

void kv_params_finish(struct kv_params *p)
{
    free(p->remote_block_ids);
    free(p->output_ids);
    *p = (struct kv_params){ 0 };
}
