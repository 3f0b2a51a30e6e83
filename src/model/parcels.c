#include "model/parcels.h"

#include <stdlib.h>

#include "base/status.h"

int parcels_create(struct parcels *p, uint32_t ranks)
{
    p->at = calloc(ranks, sizeof *p->at);
    p->bytes = calloc(ranks, sizeof *p->bytes);
    return p->at && p->bytes ? 0 : ERR_NOMEM;
}

void parcels_destroy(struct parcels *p)
{
    free(p->at);
    free(p->bytes);
    *p = (struct parcels){ 0 };
}

void parcels_set(const struct parcels *p, uint32_t r, size_t at, size_t bytes)
{
    p->at[r] = at;
    p->bytes[r] = bytes;
}
