/* How the linears of a HuggingFace folder are quantized: what the files say, and what each tensor
 * must be and have because of it. Inside the folder only.
 *
 * Three formats besides none:
 *   ascend              ModelSlim's int8; quant_model_description.json gives a type for every tensor
 *   fp8                 e4m3 with a scale for each 128 x 128; config.json's quantization_config
 *   compressed-tensors  int8 with a scale a row and a token; config.json's quantization_config
 * A GGUF file's blocks are no format here: each tensor's own type says all. */
#ifndef SLUICE_MODEL_QUANT_H
#define SLUICE_MODEL_QUANT_H

#include <stdbool.h>
#include <stddef.h>

#include "model/weights.h"

struct err;

enum quant_format { QUANT_NONE, QUANT_ASCEND, QUANT_FP8, QUANT_COMPRESSED };
/* "none", "ascend", "fp8", "compressed-tensors": what --quantization calls it. */
const char *quant_format_name(enum quant_format f);

/* How one linear is stored. */
enum quant_type {
    QUANT_FLOAT,
    QUANT_W8A8,         /* int8, activations with one scale and offset found by calibration */
    QUANT_W8A8_DYNAMIC, /* int8, activations with a scale a token */
    QUANT_INT8_CHANNEL, /* the same as compressed-tensors has it */
    QUANT_FP8_BLOCK,
    QUANT_TYPES
};
const char *quant_type_name(enum quant_type t);

struct quant;

/* Reads a folder's quant_model_description*.json and config.json. A description wins over a
 * quantization_config (it was left over from what the checkpoint was made of). overrides: NULL, or a
 * JSON object over config.json's. ERR_BADMSG, ERR_UNSUPPORTED with the file and the scheme by name. */
int quant_open(struct quant **out, const char *dir, const char *overrides, struct err *e);
/* The two parsers by themselves; file goes into messages. Each fills q only on success;
 * quant_read_config leaves it alone where there is no quantization_config. */
int quant_read_description(struct quant *q, const char *text, size_t len, const char *file,
                           struct err *e);
int quant_read_config(struct quant *q, const char *text, size_t len, const char *overrides,
                      const char *file, struct err *e);
/* For a GGUF file: a quant that says none. ERR_MISMATCH for a flag other than NULL or gguf. */
int quant_open_gguf(struct quant **out, const char *flag, const char *path, struct err *e);
/* A quant that says none; NULL without memory. */
struct quant *quant_new(void);
void quant_close(struct quant *q); /* NULL is fine */

enum quant_format quant_format(const struct quant *q);
/* The file that says so: "" for QUANT_NONE. */
const char *quant_file(const struct quant *q);

/* Which linears compressed-tensors' configuration means; NULL for other formats. Inside the
 * quantization files only. */
struct quant_targets;
const struct quant_targets *quant_targets(const struct quant *q);

/* What ModelSlim's description says of a tensor, NULL if nothing. */
const char *quant_entry(const struct quant *q, const char *tensor);
/* All that it says, tensor -> type, and a few entries of another kind; borrowed, NULL if there is no
 * description. Inside the quantization files only. */
struct json_t *quant_entries(const struct quant *q);

/* Whether --quantization's value (NULL: as found) names what was found; else ERR_MISMATCH with what
 * to pass instead. */
int quant_check_flag(const struct quant *q, const char *flag, const char *path, struct err *e);

/* How a matrix is stored, from the description and from its own dtype; a contradiction is
 * ERR_BADMSG, a scheme that is not here ERR_UNSUPPORTED. */
int quant_type_of(const struct quant *q, const struct weight *w, enum quant_type *out,
                  struct err *e);

/* A tensor that stands beside a quantized weight: "<layer>.<suffix>". */
#define QUANT_MAX_SIDES 7
struct quant_side {
    const char *suffix;
    enum {
        QUANT_NEEDED,
        QUANT_MAYBE,   /* not needed, and not used where something else says the same */
        QUANT_MAYBE_0, /* not needed, and all zeros: symmetric */
    } rule;
};
/* Those of a type, ended by one whose suffix is NULL. */
const struct quant_side *quant_sides(enum quant_type t);
/* "<layer>.<suffix>" of "<layer>.weight" into out. NULL if the name is no weight's. */
const char *quant_side_name(char out[TENSOR_MAX_NAME], const char *weight, const char *suffix);

/* Every matrix of the layers that are not skipped: its type, and that nothing it needs is missing.
 * Then that every tensor of these layers that a description has an entry for is there: an offset or
 * a norm's bias may be absent only where it has none. All missing tensors are named, up to
 * QUANT_MAX_NAMED. */
#define QUANT_MAX_NAMED 6
struct quant_count {
    size_t n[QUANT_TYPES]; /* linears of each type */
};
int quant_check(const struct quant *q, const struct weights *w, struct quant_count *out,
                struct err *e);

/* "quantized as ascend (file): 12 linears W8A8, 30 W8A8_DYNAMIC, 5 FLOAT" into out. Returns out. */
#define QUANT_TEXT 512
const char *quant_text(char out[QUANT_TEXT], const struct quant *q, const struct quant_count *n);
/* What a person should hear: int8 scales where float16 is asked for, which NPUs cannot serve. False
 * if there is nothing. dtype "": unknown; from: who asks, as the sentence begins ("--dtype half"). */
bool quant_warning(char out[QUANT_TEXT], const struct quant *q, const struct quant_count *n,
                   const char *dtype, const char *from);

#endif
