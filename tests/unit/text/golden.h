/* The reference data beside the tree: ../shared, or where SLUICE_SHARED points. */
#ifndef SLUICE_TESTS_TEXT_GOLDEN_H
#define SLUICE_TESTS_TEXT_GOLDEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Is there any? A program without it exits with 77, which means skipped. */
bool golden_there(void);
/* "<shared>/golden/<name>"; NULL if it is not there. Owned by the caller. */
char *golden_path(const char *name);
/* The model file (SLUICE_MODEL, or the cache); NULL if it is not there. Owned by the caller. */
char *golden_model(void);
/* One JSON value, or an array of the lines of a .jsonl file; NULL if the file is not there. */
json_t *golden_json(const char *name);

/* The bytes of a file, NUL-terminated; NULL if it is not there. Owned by the caller. */
char *golden_read(const char *path, size_t *len);

/* Does encoding give these ids? */
bool golden_encodes(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                    const json_t *want);
/* Does decoding these ids give this text, in one piece, and token by token? */
bool golden_decodes(const struct tokenizer *t, const json_t *ids, bool skip_special,
                    const json_t *want);
/* Does every prefix of ids decode to the text of `prefix` at its place, in a stream? */
bool golden_streams(const struct tokenizer *t, const json_t *ids, const json_t *prefix);

#endif
