/* The folder that a tool writes: everything is made in a folder of its own inside it and moved into
 * place at the end, config.json last, so that what looks like a model is one. */
#ifndef SLUICE_OPS_OUTDIR_H
#define SLUICE_OPS_OUTDIR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct err;
struct outdir;

/* Makes the folder if it is not there. ERR_EXISTS if it holds anything, unless `force`: then a
 * checkpoint that stands in it is replaced at the commit (its files, not the folder). ERR_IO. */
int outdir_create(struct outdir **out, const char *path, bool force, struct err *e);
/* Removes what was not committed, and the folder too if it was made here. NULL is fine. */
void outdir_destroy(struct outdir *o);

/* Where the files are written until the commit. Borrowed. */
const char *outdir_stage(const struct outdir *o);
/* A file of these bytes. ERR_IO names it and says why. */
int outdir_write(struct outdir *o, const char *name, const void *data, size_t n, struct err *e);
/* The same of a JSON value, indented, with a line end. */
int outdir_write_json(struct outdir *o, const char *name, const json_t *j, struct err *e);
/* from/name copied; ERR_NOTFOUND if there is none. */
int outdir_copy(struct outdir *o, const char *from, const char *name, struct err *e);
/* Those of the files of a tokenizer that `from` has; *n counts them. */
int outdir_copy_tokenizer(struct outdir *o, const char *from, unsigned *n, struct err *e);
/* Moves everything into place. Nothing is left to undo afterwards. */
int outdir_commit(struct outdir *o, struct err *e);

#endif
