/* "..." % values. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "text/jinja/render.h"
#include "text/template.h"
#include "text/utf8.h"

#define MAX_WIDTH 1000 /* of a field */

/* One "%..." of a format. */
struct spec {
    char flags[8];
    int width, precision; /* precision below 0: none */
    char type;
};

static int read_number(const char **p, const char *end)
{
    int n = 0;

    for (; *p < end && **p >= '0' && **p <= '9'; ++*p)
        if (n <= MAX_WIDTH)
            n = 10 * n + (**p - '0');
    return n;
}

/* p stands behind the '%'. */
static int read_spec(struct render *r, const char **p, const char *end, struct spec *s)
{
    size_t n = 0;

    *s = (struct spec){ .precision = -1 };
    while (*p < end && strchr("-+ 0#", **p) && **p && n < sizeof s->flags - 1)
        s->flags[n++] = *(*p)++;
    s->width = read_number(p, end);
    if (*p < end && **p == '.') {
        ++*p;
        s->precision = read_number(p, end);
    }
    if (*p == end || !**p || !strchr("sdirfxX%", **p))
        return render_fail(r, ERR_UNSUPPORTED,
                           "a format may hold %%s %%r %%d %%i %%f %%x %%X and %%%%");
    s->type = *(*p)++;
    if (s->width > MAX_WIDTH || s->precision > MAX_WIDTH)
        return render_fail(r, ERR_LIMIT, "a field of a format is wider than %d", MAX_WIDTH);
    return 0;
}

/* Width and precision count characters. */
static int put_text(struct buf *out, const struct spec *s, const struct value *v)
{
    bool left = strchr(s->flags, '-');
    size_t len = 0, pad, chars;
    struct buf b;

    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    if (s->type == 'r')
        value_write_repr(&b, v, 0);
    else
        value_write(&b, v);
    for (chars = 0; len < b.len && chars != (size_t)s->precision; chars++) {
        size_t l;

        utf8_get(b.data + len, &l);
        len += l;
    }
    pad = (size_t)s->width > chars ? (size_t)s->width - chars : 0;
    buf_printf(out, "%*s", left ? 0 : (int)pad, "");
    buf_append(out, buf_str(&b), len);
    buf_printf(out, "%*s", left ? (int)pad : 0, "");
    buf_finish(&b);
    return out->status;
}

static int put_field(struct render *r, struct buf *out, const struct spec *s, const struct value *v)
{
    char format[32], c;
    int64_t i;

    if (s->type == 's' || s->type == 'r')
        return put_text(out, s, v);
    if (!is_number(v))
        return render_fail(r, ERR_BADMSG, "%%%c format: a number is required, not '%s'", s->type,
                           value_type(v));
    if (s->type == 'f') {
        snprintf(format, sizeof format, "%%%s*.*f", s->flags);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        return buf_printf(out, format, s->width, s->precision < 0 ? 6 : s->precision,
                          value_as_double(v));
    }
    if (!value_as_int(v, &i)) {
        if (!(fabs(v->f) < 9e18))
            return render_fail(r, ERR_LIMIT, "%%%c format: the number does not fit 64 bits",
                               s->type);
        i = (int64_t)v->f;
    }
    c = s->type == 'i' ? 'd' : s->type;
    if (s->precision < 0) {
        snprintf(format, sizeof format, "%%%s*ll%c", s->flags, c);
        return buf_printf(out, format, s->width, (long long)i);
    }
    snprintf(format, sizeof format, "%%%s*.*ll%c", s->flags, c);
    return buf_printf(out, format, s->width, s->precision, (long long)i);
#pragma GCC diagnostic pop
}

int render_format(struct render *r, const struct str *format, const struct value *values, size_t n,
                  struct value *out)
{
    const char *p = format->s, *end = p + format->n;
    size_t used = 0;
    struct buf b;
    int st = 0;

    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    while (st == 0 && p < end) {
        struct spec s;

        if (*p++ != '%') {
            st = buf_putc(&b, p[-1]);
            continue;
        }
        if ((st = read_spec(r, &p, end, &s)) < 0)
            break;
        if (s.type == '%')
            st = buf_putc(&b, '%');
        else if (used == n)
            st = render_fail(r, ERR_BADMSG, "not enough values for the format");
        else
            st = put_field(r, &b, &s, &values[used++]);
    }
    if (st == 0)
        return render_take(r, &b, out);
    buf_finish(&b);
    return st;
}
