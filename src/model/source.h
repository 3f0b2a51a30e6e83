/* What stands at a path: a GGUF file or a HuggingFace folder, and which architecture is in it.
 * Inside the folder only. */
#ifndef SLUICE_MODEL_SOURCE_H
#define SLUICE_MODEL_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include "model/config.h"

struct arch;
struct err;
struct gguf;

/* ERR_NOTFOUND if there is nothing at path. */
int source_is_gguf(bool *out, const char *path, struct err *e);

/* The architecture and the checked configuration. ERR_UNSUPPORTED names the architecture and those
 * that are supported. */
int source_from_gguf(const struct arch **arch, struct model_config *out, const struct gguf *g,
                     struct err *e);
int source_from_dir(const struct arch **arch, struct model_config *out, const char *dir,
                    const char *overrides, struct err *e);

/* What there is to say of the configuration of a folder that was read before. */
struct config_notes;
void source_notes(struct config_notes *out, const char *dir, const char *overrides);

/* The architecture's table by the name in a GGUF file (not terminated); NULL if there is none. */
const struct arch *arch_by_gguf(const char *name, size_t n);
const struct arch *arch_by_hf(const char *name);

#endif
