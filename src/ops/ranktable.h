/* sluice ranktable: writes the table of devices that the instances of a deployment with the LLMDataDist
 * connector read (wire/ranktable.h). */
#ifndef SLUICE_OPS_RANKTABLE_H
#define SLUICE_OPS_RANKTABLE_H

#include <stddef.h>
#include <stdint.h>

#include "wire/ranktable.h"

struct err;

#define RANKTABLE_MAX_HOSTS 4096

/* Devices are numbered host by host in the order of `hosts`: the first n_prefill of them prefill, the
 * n_decode after them decode. */
struct ranktable_options {
    const char *const *hosts; /* numeric addresses */
    size_t n_hosts;
    uint32_t devices_per_host;
    const char *device_ids; /* "0,2,3": those that are used on each host; NULL: 0, 1, 2 .. */
    const char *interface;  /* this host's, which must own one of the addresses; NULL: any */
    uint32_t n_prefill, n_decode;
};

/* ERR_INVAL with a sentence: an address that occurs twice or is none, none that is this host's, device
 * ids that occur twice or are not devices_per_host many, counts that do not add up. */
int ranktable_make(struct ranktable *out, const struct ranktable_options *o, struct err *e);

/* Writes the table so that a reader sees the old file or the whole new one. ERR_IO. */
int ranktable_save(const struct ranktable *t, const char *path, struct err *e);
/* Reads and checks a table, and logs its path with the hash of its content. */
int ranktable_load(struct ranktable *out, const char *path, struct err *e);

#endif
