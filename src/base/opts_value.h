/* Texts of a command line to values: the part of opts.c that knows kinds. */
#ifndef SLUICE_BASE_OPTS_VALUE_H
#define SLUICE_BASE_OPTS_VALUE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/opts.h"

struct err;

#define OPTS_MAX_NAME 64 /* bytes of an option's name */

/* Puts the default of every option into dest. ERR_NOMEM, or ERR_INVAL for a bad table. */
int opts_defaults(const struct opt_spec *specs, void *dest, struct err *e);

/* Stores one text as the option's value; `name` is how the user wrote the option. path is the dotted
 * part of a JSON option ("kv_role") or NULL. Lists are stored by opts_store_list. */
int opts_store(const struct opt_spec *s, void *dest, const char *name, const char *path,
               const char *text, struct err *e);
int opts_store_list(const struct opt_spec *s, void *dest, char **v, size_t n);

/* Frees the value of one option and sets it to the zero value. */
void opts_release(const struct opt_spec *s, void *dest);

/* Whether `word` stands in a list of words separated by blanks. */
bool opts_word_in(const char *words, const char *word);
/* Copies the next word to out; returns where to go on, NULL after the last. */
const char *opts_next_word(const char *words, char *out, size_t cap);
/* The first len bytes of a name with underscores as hyphens, cut to cap - 1. */
void opts_normalize(char *out, size_t cap, const char *name, size_t len);

#endif
