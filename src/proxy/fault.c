#include "proxy/fault.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"
#include "net/http_server.h"

#define FAULT_MAX_MESSAGE 1024

/* Bytes of the valid UTF-8 character at p; 0: there is none. The text ends with a NUL, which is no
 * continuation byte, so nothing behind it is read. */
static size_t char_len(const unsigned char *p)
{
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;

    if ((p[0] >= 0x80 && p[0] < 0xc2) || p[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

void fault_clean(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p;) {
        size_t n = char_len(p);

        if (n == 0 || *p < ' ' || *p == 0x7f) {
            *p = '?';
            n = 1;
        }
        p += n;
    }
}

void fault_object(struct buf *out, int status, const char *param, const char *message)
{
    char text[FAULT_MAX_MESSAGE];

    snprintf(text, sizeof text, "%s", message);
    fault_clean(text);
    buf_puts(out, "{\"error\":{\"message\":");
    json_put_text(out, text);
    buf_puts(out, ",\"type\":");
    json_put_text(out, http_reason(status));
    buf_puts(out, ",\"param\":");
    json_put_text(out, param);
    buf_printf(out, ",\"code\":%d}}", status);
}

void fault_body(struct buf *out, int status, const char *reason)
{
    fault_object(out, status, NULL, reason);
}

void fault_reply(struct http_req *r, int status, const char *param, const char *fmt, ...)
{
    char message[FAULT_MAX_MESSAGE];
    struct buf body;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    buf_init(&body, BUF_MAX_LINE);
    fault_object(&body, status, param, message);
    http_reply(r, status, "application/json", buf_str(&body), body.len);
    buf_finish(&body);
}
