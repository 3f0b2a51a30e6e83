/* Writes the tensors of a planned checkpoint, some rows at a time. */
#ifndef SLUICE_OPS_EMIT_H
#define SLUICE_OPS_EMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/intake.h"
#include "ops/plan.h"

struct err;
struct outdir;

/* Shards, their index and quant_model_description.json into the stage of dir. */
int emit(struct outdir *dir, const struct intake *in, const struct plan *p,
         uint64_t max_shard_bytes, bool quiet, struct err *e);

#endif
