#include "wire/ranktable.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"

/* Which entry a sentence is about. */
struct place {
    const char *list;
    size_t index;
};

static int bad(struct err *e, const struct place *p, const char *field, const char *why)
{
    return err_set(e, ERR_BADMSG, "rank table: %s[%zu]: \"%s\" %s", p->list, p->index, field, why);
}

/* A number, or the text of one. */
static int read_number(uint32_t *out, const json_t *entry, const struct place *p, const char *field,
                       struct err *e)
{
    const json_t *v = json_object_get(entry, field);
    const char *text = json_string_value(v);
    unsigned long long n;
    char *end;

    if (!v)
        return bad(e, p, field, "is missing");
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= UINT32_MAX) {
        *out = (uint32_t)json_integer_value(v);
        return 0;
    }
    if (!text || text[0] < '0' || text[0] > '9')
        return bad(e, p, field, "must be a number from 0 on");
    n = strtoull(text, &end, 10);
    if (*end || n > UINT32_MAX)
        return bad(e, p, field, "must be a number from 0 on");
    *out = (uint32_t)n;
    return 0;
}

static int read_address(char out[RANKTABLE_HOST_MAX], const json_t *entry, const struct place *p,
                        const char *field, struct err *e)
{
    const char *text = json_string_value(json_object_get(entry, field));
    unsigned char bytes[sizeof(struct in6_addr)];

    if (!text)
        return bad(e, p, field, "is missing, or no text");
    if (strlen(text) >= RANKTABLE_HOST_MAX ||
        (inet_pton(AF_INET, text, bytes) != 1 && inet_pton(AF_INET6, text, bytes) != 1))
        return bad(e, p, field, "is no numeric address");
    snprintf(out, RANKTABLE_HOST_MAX, "%s", text);
    return 0;
}

/* super_device_id is only there on hosts that belong to a pod, cluster_id only in newer tables. */
static int read_device(struct ranktable_device *d, const json_t *entry, const struct place *p,
                       uint32_t number, struct err *e)
{
    int st;

    if (!json_is_object(entry))
        return err_set(e, ERR_BADMSG, "rank table: %s[%zu] is no object", p->list, p->index);
    *d = (struct ranktable_device){ .super_device = number, .cluster = number + 1 };
    if ((st = read_address(d->host, entry, p, "server_id", e)) < 0 ||
        (st = read_number(&d->device, entry, p, "device_id", e)) < 0 ||
        (st = read_address(d->address, entry, p, "device_ip", e)) < 0)
        return st;
    if (json_object_get(entry, "super_device_id") &&
        (st = read_number(&d->super_device, entry, p, "super_device_id", e)) < 0)
        return st;
    return json_object_get(entry, "cluster_id")
               ? read_number(&d->cluster, entry, p, "cluster_id", e)
               : 0;
}

static int read_list(struct ranktable_device **out, uint32_t *n, const json_t *root,
                     const char *name, uint32_t first, struct err *e)
{
    const json_t *list = json_object_get(root, name), *entry;
    struct place p = { name, 0 };
    int st = 0;

    if (!json_is_array(list) || json_array_size(list) == 0)
        return err_set(e, ERR_BADMSG, "rank table: \"%s\" must be a list with an entry a device",
                       name);
    if (json_array_size(list) > RANKTABLE_MAX_DEVICES)
        return err_set(e, ERR_BADMSG, "rank table: \"%s\" has %zu entries, more than %d", name,
                       json_array_size(list), RANKTABLE_MAX_DEVICES);
    if (!(*out = calloc(json_array_size(list), sizeof **out)))
        return err_set(e, ERR_NOMEM, "no memory for a rank table");
    json_array_foreach(list, p.index, entry)
    {
        if (st == 0)
            st = read_device(&(*out)[p.index], entry, &p, first + (uint32_t)p.index, e);
    }
    *n = (uint32_t)json_array_size(list);
    return st;
}

static const struct ranktable_device *at(const struct ranktable *t, uint32_t i)
{
    return i < t->n_prefill ? &t->prefill[i] : &t->decode[i - t->n_prefill];
}

typedef int compare_fn(const void *a, const void *b);

static int by_device(const void *a, const void *b)
{
    const struct ranktable_device *x = *(const struct ranktable_device *const *)a;
    const struct ranktable_device *y = *(const struct ranktable_device *const *)b;
    int host = strcmp(x->host, y->host);

    return host ? host : (x->device > y->device) - (x->device < y->device);
}

static int by_super(const void *a, const void *b)
{
    const struct ranktable_device *x = *(const struct ranktable_device *const *)a;
    const struct ranktable_device *y = *(const struct ranktable_device *const *)b;

    return (x->super_device > y->super_device) - (x->super_device < y->super_device);
}

