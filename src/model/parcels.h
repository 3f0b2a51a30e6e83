/* Where the pieces of an exchange stand in a buffer, one a rank: what the verbs of model_peers
 * take. Inside the folder only. */
#ifndef SLUICE_MODEL_PARCELS_H
#define SLUICE_MODEL_PARCELS_H

#include <stddef.h>
#include <stdint.h>

struct parcels {
    size_t *at, *bytes; /* [ranks] */
};

/* On failure (ERR_NOMEM) parcels_destroy is due all the same. */
int parcels_create(struct parcels *p, uint32_t ranks);
void parcels_destroy(struct parcels *p); /* zeros are fine */
/* The r-th of them. */
void parcels_set(const struct parcels *p, uint32_t r, size_t at, size_t bytes);

#endif
