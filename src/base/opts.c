#include "base/opts.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/opts_value.h"
#include "base/status.h"

struct parse {
    const struct opt_spec *specs;
    void *dest;
    int argc;
    char **argv;
    int i; /* the next argument */
    struct opts_seen *seen;
    struct opt_list *positional;
    struct err *e;
};

/* How an argument names an option. */
struct match {
    const struct opt_spec *spec;
    bool negated;      /* --no-name */
    const char *path;  /* after the dot of a JSON option, or NULL. Borrowed from argv or `name` */
    const char *value; /* after '=', or NULL */
    char name[256];    /* as the user wrote it, without the value */
};

static bool takes_no(const struct opt_spec *s)
{
    return s->kind == OPT_BOOL || s->kind == OPT_IGNORED_FLAG || s->kind == OPT_REFUSED_FLAG;
}

static bool is_switch(const struct opt_spec *s)
{
    return takes_no(s) || s->kind == OPT_FLAG;
}

/* An option begins with a dash and is not a negative number. */
static bool is_option(const char *arg)
{
    char *end;

    if (arg[0] != '-' || arg[1] == '\0')
        return false;
    (void)strtod(arg, &end);
    return *end != '\0';
}

/* The typographic dash at p: its name, or NULL. */
static const char *dash_name(const char *p)
{
    if (strncmp(p, "\xe2\x80\x93", 3) == 0)
        return "an en dash (U+2013)";
    if (strncmp(p, "\xe2\x80\x94", 3) == 0)
        return "an em dash (U+2014)";
    if (strncmp(p, "\xe2\x88\x92", 3) == 0)
        return "a minus sign (U+2212)";
    return NULL;
}

/* A dash that a word processor put in. Looked for at the beginning of any argument, and in the name
 * of an option, where no other character of that kind can be meant. */
static int check_dashes(const char *arg, int index, struct err *e)
{
    char name[OPTS_MAX_NAME] = "";
    size_t n = 0;
    const char *found = dash_name(arg);

    if (!found && arg[0] != '-')
        return 0;
    for (const char *p = arg; *p && *p != '=' && *p != '{' && n < sizeof name - 1;) {
        const char *d = dash_name(p);

        if (d)
            found = d;
        if (d || *p == '-') {
            if (n > 0 && name[n - 1] != '-')
                name[n++] = '-';
            p += d ? 3 : 1;
        } else {
            name[n++] = *p++;
        }
    }
    name[n] = '\0';
    if (!found)
        return 0;
    return err_set(
        e, ERR_INVAL,
        "argument %d, '%s', has %s where a hyphen belongs, as word processors put it in: "
        "write '--%s'",
        index, arg, found, name);
}

static const struct opt_spec *find(const struct opt_spec *specs, const char *name)
{
    for (const struct opt_spec *s = specs; s->kind != OPT_END; s++)
        if (opts_word_in(s->names, name))
            return s;
    return NULL;
}

/* An option as written, also --no-name for one that can be switched off. */
static const struct opt_spec *find_either(const struct opt_spec *specs, const char *name,
                                          bool *negated)
{
    const struct opt_spec *s = find(specs, name);
    char positive[OPTS_MAX_NAME];

    *negated = false;
    if (s || strncmp(name, "--no-", 5) != 0)
        return s;
    snprintf(positive, sizeof positive, "--%s", name + 5);
    s = find(specs, positive);
    if (!s || !takes_no(s))
        return NULL;
    *negated = true;
    return s;
}

static int unknown(struct parse *p, const char *name)
{
    const char *near = opts_nearest(p->specs, name);

    if (near)
        return err_set(p->e, ERR_INVAL, "unknown option '%s'; did you mean '%s'?", name, near);
    return err_set(p->e, ERR_INVAL, "unknown option '%s'; --help lists them all", name);
}

static int match_option(struct parse *p, struct match *m, const char *arg)
{
    size_t len = strcspn(arg, "=");
    char plain[OPTS_MAX_NAME];
    const char *dot;

    *m = (struct match){ .value = arg[len] ? arg + len + 1 : NULL };
    snprintf(m->name, sizeof m->name, "%.*s", (int)len, arg);
    opts_normalize(plain, sizeof plain, arg, len);
    m->spec = find_either(p->specs, plain, &m->negated);
    if (m->spec)
        return 0;
    dot = strchr(m->name, '.');
    if (dot) {
        opts_normalize(plain, sizeof plain, m->name, (size_t)(dot - m->name));
        m->spec = find(p->specs, plain);
        m->path = dot + 1;
        if (m->spec && m->spec->kind != OPT_JSON && m->spec->kind != OPT_IGNORED &&
            m->spec->kind != OPT_REFUSED)
            return err_set(p->e, ERR_INVAL, "%s: only options with a JSON value have parts",
                           m->name);
    }
    return m->spec ? 0 : unknown(p, m->name);
}

/* The value of m: after '=', else the next argument. */
static int take_value(struct parse *p, struct match *m, const char **out)
{
    bool may_be_absent = m->spec->kind == OPT_IGNORED;

    if (m->value) {
        *out = m->value;
    } else if (p->i < p->argc && !is_option(p->argv[p->i])) {
        int st = check_dashes(p->argv[p->i], p->i, p->e);

        if (st < 0)
            return st;
        *out = p->argv[p->i++];
    } else if (may_be_absent) {
        *out = NULL;
    } else {
        return err_set(p->e, ERR_INVAL, "%s needs a value", m->name);
    }
    return 0;
}

