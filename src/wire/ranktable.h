/* Rank tables: which devices of which hosts prefill and which decode, in one file that all instances of
 * a deployment read (the LLMDataDist connector's format, version 1.2). A device is what one rank
 * computes on; on a machine without accelerators its number only says which rank is meant. Pure.
 *
 *     { "version": "1.2", "server_count": "2", "status": "completed",
 *       "prefill_device_list": [ { "server_id": "10.0.0.1", "device_id": "0", "device_ip": "10.0.0.1",
 *                                  "super_pod_id": "0", "super_device_id": "0", "cluster_id": "1" } ],
 *       "decode_device_list": [ ... ] }
 *
 * Numbers may be numbers or text. */
#ifndef SLUICE_WIRE_RANKTABLE_H
#define SLUICE_WIRE_RANKTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

#define RANKTABLE_MAX_DEVICES 65536
#define RANKTABLE_TEXT_MAX    (64u << 20) /* bytes of a file */
#define RANKTABLE_HOST_MAX    64

struct ranktable_device {
    char host[RANKTABLE_HOST_MAX];    /* server_id: numeric address of its host */
    char address[RANKTABLE_HOST_MAX]; /* device_ip: its own */
    uint32_t device;                  /* device_id: number on its host */
    uint32_t super_device;            /* super_device_id: number in its pod */
    uint32_t cluster;                 /* cluster_id: number in the deployment */
};

struct ranktable {
    struct ranktable_device *prefill, *decode; /* owned */
    uint32_t n_prefill, n_decode;
};

/* ERR_BADMSG, with the list, the entry and the field: not JSON, a field that is missing or of a wrong
 * type, a host and device that occur twice, a cluster_id or super_device_id that does. ERR_NOMEM. */
int ranktable_parse(struct ranktable *out, const char *text, size_t len, struct err *e);
void ranktable_finish(struct ranktable *t); /* zeros are fine */

/* The text of a table, NUL-terminated; free() it. NULL without memory. */
char *ranktable_write(const struct ranktable *t);

/* The devices of one host that have a role, restricted to visible (n_visible 0: all). Writes up to
 * max of them; returns how many there are. */
uint32_t ranktable_find(const struct ranktable *t, bool decode, const char *host,
                        const uint32_t *visible, uint32_t n_visible,
                        const struct ranktable_device **out, uint32_t max);

#endif
