/* Command lines as tables: one line an option.
 *
 * Spelling as in vLLM's parser: --name value, --name=value, --name_with_underscores, -x value, -x=value,
 * lists (--hosts a b c), booleans --x / --no-x (also --x=true|false), JSON values, and dotted parts of
 * a JSON option (--kv-transfer-config.kv_role kv_both). An unknown flag is an error that names the
 * nearest known one; a dash that a word processor made an en dash is recognised and named. */
#ifndef SLUICE_BASE_OPTS_H
#define SLUICE_BASE_OPTS_H

#include <stdbool.h>
#include <stddef.h>

struct err;

enum opt_kind {
    OPT_FLAG, /* bool: present = true */
    OPT_BOOL, /* bool, with --no-name */
    OPT_INT,  /* int64_t; the words in `choices`, if any, read as -1 */
    OPT_SIZE, /* int64_t; also 4k, 1.5k (thousands), 4K, 2M, 1G (powers of 1024), as vLLM reads them;
                 * words as for OPT_INT */
    OPT_FLOAT,        /* double */
    OPT_STRING,       /* const char *, borrowed from argv */
    OPT_LIST,         /* struct opt_list; one or more values */
    OPT_JSON,         /* json_t *, an owned reference (NULL when not given) */
    OPT_IGNORED_FLAG, /* accepted without value, no effect: `note` says why; also --no-name */
    OPT_IGNORED,      /* accepted with a value (if one follows), no effect: `note` says why */
    OPT_IGNORED_LIST, /* the same with any number of values */
    OPT_REFUSED_FLAG, /* only --no-name (or =false) is accepted: `note` says why not */
    OPT_REFUSED,      /* only None or the text of `def` is accepted: `note` says why not */
    OPT_END
};

struct opt_list {
    const char **v; /* owned array of borrowed strings */
    size_t n;
};

struct opt_spec {
    const char *names; /* "--tensor-parallel-size -tp" */
    enum opt_kind kind;
    size_t offset;   /* of the value in the destination struct */
    const char *def; /* default as text, NULL: the zero value */
    const char
        *choices;    /* "auto float32 half", NULL: anything. "None" always stands for the default */
    double min, max; /* for numbers; both 0: anything */
    const char *note; /* IGNORED: why it has no effect. Else: help text */
};

/* Which options were given on the command line (by index in specs). */
struct opts_seen {
    bool *given; /* owned */
    size_t n;
};

/* Fills dest (all options of specs get their default first, then argv). Positional arguments go to
 * *positional (may be NULL: then one is an error). Options that have no effect are logged, one line each,
 * if given. specs ends with OPT_END. ERR_INVAL with a sentence. */
int opts_parse(const struct opt_spec *specs, void *dest, int argc, char **argv,
               struct opt_list *positional, struct opts_seen *seen, struct err *e);
/* Frees lists and JSON references in dest, and seen. */
void opts_finish(const struct opt_spec *specs, void *dest, struct opts_seen *seen);

bool opts_given(const struct opt_spec *specs, const struct opts_seen *seen, const char *name);

/* The options as a help text on stdout. */
void opts_help(const struct opt_spec *specs, const char *usage);

/* The name in specs nearest to `name` by edit distance; NULL if none is near. */
const char *opts_nearest(const struct opt_spec *specs, const char *name);
/* The same among n words, for the keys of JSON options. Borrowed from words. */
const char *opts_nearest_word(const char *const *words, size_t n, const char *name);

#endif
