/* Names of files in a folder, each once. Inside the folder only. */
#ifndef SLUICE_MODEL_FILE_LIST_H
#define SLUICE_MODEL_FILE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "model/weights.h"

struct buf;
struct err;

struct file_list {
    char *name[WEIGHTS_MAX_FILES];
    size_t n;
};

/* Empty; NULL without memory. */
struct file_list *file_list_new(void);
void file_list_free(struct file_list *l); /* NULL is fine */

/* ERR_LIMIT beyond WEIGHTS_MAX_FILES, ERR_NOMEM. */
int file_list_add(struct file_list *l, const char *name, struct err *e);
/* Adds the names in dir with the given start and end, and sorts. */
int file_list_dir(struct file_list *l, const char *dir, const char *head, const char *tail,
                  struct err *e);
void file_list_sort(struct file_list *l);
bool file_list_has(const struct file_list *l, const char *name);

/* Puts the names of a that are not in b into out, the first FILE_LIST_NAMED of them; returns how many
 * there are. */
#define FILE_LIST_NAMED 4
size_t file_list_others(struct buf *out, const struct file_list *a, const struct file_list *b);

#endif
