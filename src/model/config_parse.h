/* model_config from the two places where it is written. Pure: bytes or a parsed file in, a checked
 * configuration out. Inside the folder only. */
#ifndef SLUICE_MODEL_CONFIG_PARSE_H
#define SLUICE_MODEL_CONFIG_PARSE_H

#include <stddef.h>

#include "model/config.h"

struct err;
struct gguf;

/* Named maxima: what lies above is a damaged file, not a model. */
#define MODEL_MAX_HIDDEN   (1u << 20)
#define MODEL_MAX_HEADS    4096
#define MODEL_MAX_HEAD_DIM 4096
#define MODEL_MAX_VOCAB    (1u << 24)
#define MODEL_MAX_POSITION (1u << 28)
#define MODEL_MAX_MTP      16

/* The bytes of config.json, and of generation_config.json (NULL: none), whose end tokens win.
 * overrides is a JSON object over config.json's (NULL: none). ERR_BADMSG with the key and the
 * value; ERR_UNSUPPORTED for a rope type or an activation by name. */
int config_from_json(struct model_config *out, const char *json, size_t len, const char *gen,
                     size_t gen_len, const char *overrides, struct err *e);

/* arch is the HuggingFace name that goes into out->arch, prefix the one before the file's keys
 * ("llama"). */
int config_from_gguf(struct model_config *out, const struct gguf *g, const char *arch,
                     const char *prefix, struct err *e);

/* What must hold wherever it came from. ERR_BADMSG with the name and the value. */
int config_check(const struct model_config *c, struct err *e);
int config_check_blocks(const struct model_config *c, struct err *e); /* a part of it */

/* kv_heads and head_dim of latent attention, from the sizes that it has. */
void config_latent_heads(struct model_config *c);
/* The layer has no experts. */
void config_set_dense(struct model_config *c, uint32_t layer);

#endif
