/* Values of a parsed config.json by key, and the parts of it that have a file of their own.
 * Inside the folder only.
 *
 * A key that is absent or null leaves *out alone and counts as 0; one that is there counts as 1;
 * a value of another type or range is ERR_BADMSG with the key's name. */
#ifndef SLUICE_MODEL_CONFIG_JSON_H
#define SLUICE_MODEL_CONFIG_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct err;
struct model_config;

int config_u32(const json_t *j, const char *key, uint32_t *out, struct err *e);
int config_f64(const json_t *j, const char *key, double *out, struct err *e);
int config_bool(const json_t *j, const char *key, bool *out, struct err *e);
/* 0, or ERR_BADMSG also where the key is absent. */
int config_need_u32(const json_t *j, const char *key, uint32_t *out, struct err *e);
/* The string of a key, "" if absent; NULL (with a sentence) if it is something else. */
const char *config_text(const json_t *j, const char *key, struct err *e);

/* Multi-head latent attention, mixture of experts, multi-token prediction: what config.json says of
 * them, checked. Needs the plain shapes of c. */
int config_read_latent(struct model_config *c, const json_t *j, struct err *e);
int config_read_experts(struct model_config *c, const json_t *j, struct err *e);

/* Puts the members of the JSON object `text` over those of j: objects are merged member by member,
 * all else is replaced. ERR_BADMSG if text is no object. */
int config_override(json_t *j, const char *text, struct err *e);

#endif