static int set_switch(struct parse *p, struct match *m)
{
    const struct opt_spec *s = m->spec;
    bool on = !m->negated;

    if (m->value) {
        struct opt_spec as_bool = { .names = s->names, .kind = OPT_BOOL };
        int st = opts_store(&as_bool, &on, m->name, NULL, m->value, p->e);

        if (st < 0)
            return st;
        on = on != m->negated;
    }
    if (s->kind == OPT_REFUSED_FLAG && on)
        return err_set(p->e, ERR_INVAL, "%s: %s", m->name, s->note);
    if (s->kind == OPT_FLAG || s->kind == OPT_BOOL)
        *(bool *)((char *)p->dest + s->offset) = on;
    return 0;
}

static int set_list(struct parse *p, struct match *m)
{
    int first = p->i, st;
    char *one[1];

    if (m->value) {
        union {
            const char *in;
            char *out;
        } borrowed = { .in = m->value };

        one[0] = borrowed.out;
        return m->spec->kind == OPT_LIST ? opts_store_list(m->spec, p->dest, one, 1) : 0;
    }
    for (; p->i < p->argc && !is_option(p->argv[p->i]); p->i++)
        if ((st = check_dashes(p->argv[p->i], p->i, p->e)) < 0)
            return st;
    if (m->spec->kind != OPT_LIST)
        return 0;
    if (p->i == first)
        return err_set(p->e, ERR_INVAL, "%s needs one or more values", m->name);
    return opts_store_list(m->spec, p->dest, p->argv + first, (size_t)(p->i - first));
}

/* "None" is how vLLM's documents write "not given". */
static int set_value(struct parse *p, struct match *m)
{
    const char *text = NULL, *def = m->spec->def;
    int st = take_value(p, m, &text);

    if (st < 0 || !text)
        return st;
    if (strcmp(text, "None") == 0 && !m->path) {
        opts_release(m->spec, p->dest);
        if (m->spec->kind == OPT_STRING)
            *(const char **)((char *)p->dest + m->spec->offset) = def;
        return m->spec->kind > OPT_FLOAT || !def
                   ? 0
                   : opts_store(m->spec, p->dest, m->name, NULL, def, p->e);
    }
    return opts_store(m->spec, p->dest, m->name, m->path, text, p->e);
}

static void note_no_effect(const struct match *m)
{
    const struct opt_spec *s = m->spec;

    if (s->kind == OPT_IGNORED || s->kind == OPT_IGNORED_FLAG || s->kind == OPT_IGNORED_LIST)
        log_info("%s has no effect: %s", m->name, s->note);
}

static int one_option(struct parse *p, const char *arg)
{
    struct match m;
    int st;

    if ((st = match_option(p, &m, arg)) < 0)
        return st;
    if (is_switch(m.spec))
        st = set_switch(p, &m);
    else if (m.spec->kind == OPT_LIST || m.spec->kind == OPT_IGNORED_LIST)
        st = set_list(p, &m);
    else
        st = set_value(p, &m);
    if (st < 0)
        return st;
    if (p->seen)
        p->seen->given[m.spec - p->specs] = true;
    note_no_effect(&m);
    return 0;
}

static int one_positional(struct parse *p, const char *arg)
{
    struct opt_list *l = p->positional;
    const char **v;

    if (!l)
        return err_set(p->e, ERR_INVAL, "unexpected argument '%s'", arg);
    v = realloc(l->v, (l->n + 1) * sizeof *v);
    if (!v)
        return ERR_NOMEM;
    v[l->n] = arg;
    *l = (struct opt_list){ v, l->n + 1 };
    return 0;
}

static int parse_all(struct parse *p)
{
    bool only_positional = false;
    int st = 0;

    while (p->i < p->argc && st == 0) {
        const char *arg = p->argv[p->i++];

        if (!only_positional && strcmp(arg, "--") == 0) {
            only_positional = true;
            continue;
        }
        if (!only_positional && (st = check_dashes(arg, p->i - 1, p->e)) < 0)
            break;
        st = only_positional || !is_option(arg) ? one_positional(p, arg) : one_option(p, arg);
    }
    return st;
}

int opts_parse(const struct opt_spec *specs, void *dest, int argc, char **argv,
               struct opt_list *positional, struct opts_seen *seen, struct err *e)
{
    struct parse p = { specs, dest, argc, argv, 0, seen, positional, e };
    size_t n = 0;
    int st;

    while (specs[n].kind != OPT_END)
        n++;
    if (positional)
        *positional = (struct opt_list){ 0 };
    if (seen) {
        *seen = (struct opts_seen){ calloc(n + 1, sizeof(bool)), n };
        if (!seen->given)
            return ERR_NOMEM;
    }
    if ((st = opts_defaults(specs, dest, e)) == 0)
        st = parse_all(&p);
    if (st < 0) {
        opts_finish(specs, dest, seen);
        if (positional) {
            free(positional->v);
            *positional = (struct opt_list){ 0 };
        }
    }
    return st;
}

void opts_finish(const struct opt_spec *specs, void *dest, struct opts_seen *seen)
{
    for (const struct opt_spec *s = specs; s->kind != OPT_END; s++)
        opts_release(s, dest);
    if (seen) {
        free(seen->given);
        *seen = (struct opts_seen){ 0 };
    }
}

bool opts_given(const struct opt_spec *specs, const struct opts_seen *seen, const char *name)
{
    const struct opt_spec *s = find(specs, name);

    assert(s);
    return seen->given[s - specs];
}
