#include "base/json.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"

/* Offset of the bracket that opens level JSON_MAX_DEPTH + 1, or len. jansson recurses by level, so
 * the depth is looked at before it starts. */
static size_t too_deep_at(const char *text, size_t len)
{
    bool in_string = false;
    int depth = 0;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > JSON_MAX_DEPTH)
                return i;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return len;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The member name before the number that ends at `end`: walks back over the number, the colon and
 * the quotes. "" when that is not what stands there. */
static void key_before(char *key, size_t cap, const char *text, size_t end)
{
    size_t i = end, stop;

    key[0] = '\0';
    while (i > 0 && strchr("+-.eE0123456789", text[i - 1]))
        i--;
    while (i > 0 && is_space(text[i - 1]))
        i--;
    if (i == 0 || text[--i] != ':')
        return;
    while (i > 0 && is_space(text[i - 1]))
        i--;
    if (i == 0 || text[--i] != '"')
        return;
    for (stop = i; i > 0 && text[i - 1] != '"'; i--)
        ;
    if (i > 0 && stop - i < cap) {
        memcpy(key, text + i, stop - i);
        key[stop - i] = '\0';
    }
}

int json_read(json_t **out, const char *text, size_t len, struct json_fault *fault, struct err *e)
{
    struct json_fault unused;
    json_error_t je;
    json_t *v;
    size_t deep = too_deep_at(text, len);

    if (!fault)
        fault = &unused;
    *fault = (struct json_fault){ 0 };
    if (deep < len) {
        fault->offset = deep;
        return err_set(e, ERR_BADMSG, "JSON is nested deeper than %d levels at byte %zu",
                       JSON_MAX_DEPTH, deep);
    }
    v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (v) {
        *out = v;
        return 0;
    }
    fault->offset = je.position > 0 && (size_t)je.position <= len ? (size_t)je.position : 0;
    if (json_error_code(&je) == json_error_numeric_overflow) {
        fault->overflow = true;
        key_before(fault->key, sizeof fault->key, text, fault->offset);
        return err_set(e, ERR_BADMSG, "a number is too large at byte %zu of the JSON text",
                       fault->offset);
    }
    return err_set(e, ERR_BADMSG, "not valid JSON at line %d, column %d: %s", je.line, je.column,
                   je.text);
}

int json_put_string(struct buf *b, const char *utf8, size_t len)
{
    size_t done = 0;

    buf_putc(b, '"');
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)utf8[i];
        const char *esc = NULL;

        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buf_append(b, utf8 + done, i - done);
        done = i + 1;
        switch (c) {
        case '"':
            esc = "\\\"";
            break;
        case '\\':
            esc = "\\\\";
            break;
        case '\n':
            esc = "\\n";
            break;
        case '\r':
            esc = "\\r";
            break;
        case '\t':
            esc = "\\t";
            break;
        case '\b':
            esc = "\\b";
            break;
        case '\f':
            esc = "\\f";
            break;
        }
        if (esc)
            buf_puts(b, esc);
        else
            buf_printf(b, "\\u%04x", c);
    }
    buf_append(b, utf8 + done, len - done);
    return buf_putc(b, '"');
}

int json_put_text(struct buf *b, const char *utf8)
{
    return utf8 ? json_put_string(b, utf8, strlen(utf8)) : buf_puts(b, "null");
}

int json_put_double(struct buf *b, double v)
{
    char text[40];

    assert(isfinite(v));
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text - 2, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    if (!strpbrk(text, ".e"))
        strcat(text, ".0");
    return buf_puts(b, text);
}

static int dump(const char *bytes, size_t len, void *arg)
{
    return buf_append(arg, bytes, len);
}

int json_put_value(struct buf *b, const json_t *v)
{
    if (!v)
        return buf_puts(b, "null");
    if (json_dump_callback(v, dump, b, JSON_COMPACT | JSON_ENCODE_ANY) < 0 && b->status == 0)
        return ERR_NOMEM;
    return b->status;
}
