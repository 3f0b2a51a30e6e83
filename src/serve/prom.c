#include "serve/prom.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void prom_hist_init(struct prom_hist *h, const double *bounds, uint32_t n)
{
    assert(n <= PROM_MAX_BOUNDS);
    *h = (struct prom_hist){ .bounds = bounds, .n = n };
}

void prom_hist_add(struct prom_hist *h, double v)
{
    uint32_t i = 0;

    while (i < h->n && v > h->bounds[i])
        i++;
    h->count[i]++;
    h->sum += v;
}

uint64_t prom_hist_count(const struct prom_hist *h)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i <= h->n; i++)
        n += h->count[i];
    return n;
}

void prom_family(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Shortest text that reads back equal; whole numbers with ".0", as other exporters write them. */
static void format_value(char *out, size_t cap, double v)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, cap, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            break;
    }
    if (isfinite(v) && v == floor(v) && fabs(v) < 1e15)
        snprintf(out, cap, "%.1f", v);
}

void prom_value(struct buf *b, const char *name, const char *labels, double v)
{
    char text[40];

    format_value(text, sizeof text, v);
    if (labels[0])
        buf_printf(b, "%s{%s} %s\n", name, labels, text);
    else
        buf_printf(b, "%s %s\n", name, text);
}

void prom_hist_put(struct buf *b, const char *name, const char *labels, const struct prom_hist *h)
{
    const char *comma = labels[0] ? "," : "", *open = labels[0] ? "{" : "",
               *close = labels[0] ? "}" : "";
    uint64_t below = 0;
    char text[40];

    for (uint32_t i = 0; i < h->n; i++) {
        below += h->count[i];
        format_value(text, sizeof text, h->bounds[i]);
        buf_printf(b, "%s_bucket{%s%sle=\"%s\"} %llu\n", name, labels, comma, text,
                   (unsigned long long)below);
    }
    below += h->count[h->n];
    buf_printf(b, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, labels, comma,
               (unsigned long long)below);
    format_value(text, sizeof text, h->sum);
    buf_printf(b, "%s_sum%s%s%s %s\n", name, open, labels, close, text);
    buf_printf(b, "%s_count%s%s%s %llu\n", name, open, labels, close, (unsigned long long)below);
}

void prom_label(struct buf *labels, const char *key, const char *value)
{
    buf_printf(labels, "%s%s=\"", labels->len ? "," : "", key);
    for (; *value; value++) {
        if (*value == '\n')
            buf_puts(labels, "\\n");
        else if (*value == '"' || *value == '\\')
            buf_printf(labels, "\\%c", *value);
        else
            buf_putc(labels, *value);
    }
    buf_putc(labels, '"');
}
