/* A GGUF file's metadata as the files of a HuggingFace folder. */
#ifndef SLUICE_OPS_HF_FILES_H
#define SLUICE_OPS_HF_FILES_H

#include <jansson.h>

#include "model/config.h"

struct err;
struct gguf;
struct outdir;

/* config.json; a new reference, NULL without memory. */
json_t *hf_config(const struct model_config *c);
/* tokenizer.json and tokenizer_config.json into the stage of dir. ERR_NOTFOUND if the file has no
 * tokenizer; ERR_UNSUPPORTED names one that is not byte-level BPE. */
int hf_write_tokenizer(struct outdir *dir, const struct gguf *g, struct err *e);

#endif
