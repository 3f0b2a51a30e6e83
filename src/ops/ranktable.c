#include "ops/ranktable.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "sys/map.h"
#include "sys/netif.h"

static int check_hosts(const struct ranktable_options *o, struct err *e)
{
    unsigned char bytes[sizeof(struct in6_addr)];

    if (o->n_hosts == 0 || o->n_hosts > RANKTABLE_MAX_HOSTS)
        return err_set(e, ERR_INVAL, "--ips: %zu hosts; 1 to %d are possible", o->n_hosts,
                       RANKTABLE_MAX_HOSTS);
    for (size_t i = 0; i < o->n_hosts; i++) {
        if (strlen(o->hosts[i]) >= RANKTABLE_HOST_MAX ||
            (inet_pton(AF_INET, o->hosts[i], bytes) != 1 &&
             inet_pton(AF_INET6, o->hosts[i], bytes) != 1))
            return err_set(e, ERR_INVAL,
                           "--ips: '%.100s' is no numeric address; put a blank between two",
                           o->hosts[i]);
        for (size_t k = 0; k < i; k++)
            if (strcmp(o->hosts[i], o->hosts[k]) == 0)
                return err_set(e, ERR_INVAL, "--ips: %s is there twice", o->hosts[i]);
    }
    return 0;
}

/* A table that is made on a host which is not in it would be of another deployment. */
static int check_local(const struct ranktable_options *o, struct err *e)
{
    char own[NETIF_LIST_MAX], address[NETIF_ADDRESS_MAX];

    netif_list(own);
    if (o->interface && netif_address(address, o->interface) < 0)
        return err_set(e, ERR_INVAL,
                       "--network-card-name: this host has no interface '%s' with an address; it "
                       "has %s",
                       o->interface, own);
    for (size_t i = 0; i < o->n_hosts; i++)
        if (netif_has(o->interface, o->hosts[i]))
            return 0;
    return err_set(e, ERR_INVAL, "--ips: none of the addresses is this host's%s%s; it has %s",
                   o->interface ? " on interface " : "", o->interface ? o->interface : "", own);
}

/* The ids of the devices of a host, as many as it has. */
static int read_ids(uint32_t *ids, const struct ranktable_options *o, struct err *e)
{
    const char *p = o->device_ids;
    uint32_t n = 0;

    for (uint32_t i = 0; !p && i < o->devices_per_host; i++)
        ids[i] = i;
    while (p) {
        char *end;
        unsigned long id = strtoul(p, &end, 10);

        if (end == p || *p < '0' || *p > '9' || (*end && *end != ',') || id > UINT16_MAX)
            return err_set(e, ERR_INVAL, "--local-device-ids: '%s' is no list like 0,1,2",
                           o->device_ids);
        for (uint32_t i = 0; i < n; i++)
            if (ids[i] == id)
                return err_set(e, ERR_INVAL, "--local-device-ids: device %lu is there twice", id);
        if (n == o->devices_per_host)
            return err_set(e, ERR_INVAL,
                           "--local-device-ids: '%s' has more devices than --npus-per-node %u",
                           o->device_ids, o->devices_per_host);
        ids[n++] = (uint32_t)id;
        p = *end ? end + 1 : NULL;
    }
    if (o->device_ids && n != o->devices_per_host)
        return err_set(e, ERR_INVAL, "--local-device-ids: %u devices, but --npus-per-node %u", n,
                       o->devices_per_host);
    return 0;
}

static int check_counts(const struct ranktable_options *o, struct err *e)
{
    uint64_t all = (uint64_t)o->n_hosts * o->devices_per_host;

    if (o->n_prefill == 0 || o->n_decode == 0 || (uint64_t)o->n_prefill + o->n_decode != all)
        return err_set(e, ERR_INVAL,
                       "--prefill-device-cnt %u and --decode-device-cnt %u do not add up to the "
                       "%llu devices of %zu hosts with --npus-per-node %u",
                       o->n_prefill, o->n_decode, (unsigned long long)all, o->n_hosts,
                       o->devices_per_host);
    if (o->n_prefill > RANKTABLE_MAX_DEVICES || o->n_decode > RANKTABLE_MAX_DEVICES)
        return err_set(e, ERR_INVAL, "%u and %u devices: a list has at most %d", o->n_prefill,
                       o->n_decode, RANKTABLE_MAX_DEVICES);
    return 0;
}

