/* Defaults for sampling that come with a model: generation_config.json. */
#ifndef SLUICE_SERVE_GENCONF_H
#define SLUICE_SERVE_GENCONF_H

#include <stdint.h>

#include "wire/sampling.h"

struct err;
struct serve_config;

/* Fills *s (initialised here) and *max_tokens (0: none) as --generation-config and
 * --override-generation-config say. A model's folder without the file changes nothing; a folder that was
 * named without it is ERR_NOTFOUND, a broken file ERR_BADMSG with its path. */
int genconf_load(const struct serve_config *cfg, struct sampling *s, uint32_t *max_tokens,
                 struct err *e);

#endif