static int by_cluster(const void *a, const void *b)
{
    const struct ranktable_device *x = *(const struct ranktable_device *const *)a;
    const struct ranktable_device *y = *(const struct ranktable_device *const *)b;

    return (x->cluster > y->cluster) - (x->cluster < y->cluster);
}

static int check_unique(const struct ranktable *t, struct err *e)
{
    static const struct {
        compare_fn *compare;
        const char *what;
    } rules[] = {
        { by_device, "server_id and device_id" },
        { by_super, "super_device_id" },
        { by_cluster, "cluster_id" },
    };
    uint32_t n = t->n_prefill + t->n_decode;
    const struct ranktable_device **sorted = calloc(n, sizeof *sorted);
    int st = sorted ? 0 : err_set(e, ERR_NOMEM, "no memory for a rank table");

    for (size_t r = 0; st == 0 && r < sizeof rules / sizeof rules[0]; r++) {
        for (uint32_t i = 0; i < n; i++)
            sorted[i] = at(t, i);
        qsort(sorted, n, sizeof *sorted, rules[r].compare);
        for (uint32_t i = 1; st == 0 && i < n; i++)
            if (rules[r].compare(&sorted[i - 1], &sorted[i]) == 0)
                st = err_set(e, ERR_BADMSG,
                             "rank table: two devices have the same %s: device %u of %s and device "
                             "%u of %s",
                             rules[r].what, sorted[i - 1]->device, sorted[i - 1]->host,
                             sorted[i]->device, sorted[i]->host);
    }
    free(sorted);
    return st;
}

int ranktable_parse(struct ranktable *out, const char *text, size_t len, struct err *e)
{
    struct ranktable t = { 0 };
    json_t *root = NULL;
    int st;

    if ((st = json_read(&root, text, len, NULL, e)) < 0)
        return err_prefix(e, st, "rank table");
    if (!json_is_object(root))
        st = err_set(e, ERR_BADMSG, "rank table: not a JSON object");
    if (st == 0 &&
        (st = read_list(&t.prefill, &t.n_prefill, root, "prefill_device_list", 0, e)) == 0)
        st = read_list(&t.decode, &t.n_decode, root, "decode_device_list", t.n_prefill, e);
    if (st == 0)
        st = check_unique(&t, e);
    json_decref(root);
    if (st < 0)
        ranktable_finish(&t);
    else
        *out = t;
    return st;
}

void ranktable_finish(struct ranktable *t)
{
    free(t->prefill);
    free(t->decode);
    *t = (struct ranktable){ 0 };
}

static json_t *number(uint32_t n)
{
    return json_sprintf("%u", n);
}

static json_t *list_of(const struct ranktable_device *d, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list && i < n; i++) {
        json_t *entry = json_pack("{s:s, s:o, s:s, s:s, s:o, s:o}", "server_id", d[i].host,
                                  "device_id", number(d[i].device), "device_ip", d[i].address,
                                  "super_pod_id", "0", "super_device_id", number(d[i].super_device),
                                  "cluster_id", number(d[i].cluster));

        if (!entry || json_array_append_new(list, entry) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static uint32_t count_hosts(const struct ranktable *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n_prefill + t->n_decode; i++) {
        uint32_t k = 0;

        while (k < i && strcmp(at(t, k)->host, at(t, i)->host) != 0)
            k++;
        n += k == i;
    }
    return n;
}

char *ranktable_write(const struct ranktable *t)
{
    json_t *root = json_pack("{s:s, s:o, s:o, s:o, s:s}", "version", "1.2", "server_count",
                             number(count_hosts(t)), "prefill_device_list",
                             list_of(t->prefill, t->n_prefill), "decode_device_list",
                             list_of(t->decode, t->n_decode), "status", "completed");
    char *text = root ? json_dumps(root, JSON_INDENT(4)) : NULL;

    json_decref(root);
    return text;
}

static bool is_visible(uint32_t device, const uint32_t *visible, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (visible[i] == device)
            return true;
    return n == 0;
}

uint32_t ranktable_find(const struct ranktable *t, bool decode, const char *host,
                        const uint32_t *visible, uint32_t n_visible,
                        const struct ranktable_device **out, uint32_t max)
{
    const struct ranktable_device *d = decode ? t->decode : t->prefill;
    uint32_t n = decode ? t->n_decode : t->n_prefill, found = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(d[i].host, host) != 0 || !is_visible(d[i].device, visible, n_visible))
            continue;
        if (found < max)
            out[found] = &d[i];
        found++;
    }
    return found;
}
