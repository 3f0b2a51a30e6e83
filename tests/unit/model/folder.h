/* A model folder made by a test: tensors and texts in a temporary directory. */
#ifndef SLUICE_TESTS_MODEL_FOLDER_H
#define SLUICE_TESTS_MODEL_FOLDER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct folder {
    char path[64];
    json_t *header; /* of the safetensors file in the making */
    struct buf data;
    size_t pad; /* blanks at the header's end: where the data begin */
};

/* Ends the test program if something fails that is not what is tested. */
void folder_make(struct folder *f);
/* One more tensor: rows x cols of a dtype whose numbers are `size` bytes each; rows 0: a vector of
 * cols. The same name again replaces what it was. */
void folder_add(struct folder *f, const char *name, const char *dtype, size_t size, uint64_t rows,
                uint64_t cols, const void *data);
void folder_drop(struct folder *f, const char *name);
/* Writes the tensors as a file; they stay for the next. */
void folder_write(struct folder *f, const char *name);
void folder_text(const struct folder *f, const char *name, const char *text);
/* Everything in it goes. */
void folder_clear(struct folder *f);
void folder_remove(struct folder *f);

#endif
