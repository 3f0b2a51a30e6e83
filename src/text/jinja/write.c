/* How values are written: Python's str, repr and json.dumps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/jinja/value.h"
#include "text/template.h"
#include "text/utf8.h"

/* The fewest digits that read back equal, laid out as Python does: an exponent below 1e-4 and from 1e16. */
int value_write_double(struct buf *out, double f)
{
    char digits[40], *e;
    int prec = 1, exp;

    if (isnan(f) || isinf(f))
        return buf_puts(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    do
        snprintf(digits, sizeof digits, "%.*e", prec - 1, f);
    while (strtod(digits, NULL) != f && ++prec <= 17);
    e = strchr(digits, 'e');
    exp = atoi(e + 1);
    if (exp < -4 || exp >= 16) {
        *e = '\0';
        return buf_printf(out, "%se%c%02d", digits, exp < 0 ? '-' : '+', abs(exp));
    }
    return buf_printf(out, "%.*f", prec - 1 > exp ? prec - 1 - exp : 1, f);
}

static bool is_printable(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

    return cp == ' ' || !(c == UTF8PROC_CATEGORY_CN || c >= UTF8PROC_CATEGORY_ZS);
}

static void write_escaped(struct buf *out, uint32_t cp, const char *s, size_t len, char quote)
{
    if (cp == '\\' || cp == (unsigned char)quote)
        buf_printf(out, "\\%c", (char)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        buf_puts(out, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
    else if (is_printable(cp))
        buf_append(out, s, len);
    else
        buf_printf(out, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

/* Single quotes, or double ones when the text has only single ones. */
static int write_str_repr(struct buf *out, const struct str *v)
{
    char quote = memchr(v->s, '\'', v->n) && !memchr(v->s, '"', v->n) ? '"' : '\'';

    buf_putc(out, quote);
    for (size_t at = 0, len; at < v->n; at += len) {
        uint32_t cp = utf8_get(v->s + at, &len);

        write_escaped(out, cp, v->s + at, len, quote);
    }
    return buf_putc(out, quote);
}

static int write_list(struct buf *out, const struct value *v, int depth)
{
    bool tuple = v->kind == TUPLE;

    buf_putc(out, tuple ? '(' : '[');
    for (size_t i = 0; i < v->list->n; i++) {
        if (i)
            buf_puts(out, ", ");
        value_write_repr(out, &v->list->v[i], depth + 1);
    }
    if (tuple && v->list->n == 1)
        buf_putc(out, ',');
    return buf_putc(out, tuple ? ')' : ']');
}

static int write_dict(struct buf *out, const struct dict *d, int depth)
{
    buf_putc(out, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            buf_puts(out, ", ");
        value_write_repr(out, &d->key[i], depth + 1);
        buf_puts(out, ": ");
        value_write_repr(out, &d->val[i], depth + 1);
    }
    return buf_putc(out, '}');
}

int value_write_repr(struct buf *out, const struct value *v, int depth)
{
    if (out->status)
        return out->status;
    if (depth > TEMPLATE_MAX_DEPTH)
        return buf_puts(out, "...");
    switch (v->kind) {
    case UNDEFINED:
        return buf_puts(out, "Undefined");
    case NONE:
        return buf_puts(out, "None");
    case BOOL:
        return buf_puts(out, v->b ? "True" : "False");
    case INT:
        return buf_printf(out, "%lld", (long long)v->i);
    case FLOAT:
        return value_write_double(out, v->f);
    case STRING:
        return write_str_repr(out, &v->str);
    case LIST:
    case TUPLE:
        return write_list(out, v, depth);
    case DICT:
        return write_dict(out, v->dict, depth);
    default:
        return buf_printf(out, "<%s>", value_type(v));
    }
}

int value_write(struct buf *out, const struct value *v)
{
    if (v->kind == STRING)
        return buf_append(out, v->str.s, v->str.n);
    return v->kind == UNDEFINED ? out->status : value_write_repr(out, v, 0);
}

static int json_string_to(struct buf *out, const struct str *v)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    size_t from = 0;

    buf_putc(out, '"');
    for (size_t i = 0; i < v->n; i++) {
        unsigned char c = (unsigned char)v->s[i];
        const char *p = c ? strchr(plain, c) : NULL;

        if (!p && c >= 0x20)
            continue;
        buf_append(out, v->s + from, i - from);
        from = i + 1;
        if (p)
            buf_printf(out, "\\%c", letter[p - plain]);
        else
            buf_printf(out, "\\u%04x", c);
    }
    buf_append(out, v->s + from, v->n - from);
    return buf_putc(out, '"');
}

/* What stands before an item: the comma, and the line break or blank. */
static void json_gap(struct buf *out, bool first, int indent, int depth)
{
    if (!first)
        buf_putc(out, ',');
    if (indent < 0) {
        if (!first)
            buf_putc(out, ' ');
        return;
    }
    buf_printf(out, "\n%*s", indent * depth, "");
}

static int json_list(struct buf *out, const struct list *l, int indent, int depth,
                     const char **type)
{
    int st;

    buf_putc(out, '[');
    for (size_t i = 0; i < l->n; i++) {
        json_gap(out, i == 0, indent, depth + 1);
        if ((st = value_write_json(out, &l->v[i], indent, depth + 1, type)) < 0)
            return st;
    }
    if (l->n && indent >= 0)
        json_gap(out, true, indent, depth);
    return buf_putc(out, ']');
}

/* Keys that are not text are written as JSON writes them, in quotes. */
static int json_key(struct buf *out, const struct value *key, const char **type)
{
    int st;

    if (key->kind == STRING)
        return json_string_to(out, &key->str);
    buf_putc(out, '"');
    st = is_number(key) || key->kind == NONE ? value_write_json(out, key, -1, 0, type) : ERR_INVAL;
    if (st < 0)
        *type = value_type(key);
    buf_putc(out, '"');
    return st;
}

static int json_dict(struct buf *out, const struct dict *d, int indent, int depth,
                     const char **type)
{
    int st;

    buf_putc(out, '{');
    for (size_t i = 0; i < d->n; i++) {
        json_gap(out, i == 0, indent, depth + 1);
        if ((st = json_key(out, &d->key[i], type)) < 0)
            return st;
        buf_puts(out, ": ");
        if ((st = value_write_json(out, &d->val[i], indent, depth + 1, type)) < 0)
            return st;
    }
    if (d->n && indent >= 0)
        json_gap(out, true, indent, depth);
    return buf_putc(out, '}');
}

int value_write_json(struct buf *out, const struct value *v, int indent, int depth,
                     const char **type)
{
    if (out->status)
        return out->status;
    if (depth > TEMPLATE_MAX_DEPTH)
        return ERR_LIMIT;
    switch (v->kind) {
    case NONE:
        return buf_puts(out, "null");
    case BOOL:
        return buf_puts(out, v->b ? "true" : "false");
    case INT:
        return buf_printf(out, "%lld", (long long)v->i);
    case FLOAT:
        if (isnan(v->f) || isinf(v->f))
            return buf_puts(out, isnan(v->f) ? "NaN" : v->f < 0 ? "-Infinity" : "Infinity");
        return value_write_double(out, v->f);
    case STRING:
        return json_string_to(out, &v->str);
    case LIST:
    case TUPLE:
        return json_list(out, v->list, indent, depth, type);
    case DICT:
        return json_dict(out, v->dict, indent, depth, type);
    default:
        *type = value_type(v);
        return ERR_INVAL;
    }
}