static void fill(struct ranktable *t, const struct ranktable_options *o, const uint32_t *ids)
{
    for (uint32_t i = 0; i < t->n_prefill + t->n_decode; i++) {
        const char *host = o->hosts[i / o->devices_per_host];
        struct ranktable_device *d = i < t->n_prefill ? &t->prefill[i]
                                                      : &t->decode[i - t->n_prefill];

        *d = (struct ranktable_device){ .device = ids[i % o->devices_per_host],
                                        .super_device = i,
                                        .cluster = i + 1 };
        snprintf(d->host, sizeof d->host, "%s", host);
        snprintf(d->address, sizeof d->address, "%s", host);
    }
}

int ranktable_make(struct ranktable *out, const struct ranktable_options *o, struct err *e)
{
    struct ranktable t = { .n_prefill = o->n_prefill, .n_decode = o->n_decode };
    uint32_t *ids;
    int st;

    if ((st = check_hosts(o, e)) < 0 || (st = check_local(o, e)) < 0 ||
        (st = check_counts(o, e)) < 0)
        return st;
    ids = calloc(o->devices_per_host, sizeof *ids);
    t.prefill = calloc(t.n_prefill, sizeof *t.prefill);
    t.decode = calloc(t.n_decode, sizeof *t.decode);
    if (!ids || !t.prefill || !t.decode)
        st = err_set(e, ERR_NOMEM, "no memory for a rank table");
    if (st == 0 && (st = read_ids(ids, o, e)) == 0)
        fill(&t, o, ids);
    free(ids);
    if (st < 0)
        ranktable_finish(&t);
    else
        *out = t;
    return st;
}

static int io_error(const char *what, const char *path, struct err *e)
{
    return err_set(e, ERR_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static int write_all(const char *path, const char *text, struct err *e)
{
    FILE *f = fopen(path, "w");
    bool ok;

    if (!f)
        return io_error("write", path, e);
    ok = fputs(text, f) >= 0 && fputc('\n', f) != EOF && fflush(f) == 0 && fsync(fileno(f)) == 0;
    if (fclose(f) != 0 || !ok)
        return io_error("write", path, e);
    return 0;
}

int ranktable_save(const struct ranktable *t, const char *path, struct err *e)
{
    char *text = ranktable_write(t), *next = NULL;
    int st;

    if (!text || asprintf(&next, "%s.new", path) < 0) {
        free(text);
        return err_set(e, ERR_NOMEM, "no memory for a rank table");
    }
    st = write_all(next, text, e);
    if (st == 0 && rename(next, path) < 0)
        st = io_error("replace", path, e);
    if (st < 0)
        unlink(next);
    free(next);
    free(text);
    return st;
}

int ranktable_load(struct ranktable *out, const char *path, struct err *e)
{
    struct map m = { 0 };
    struct hash256 hash;
    int st = map_open(&m, path, e);

    if (st < 0)
        return st;
    if (m.size > RANKTABLE_TEXT_MAX)
        st = err_set(e, ERR_LIMIT, "%zu bytes are too many", m.size);
    else
        st = ranktable_parse(out, (const char *)m.data, m.size, e);
    if (st < 0) {
        map_close(&m);
        return err_prefix(e, st, "%s", path);
    }
    hash_sha256(&hash, &(struct hash_part){ m.data, m.size }, 1);
    map_close(&m);
    log_info("rank table %s: %u devices prefill, %u decode; content %02x%02x%02x%02x", path,
             out->n_prefill, out->n_decode, hash.b[0], hash.b[1], hash.b[2], hash.b[3]);
    return 0;
}
