#include "wire/kv_bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* ---- addresses ---- */

static int bad_address(struct err *e, const char *text, const char *scheme)
{
    return err_set(e, ERR_INVAL, "'%.200s' is not %s%shost:port", text, scheme ? scheme : "",
                   scheme ? "://" : "");
}

/* What stands behind the scheme, or NULL. */
static const char *after_scheme(const char *text, const char *scheme)
{
    const char *sep = strstr(text, "://");

    if (!sep)
        return text;
    if (!scheme || (size_t)(sep - text) != strlen(scheme) ||
        strncmp(text, scheme, strlen(scheme)) != 0)
        return NULL;
    return sep + 3;
}

/* The end of the host that starts at text, brackets included; NULL if there is no port behind it. */
static const char *host_end(const char *text)
{
    const char *end = text[0] == '[' ? strchr(text, ']') : strchr(text, ':');

    if (end && text[0] == '[')
        end++;
    return end && *end == ':' ? end : NULL;
}

int kv_address_parse(char *host, uint16_t *port, const char *text, const char *scheme,
                     struct err *e)
{
    const char *at = after_scheme(text, scheme), *colon = at ? host_end(at) : NULL;
    size_t len = colon ? (size_t)(colon - at) : 0;
    unsigned long n;
    char *end;

    if (!colon || colon[1] < '0' || colon[1] > '9')
        return bad_address(e, text, scheme);
    n = strtoul(colon + 1, &end, 10);
    if (at[0] == '[') {
        at++;
        len -= 2;
    }
    if (len == 0 || len >= KV_PARAMS_HOST_MAX || n == 0 || n > UINT16_MAX ||
        (*end != '\0' && *end != '/') || (*end == '/' && !scheme))
        return bad_address(e, text, scheme);
    memcpy(host, at, len);
    host[len] = '\0';
    *port = (uint16_t)n;
    return 0;
}

/* ---- /query ---- */

json_t *kv_bootstrap_encode(const struct kv_bootstrap *b)
{
    char address[KV_PARAMS_HOST_MAX + 24];
    bool v6 = strchr(b->host, ':') != NULL;

    snprintf(address, sizeof address, "tcp://%s%s%s:%u", v6 ? "[" : "", b->host, v6 ? "]" : "",
             b->port);
    return json_pack("{s{ss s{s{ss}} sI}}", "0", "engine_id", b->engine_id, "worker_addr", "0", "0",
                     address, "block_size", (json_int_t)b->block_size);
}

static const char *engine_of(const json_t *rank)
{
    return json_string_value(json_object_get(rank, "engine_id"));
}

/* Borrowed; NULL if none is meant. */
static const json_t *choose_rank(const json_t *reply, const char *engine_id)
{
    json_t *ranks = (json_t *)(uintptr_t)reply; /* iterating changes nothing */
    const json_t *only = json_object_iter_value(json_object_iter(ranks));
    const char *key;
    json_t *rank;

    json_object_foreach(ranks, key, rank)
    {
        const char *id = engine_of(rank);

        if (id && engine_id[0] && strcmp(id, engine_id) == 0)
            return rank;
    }
    return json_object_size(reply) == 1 || !engine_id[0] ? only : NULL;
}

int kv_bootstrap_decode(struct kv_bootstrap *out, const json_t *reply, const char *engine_id,
                        struct err *e)
{
    const json_t *rank = choose_rank(reply, engine_id);
    const json_t *workers = json_object_get(rank, "worker_addr");
    const char *address = json_string_value(json_object_get(json_object_get(workers, "0"), "0"));
    json_int_t block = json_integer_value(json_object_get(rank, "block_size"));
    struct kv_bootstrap b = { .block_size = block > 0 && block < UINT32_MAX ? (uint32_t)block : 0 };
    const char *id = engine_of(rank);
    int st;

    if (!json_is_object(reply))
        return err_set(e, ERR_BADMSG, "the answer is no object of ranks");
    if (!rank)
        return err_set(e, ERR_NOTFOUND, "no engine '%.128s' is there", engine_id);
    if (!id || strlen(id) >= sizeof b.engine_id || !address)
        return err_set(e, ERR_BADMSG, "the answer has no engine_id or no worker_addr");
    if ((st = kv_address_parse(b.host, &b.port, address, "tcp", e)) < 0)
        return st;
    strcpy(b.engine_id, id);
    *out = b;
    return 0;
}
