#include "base/opts_value.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"

const char *opts_next_word(const char *words, char *out, size_t cap)
{
    size_t n;

    words += strspn(words, " ");
    n = strcspn(words, " ");
    if (n == 0)
        return NULL;
    n = n < cap ? n : cap - 1;
    memcpy(out, words, n);
    out[n] = '\0';
    return words + n;
}

bool opts_word_in(const char *words, const char *word)
{
    char w[OPTS_MAX_NAME];

    while (words && (words = opts_next_word(words, w, sizeof w)))
        if (strcmp(w, word) == 0)
            return true;
    return false;
}

void opts_normalize(char *out, size_t cap, const char *arg, size_t len)
{
    size_t n = len < cap ? len : cap - 1;

    for (size_t i = 0; i < n; i++)
        out[i] = arg[i] == '_' ? '-' : arg[i];
    out[n] = '\0';
}

static void *slot(const struct opt_spec *s, void *dest)
{
    return (char *)dest + s->offset;
}

void opts_release(const struct opt_spec *s, void *dest)
{
    if (s->kind == OPT_LIST) {
        struct opt_list *l = slot(s, dest);

        free(l->v);
        *l = (struct opt_list){ 0 };
    } else if (s->kind == OPT_JSON) {
        json_t **j = slot(s, dest);

        json_decref(*j);
        *j = NULL;
    }
}

int opts_store_list(const struct opt_spec *s, void *dest, char **v, size_t n)
{
    struct opt_list *l = slot(s, dest);
    const char **copy = malloc((n ? n : 1) * sizeof *copy);

    if (!copy)
        return ERR_NOMEM;
    for (size_t i = 0; i < n; i++)
        copy[i] = v[i];
    free(l->v);
    *l = (struct opt_list){ copy, n };
    return 0;
}

static int bad_choice(const struct opt_spec *s, const char *name, const char *text, struct err *e)
{
    return err_set(e, ERR_INVAL, "%s: '%s' is not one of: %s", name, text, s->choices);
}

static int check_range(const struct opt_spec *s, const char *name, const char *text, double v,
                       struct err *e)
{
    if ((s->min == 0 && s->max == 0) || (v >= s->min && v <= s->max))
        return 0;
    if (isinf(s->max))
        return err_set(e, ERR_INVAL, "%s: %s is too small, the least is %g", name, text, s->min);
    return err_set(e, ERR_INVAL, "%s: %s is not in %g..%g", name, text, s->min, s->max);
}

/* The factor of a size suffix; 0 for none. Small letters count in thousands, capitals in 1024s. */
static int64_t size_factor(const char *suffix)
{
    static const char small[] = "kmgt", capital[] = "KMGT";
    int64_t f = 1;

    if (suffix[0] == '\0' || suffix[1] != '\0')
        return 0;
    for (int i = 0; i < 4; i++) {
        f *= 1000;
        if (suffix[0] == small[i])
            return f;
    }
    f = 1;
    for (int i = 0; i < 4; i++) {
        f *= 1024;
        if (suffix[0] == capital[i])
            return f;
    }
    return 0;
}

/* A size with a suffix: "4k", "1.5M". False for anything else, and where no whole number results. */
static bool parse_suffixed(int64_t *out, const char *text)
{
    char *end;
    double v = strtod(text, &end);
    int64_t f = size_factor(end);

    if (end == text || f == 0 || !isfinite(v))
        return false;
    v *= (double)f;
    if (v != floor(v) || fabs(v) >= 0x1p62)
        return false;
    *out = (int64_t)v;
    return true;
}

static int store_int(const struct opt_spec *s, int64_t *out, const char *name, const char *text,
                     struct err *e)
{
    char *end;
    int64_t v;

    if (s->choices && opts_word_in(s->choices, text)) {
        *out = -1;
        return 0;
    }
    errno = 0;
    v = strtoll(text, &end, 10);
    if (errno || end == text || *end) {
        if (s->kind != OPT_SIZE || !parse_suffixed(&v, text))
            return err_set(e, ERR_INVAL, "%s: '%s' is not %s%s%s", name, text,
                           s->kind == OPT_SIZE ? "a whole number (with k, m, g, K, M or G)"
                                               : "a whole number",
                           s->choices ? ", nor one of: " : "", s->choices ? s->choices : "");
    }
    int st = check_range(s, name, text, (double)v, e);
    if (st == 0)
        *out = v;
    return st;
}

static int store_float(const struct opt_spec *s, double *out, const char *name, const char *text,
                       struct err *e)
{
    char *end;
    double v = strtod(text, &end);
    int st;

    if (end == text || *end || !isfinite(v))
        return err_set(e, ERR_INVAL, "%s: '%s' is not a number", name, text);
    if ((st = check_range(s, name, text, v, e)) == 0)
        *out = v;
    return st;
}

static int store_bool(bool *out, const char *name, const char *text, struct err *e)
{
    if (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0)
        *out = true;
    else if (strcasecmp(text, "false") == 0 || strcmp(text, "0") == 0)
        *out = false;
    else
        return err_set(e, ERR_INVAL, "%s: '%s' is neither true nor false", name, text);
    return 0;
}

/* A typographic quotation mark in the text of a JSON option is the likeliest reason of its fault. */
static bool has_curly_quote(const char *text)
{
    return strstr(text, "\xe2\x80\x9c") || strstr(text, "\xe2\x80\x9d") ||
           strstr(text, "\xe2\x80\x98") || strstr(text, "\xe2\x80\x99");
}

