/* Values of a template while it is rendered, with Python's behaviour: what is true, what is equal, how
 * it is written. Everything lives in the rendering's arena or is borrowed from the variables. */
#ifndef SLUICE_TEXT_JINJA_VALUE_H
#define SLUICE_TEXT_JINJA_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct buf;
struct render;
struct args;

enum kind {
    UNDEFINED, /* str: the name that was not found */
    NONE,
    BOOL,
    INT,
    FLOAT,
    STRING,
    LIST,
    TUPLE, /* a list that is written with parentheses */
    DICT,
    NAMESPACE, /* a dict whose members are attributes */
    LOOP,      /* the variable `loop` */
    MACRO,
    FUNCTION, /* range, namespace, ... */
    METHOD,   /* a method taken from its object: "".split */
};

struct str {
    const char *s; /* not always NUL-terminated */
    size_t n;
};

struct value {
    enum kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct str str;
        struct list *list;
        struct dict *dict;
        struct loop *loop;
        const struct macro *macro;
        const struct builtin *fn;
        struct method *method;
    };
};

struct list {
    struct value *v;
    size_t n, cap;
};

struct dict {
    struct value *key, *val;
    size_t n, cap;
};

struct loop {
    const struct value *item; /* all items */
    size_t n, at;
    struct value changed; /* what loop.changed() saw last */
};

/* A filter, test, function or method. in is what it is applied to. 0, or an error that is already set. */
typedef int builtin_fn(struct render *r, const struct value *in, const struct args *a,
                       struct value *out);
struct builtin {
    const char *name;
    builtin_fn *fn;
    const char *params; /* their names, separated by blanks; NULL: none; "*": any */
};

struct method {
    struct value self;
    const struct builtin *fn;
};

#define VALUE_MAX_ITEMS 1000000u /* of a list that a template makes */

static inline struct value value_bool(bool b)
{
    return (struct value){ .kind = BOOL, .b = b };
}

static inline struct value value_int(int64_t i)
{
    return (struct value){ .kind = INT, .i = i };
}

static inline struct value value_str(const char *s, size_t n)
{
    return (struct value){ .kind = STRING, .str = { s, n } };
}

static inline bool is_seq(const struct value *v)
{
    return v->kind == LIST || v->kind == TUPLE;
}

static inline bool is_number(const struct value *v)
{
    return v->kind == BOOL || v->kind == INT || v->kind == FLOAT;
}

/* INT or BOOL; *i is its number. */
bool value_as_int(const struct value *v, int64_t *i);
double value_as_double(const struct value *v); /* of a number */

bool value_is(const struct value *v, const char *text); /* a string equal to text */
bool value_truth(const struct value *v);
bool value_equal(const struct value *a, const struct value *b);
/* Less, equal or greater in *order (-1, 0, 1); false if Python could not tell. */
bool value_order(const struct value *a, const struct value *b, int *order);
/* Python's name of the type. */
const char *value_type(const struct value *v);

/* Writes str(v) or repr(v). Returns buf's status. */
int value_write(struct buf *out, const struct value *v);
int value_write_repr(struct buf *out, const struct value *v, int depth);
int value_write_double(struct buf *out, double f);
/* Python's json.dumps(v, ensure_ascii=False, indent=indent); indent below 0: one line. ERR_INVAL for
 * what JSON cannot say, with Python's name of its type in *type. */
int value_write_json(struct buf *out, const struct value *v, int indent, int depth,
                     const char **type);

/* A value from JSON; strings are borrowed. ERR_NOMEM, or ERR_LIMIT for too deep nesting. */
int value_from_json(struct arena *a, json_t *j, int depth, struct value *out);

/* Empty ones; NULL without memory. */
struct list *list_new(struct arena *a, size_t cap);
struct dict *dict_new(struct arena *a, size_t cap);
int list_push(struct arena *a, struct list *l, struct value v);
/* Replaces or adds. */
int dict_set(struct arena *a, struct dict *d, struct value key, struct value val);
const struct value *dict_find(const struct dict *d, const struct value *key); /* NULL: none */
const struct value *dict_find_text(const struct dict *d, const char *s, size_t n);

#endif
