#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "wire/openai.h"

/* Bytes of the UTF-8 character at s, 0 if none stands there: overlong forms and surrogates are none. */
static size_t character_at(const char *s)
{
    unsigned char c = (unsigned char)s[0], second;
    size_t n = c < 0x80 ? 1 : c >= 0xf0 && c < 0xf5 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 0;

    if (c >= 0xf5)
        return 0;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
    second = n > 1 ? (unsigned char)s[1] : 0;
    if ((c == 0xe0 && second < 0xa0) || (c == 0xed && second > 0x9f) ||
        (c == 0xf0 && second < 0x90) || (c == 0xf4 && second > 0x8f))
        return 0;
    return n;
}

/* A sentence may quote what the client sent, cut anywhere; the wire needs whole characters. */
static void scrub(char *s)
{
    size_t n;

    for (; *s; s += n) {
        n = character_at(s);
        if (n == 0) {
            *s = '?';
            n = 1;
        }
    }
}

int oai_fail(struct oai_error *e, int code, const char *type, const char *param, const char *fmt,
             ...)
{
    va_list ap;

    *e = (struct oai_error){ .code = code, .type = type };
    if (param)
        snprintf(e->param, sizeof e->param, "%s", param);
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    scrub(e->message);
    return ERR_INVAL;
}

const char *oai_error_type(int code)
{
    static const struct {
        int code;
        const char *type;
    } types[] = {
        { 400, "BadRequestError" },         { 401, "AuthenticationError" },
        { 404, "NotFoundError" },           { 405, "MethodNotAllowedError" },
        { 413, "RequestTooLargeError" },    { 429, "RateLimitError" },
        { 431, "RequestTooLargeError" },    { 501, "NotImplementedError" },
        { 503, "ServiceUnavailableError" },
    };

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].code == code)
            return types[i].type;
    return code < 500 ? "BadRequestError" : "InternalServerError";
}

int oai_put_error(struct buf *b, const struct oai_error *e)
{
    buf_puts(b, "{\"error\":{\"message\":");
    json_put_text(b, e->message);
    buf_puts(b, ",\"type\":");
    json_put_text(b, e->type);
    buf_puts(b, ",\"param\":");
    json_put_text(b, e->param[0] ? e->param : NULL);
    return buf_printf(b, ",\"code\":%d}}", e->code);
}

int oai_put_error_event(struct buf *b, const struct oai_error *e)
{
    buf_puts(b, "data: ");
    oai_put_error(b, e);
    return buf_puts(b, "\n\n");
}

int oai_put_done_event(struct buf *b)
{
    return buf_puts(b, "data: [DONE]\n\n");
}