static int store_json(json_t **out, const char *name, const char *text, struct err *e)
{
    json_t *v;
    int st = json_read(&v, text, strlen(text), NULL, e);

    if (st < 0 && has_curly_quote(text))
        return err_set(e, ERR_INVAL,
                       "%s: the value has typographic quotation marks (\xe2\x80\x9c \xe2\x80\x9d), "
                       "which a word processor puts in; JSON needs straight ones (\")",
                       name);
    if (st < 0)
        return err_prefix(e, ERR_INVAL, "%s", name);
    if (json_is_null(v)) {
        json_decref(v);
        v = NULL;
    } else if (!json_is_object(v)) {
        json_decref(v);
        return err_set(e, ERR_INVAL, "%s: a JSON object is wanted, not '%.60s'", name, text);
    }
    json_decref(*out);
    *out = v;
    return 0;
}

/* The object member at a dotted path, made where it does not exist; *leaf is the last part. */
static int walk_path(json_t *at, const char *path, json_t **parent, const char **leaf)
{
    const char *dot;

    while ((dot = strchr(path, '.'))) {
        char key[OPTS_MAX_NAME];
        json_t *next;

        if ((size_t)(dot - path) >= sizeof key)
            return ERR_TOOLONG;
        memcpy(key, path, (size_t)(dot - path));
        key[dot - path] = '\0';
        next = json_object_get(at, key);
        if (!json_is_object(next)) {
            next = json_object();
            if (json_object_set_new(at, key, next) < 0)
                return ERR_NOMEM;
        }
        at = next;
        path = dot + 1;
    }
    *parent = at;
    *leaf = path;
    return 0;
}

static bool is_utf8(const char *text)
{
    json_t *v = json_string(text);

    json_decref(v);
    return v != NULL;
}

/* --opt.a.b text: text is JSON if it reads as such, else a string. */
static int store_json_part(json_t **out, const char *name, const char *path, const char *text,
                           struct err *e)
{
    const char *leaf;
    json_t *v, *at;
    int st;

    if (path[0] == '\0' || path[0] == '.' || path[strlen(path) - 1] == '.' || strstr(path, ".."))
        return err_set(e, ERR_INVAL, "%s: an empty name between dots", name);
    if (!is_utf8(path) || !is_utf8(text))
        return err_set(e, ERR_INVAL, "%s: the name or the value is not valid UTF-8", name);
    if (!*out && !(*out = json_object()))
        return ERR_NOMEM;
    if ((st = walk_path(*out, path, &at, &leaf)) < 0)
        return err_set(e, st, "%s: %s", name, status_text(st));
    if (json_read(&v, text, strlen(text), NULL, NULL) < 0 && !(v = json_string(text)))
        return ERR_NOMEM;
    return json_object_set_new(at, leaf, v) < 0 ? ERR_NOMEM : 0;
}

int opts_store(const struct opt_spec *s, void *dest, const char *name, const char *path,
               const char *text, struct err *e)
{
    if (path)
        return s->kind == OPT_JSON ? store_json_part(slot(s, dest), name, path, text, e) : 0;
    switch (s->kind) {
    case OPT_FLAG:
    case OPT_BOOL:
        return store_bool(slot(s, dest), name, text, e);
    case OPT_INT:
    case OPT_SIZE:
        return store_int(s, slot(s, dest), name, text, e);
    case OPT_FLOAT:
        return store_float(s, slot(s, dest), name, text, e);
    case OPT_STRING:
        if (s->choices && !opts_word_in(s->choices, text))
            return bad_choice(s, name, text, e);
        *(const char **)slot(s, dest) = text;
        return 0;
    case OPT_JSON:
        return store_json(slot(s, dest), name, text, e);
    case OPT_REFUSED:
        if (s->def && strcmp(text, s->def) == 0)
            return 0;
        return err_set(e, ERR_INVAL, "%s '%s': %s", name, text, s->note);
    case OPT_IGNORED:
        return s->choices && !opts_word_in(s->choices, text) ? bad_choice(s, name, text, e) : 0;
    default:
        return 0;
    }
}

static void zero(const struct opt_spec *s, void *dest)
{
    static const size_t size[] = {
        [OPT_FLAG] = sizeof(bool),
        [OPT_BOOL] = sizeof(bool),
        [OPT_INT] = sizeof(int64_t),
        [OPT_SIZE] = sizeof(int64_t),
        [OPT_FLOAT] = sizeof(double),
        [OPT_STRING] = sizeof(const char *),
        [OPT_LIST] = sizeof(struct opt_list),
        [OPT_JSON] = sizeof(json_t *),
    };

    if (s->kind < sizeof size / sizeof size[0])
        memset(slot(s, dest), 0, size[s->kind]);
}

int opts_defaults(const struct opt_spec *specs, void *dest, struct err *e)
{
    for (const struct opt_spec *s = specs; s->kind != OPT_END; s++) {
        bool has_value = s->kind <= OPT_STRING;
        int st;

        zero(s, dest);
        if (!has_value || !s->def)
            continue;
        if ((st = opts_store(s, dest, s->names, NULL, s->def, e)) < 0)
            return st;
    }
    return 0;
}
