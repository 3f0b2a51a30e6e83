/* The tables of what templates can call; each row names the parameters. */
#ifndef SLUICE_TEXT_JINJA_BUILTINS_H
#define SLUICE_TEXT_JINJA_BUILTINS_H

#include "text/jinja/render.h"

/* The head of a filter, test, function or method. */
#define BUILTIN(name)                                                                              \
    static int name(struct render *r, const struct value *in, const struct args *a,                \
                    struct value *out)

/* The end of a table is a row without name. */
extern const struct builtin text_filters[];                                 /* filters_text.c */
extern const struct builtin sequence_filters[];                             /* filters_seq.c */
extern const struct builtin select_filters[];                               /* filters_select.c */
extern const struct builtin tests[];                                        /* tests.c */
extern const struct builtin functions[];                                    /* functions.c */
extern const struct builtin string_methods[];                               /* methods.c */
extern const struct builtin dict_methods[], list_methods[], loop_methods[]; /* methods_other.c */

/* The value of parameter i as text, integer or truth, with a default. */
int arg_text(struct render *r, const struct args *a, int i, const char *def, struct str *out);
int arg_int(struct render *r, const struct args *a, int i, int64_t def, int64_t *out);
bool arg_truth(const struct args *a, int i, bool def);

/* in as a string, or an error that names `what`. */
int need_string(struct render *r, const char *what, const struct value *in, struct str *out);

/* What strip removes: side is 1 (left), 2 (right) or 3; chars with s NULL: white space. */
struct str strip_text(const struct str *s, const struct str *chars, int side);
/* s with the first `count` (below 0: all) occurrences of from replaced. */
int replace_text(struct render *r, const struct str *s, const struct str *from,
                 const struct str *to, int64_t count, struct value *out);
enum letter_case {
    CASE_UPPER,
    CASE_LOWER,
    CASE_CAPITALIZE, /* the first character is upper case, the rest lower */
    CASE_TITLE,      /* the method title: every letter after what is no letter */
    CASE_WORDS,      /* the filter title: after white space, - ( { [ and < only */
};
int change_case(struct render *r, const struct str *s, enum letter_case how, struct value *out);

/* An attribute by a dotted path ("function.name"), or an index. */
int attr_path(struct render *r, const struct value *object, const struct value *path,
              struct value *out);
/* A list of what a sequence holds. */
int list_of(struct render *r, const struct value *v, struct list **out);

#endif
