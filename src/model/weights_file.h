/* How a table of weights is built from files. Inside the folder only. */
#ifndef SLUICE_MODEL_WEIGHTS_FILE_H
#define SLUICE_MODEL_WEIGHTS_FILE_H

#include "model/weights.h"
#include "sys/map.h"

struct gguf;
struct safetensors;

struct weights_file {
    char *path;
    struct map map;
    struct gguf *gguf; /* one of the two */
    struct safetensors *st;
};

/* Empty, with room for max_files; path is borrowed. NULL without memory. */
struct weights *weights_new(const char *path, size_t max_files);
/* Sorts by name, and refuses a name that two files have. */
int weights_sort(struct weights *w, struct err *e);
int weights_no_memory(struct err *e);

#endif
