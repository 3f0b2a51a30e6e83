/* Every tensor of a checkpoint by name, whichever container it came in: a GGUF file, or the
 * safetensors files of a HuggingFace folder. Names are HuggingFace's; a GGUF file's are translated
 * by the architecture's table. Files are mapped and stay so until weights_close. */
#ifndef SLUICE_MODEL_WEIGHTS_H
#define SLUICE_MODEL_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/tensor.h"

struct err;
struct gguf;
struct map;

#define WEIGHTS_MAX_FILES 4096

/* "blk.N.<gguf>" is "model.layers.N.<hf>" where layer is set, else whole names. */
struct weight_name {
    bool layer;
    const char *gguf;
    const char *hf;
};
extern const struct weight_name
    gguf_names[]; /* all that the architectures here have; ends with gguf NULL */

struct weight {
    struct tensor t;
    const char *file; /* path, for messages */
    const struct map *map;
    bool skip; /* belongs to a layer or an expert that this rank does not hold */
    bool used;
};

struct weights {
    struct weight *w; /* sorted by name */
    size_t n;
    struct weights_file *files;
    size_t n_files;
    char **own_names; /* [n]: translated names of a GGUF file, or NULL */
    const char *path; /* what was opened; borrowed */
    bool gguf;
    uint32_t first_layer, n_layers; /* what weights_select has kept */
};

/* path is a .gguf file. Names are the file's own until weights_translate, whose table ends with an
 * entry whose gguf is NULL; a name that is not in the table stays as it is. */
int weights_open_gguf(struct weights **out, const char *path, struct err *e);
int weights_translate(struct weights *w, const struct weight_name *names, struct err *e);
/* path is a folder: the files that its model.safetensors.index.json names, else all *.safetensors;
 * with quant_model_description*.json those of ModelSlim's index, else only quant_model_weight*, if
 * there are such. What is left out is logged. Each file that is named must be there and each tensor
 * in the file that is named for it. */
int weights_open_dir(struct weights **out, const char *path, struct err *e);
void weights_close(struct weights *w); /* NULL is fine */

/* The metadata of a GGUF checkpoint; NULL for a folder. */
const struct gguf *weights_gguf(const struct weights *w);

/* NULL if there is none of that name. */
struct weight *weights_find(const struct weights *w, const char *name);

/* The layer number in "model.layers.N....", or -1. */
long weights_layer_of(const char *name);
/* Marks what lies outside layers [first, first + n). */
void weights_select(struct weights *w, uint32_t first, uint32_t n);
/* Marks, of those experts that have tensors of their own, what lies outside [first, first + n). */
void weights_select_experts(struct weights *w, uint32_t first, uint32_t n);
/* ERR_BADMSG with file, tensor and layer if there are layers that the configuration does not
 * count: n_layers, and after them mtp_layers for drafts. One such layer is let pass where mtp_layers
 * is 0. What follows n_layers is a layer for drafts only if it has an eh_proj. */
int weights_check_layers(const struct weights *w, uint32_t n_layers, uint32_t mtp_layers,
                         struct err *e);
/* True if there is a layer of that number for drafts. */
bool weights_has_mtp(const struct weights *w, uint32_t layer);
/* Bytes of what is not marked. */
uint64_t weights_bytes(const struct weights *w);
/* "linears 211 Q4_1, 1 Q8_0" into out: what matrices are stored as. Returns out. */
const char *weights_types(char *out, size_t room, const struct weights *w);
/* True if two weights of one size have the same bytes. */
bool weights_same(const struct weight *a, const struct weight *b);
/* The pages of these of its bytes are not needed any more. */
void weights_drop(const struct weight *w, uint64_t from, uint64_t bytes);

#endif
