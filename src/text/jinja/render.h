/* One rendering: what the files that carry it out share. */
#ifndef SLUICE_TEXT_JINJA_RENDER_H
#define SLUICE_TEXT_JINJA_RENDER_H

#include "base/buf.h"
#include "text/jinja/ast.h"

#define RENDER_MAX_MEMORY (512u << 20) /* bytes of values */
#define RENDER_MAX_NESTED 600u         /* nodes within nodes, through macros too */
#define RENDER_MAX_NAMES  65536u       /* names bound at one time */

/* A name bound in a loop, macro or block. */
struct binding {
    uint32_t sym;
    struct value value;
};

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct render {
    const struct template *t;
    struct arena arena;
    struct buf *out;
    struct value *global;  /* by symbol: variables, functions, what the outermost level sets */
    struct binding *bound; /* malloc'ed; the innermost last */
    size_t n_bound, cap_bound;
    size_t frame; /* names of the innermost block begin here */
    size_t floor; /* names below are not seen: a macro sees no caller's */
    bool inner;   /* inside any block with names of its own */
    struct value captured;
    const struct value *now; /* seconds since 1970 for strftime_now, or NULL */
    enum flow flow;
    uint32_t steps, nested, line;
    struct err *e;
};

/* Set the error, with the line, and return status. */
int render_fail(struct render *r, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int render_no_memory(struct render *r); /* ERR_LIMIT: the bound of memory, or memory itself */
int render_undefined(struct render *r, const struct value *v); /* "'x' is undefined" */

int render_eval(struct render *r, const struct node *n, struct value *out);
int render_exec(struct render *r, const struct node *n);
/* Executes n and hands its output over as a string. */
int render_capture(struct render *r, const struct node *n, struct value *out);
/* A text in the arena. */
int render_string(struct render *r, const char *s, size_t n, struct value *out);
/* str(v); of a string itself. */
int render_text(struct render *r, const struct value *v, struct str *out);
/* Takes over what was written to b, and finishes it. */
int render_take(struct render *r, struct buf *b, struct value *out);

/* The items of a list, tuple, string, dict (its keys) or undefined (none). */
int render_items(struct render *r, const struct value *v, const struct value **items, size_t *n);

int render_attr(struct render *r, const struct value *object, const struct str *name,
                struct value *out);
int render_item(struct render *r, const struct value *object, const struct value *index,
                struct value *out);
/* part: start, stop, step; NONE: left out. */
int render_slice(struct render *r, const struct value *object, const struct value part[3],
                 struct value *out);
int render_binary(struct render *r, enum op op, const struct value *a, const struct value *b,
                  struct value *out);
int render_compare(struct render *r, enum op op, const struct value *a, const struct value *b,
                   bool *out);
/* "..." % values, the part that templates use: flags, width, precision; d i s r f x X %. */
int render_format(struct render *r, const struct str *format, const struct value *values, size_t n,
                  struct value *out);

#define ARGS_MAX 4 /* parameters of a builtin that names them */

struct args {
    const struct value *v[ARGS_MAX]; /* by parameter; NULL: not given */
    const struct value *pos;         /* as they were given */
    size_t n;
    const struct str *name;
    const struct value *named;
    size_t n_named;
};

/* Fills a->v from the others and calls. */
int render_call_builtin(struct render *r, const struct builtin *fn, const struct value *in,
                        struct args *a, struct value *out);
int render_call(struct render *r, const struct value *function, struct args *a, struct value *out);

/* Names. */
int render_bind(struct render *r, uint32_t sym, struct value v);   /* in the innermost block */
int render_assign(struct render *r, uint32_t sym, struct value v); /* {% set %} */
struct value render_lookup(const struct render *r, uint32_t sym, const struct str *name);

/* The members of `loop`: false if there is none of that name. */
bool render_loop_attr(const struct loop *l, const struct str *name, struct value *out);

#endif
