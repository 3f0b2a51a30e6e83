#include "net/http_parse.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#include "base/status.h"

/* token characters of RFC 9110, 5.6.2 */
static bool is_token(unsigned char c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
        return true;
    return c && strchr("!#$%&'*+-.^_`|~", c);
}

static int hex_digit(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* An empty line ends the head, except before the first line. */
size_t http_head_end(const char *buf, size_t len, size_t *scanned)
{
    size_t start = 0;

    while (start < len && (buf[start] == '\r' || buf[start] == '\n'))
        start++;
    for (size_t i = *scanned > start ? *scanned : start; i < len; i++) {
        if (buf[i] != '\n' || i < start + 1)
            continue;
        if (buf[i - 1] == '\n' || (i >= start + 2 && buf[i - 1] == '\r' && buf[i - 2] == '\n'))
            return i + 1;
    }
    *scanned = len;
    return 0;
}

struct cursor {
    const char *buf;
    size_t at, len;
};

/* The next line without its end, which is LF or CRLF. */
static int next_line(struct cursor *c, struct http_slice *line)
{
    const char *start = c->buf + c->at;
    const char *lf = memchr(start, '\n', c->len - c->at);
    size_t n;

    if (!lf)
        return ERR_BADMSG;
    n = (size_t)(lf - start);
    *line = (struct http_slice){ (uint32_t)c->at, (uint32_t)n };
    if (n && start[n - 1] == '\r')
        line->len--;
    c->at += n + 1;
    return 0;
}

/* "HTTP/1.0", "HTTP/1.1" (any 1.x). */
static int parse_version(struct http_head *h, const char *p, size_t len)
{
    if (len != 8 || memcmp(p, "HTTP/1.", 7) != 0 || p[7] < '0' || p[7] > '9')
        return ERR_BADMSG;
    h->minor = p[7] - '0';
    return 0;
}

static int parse_request_line(struct http_head *h, const char *buf, struct http_slice line)
{
    const char *p = buf + line.at, *end = p + line.len;
    const char *sp1 = memchr(p, ' ', line.len);
    const char *sp2 = sp1 ? memchr(sp1 + 1, ' ', (size_t)(end - sp1 - 1)) : NULL;

    if (!sp2 || sp1 == p || sp2 == sp1 + 1)
        return ERR_BADMSG;
    h->method = (struct http_slice){ line.at, (uint32_t)(sp1 - p) };
    h->target = (struct http_slice){ (uint32_t)(sp1 + 1 - buf), (uint32_t)(sp2 - sp1 - 1) };
    for (; p < sp1; p++)
        if (!is_token((unsigned char)*p))
            return ERR_BADMSG;
    for (p = sp1 + 1; p < sp2; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f)
            return ERR_BADMSG;
    return parse_version(h, sp2 + 1, (size_t)(end - sp2 - 1));
}

/* "HTTP/1.1 200 OK"; the reason may be missing, with or without its space. */
static int parse_status_line(struct http_head *h, const char *buf, struct http_slice line)
{
    const char *p = buf + line.at;

    if (line.len < 12 || p[8] != ' ' || (line.len > 12 && p[12] != ' '))
        return ERR_BADMSG;
    for (int i = 9; i < 12; i++) {
        if (p[i] < '0' || p[i] > '9')
            return ERR_BADMSG;
        h->status = h->status * 10 + (p[i] - '0');
    }
    if (h->status < 100)
        return ERR_BADMSG;
    return parse_version(h, p, 8);
}

static int parse_field(struct http_field *f, const char *buf, struct http_slice line)
{
    const char *p = buf + line.at, *end = p + line.len;
    const char *colon = memchr(p, ':', line.len);

    if (!colon || colon == p)
        return ERR_BADMSG;
    f->name = (struct http_slice){ line.at, (uint32_t)(colon - p) };
    for (; p < colon; p++)
        if (!is_token((unsigned char)*p))
            return ERR_BADMSG;
    for (p = colon + 1; p < end && (*p == ' ' || *p == '\t'); p++)
        ;
    while (end > p && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    f->value = (struct http_slice){ (uint32_t)(p - buf), (uint32_t)(end - p) };
    for (; p < end; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
            return ERR_BADMSG;
    return 0;
}

static bool slice_is(const char *buf, struct http_slice s, const char *word)
{
    return s.len == strlen(word) && strncasecmp(buf + s.at, word, s.len) == 0;
}

/* Whether the comma list `s` has the word. */
static bool list_has(const char *buf, struct http_slice s, const char *word)
{
    size_t at = s.at, end = s.at + s.len;

    while (at < end) {
        size_t start = at;
        struct http_slice item;

        while (at < end && buf[at] != ',')
            at++;
        item = (struct http_slice){ (uint32_t)start, (uint32_t)(at - start) };
        while (item.len && (buf[item.at] == ' ' || buf[item.at] == '\t'))
            item.at++, item.len--;
        while (item.len &&
               (buf[item.at + item.len - 1] == ' ' || buf[item.at + item.len - 1] == '\t'))
            item.len--;
        if (slice_is(buf, item, word))
            return true;
        at++;
    }
    return false;
}

static int parse_length(struct http_head *h, const char *buf, struct http_slice s)
{
    uint64_t v = 0;

    if (s.len == 0 || s.len > 18)
        return ERR_BADMSG;
    for (uint32_t i = 0; i < s.len; i++) {
        char c = buf[s.at + i];

        if (c < '0' || c > '9')
            return ERR_BADMSG;
        v = v * 10 + (uint64_t)(c - '0');
    }
    if (h->framing == HTTP_BODY_CHUNKED || (h->framing == HTTP_BODY_LENGTH && h->length != v))
        return ERR_BADMSG;
    h->framing = HTTP_BODY_LENGTH;
    h->length = v;
    return 0;
}

/* What the field means for the framing and the connection. */
static int apply_field(struct http_head *h, const char *buf, const struct http_field *f)
{
    if (slice_is(buf, f->name, "content-length"))
        return parse_length(h, buf, f->value);
    if (slice_is(buf, f->name, "transfer-encoding")) {
        if (h->framing != HTTP_BODY_NONE || !slice_is(buf, f->value, "chunked"))
            return ERR_BADMSG;
        h->framing = HTTP_BODY_CHUNKED;
    } else if (slice_is(buf, f->name, "connection")) {
        if (list_has(buf, f->value, "close"))
            h->keep_alive = false;
        else if (h->minor == 0 && list_has(buf, f->value, "keep-alive"))
            h->keep_alive = true;
    } else if (slice_is(buf, f->name, "expect")) {
        h->expect_continue = slice_is(buf, f->value, "100-continue");
    }
    return 0;
}

static int parse_fields(struct http_head *h, struct cursor *c)
{
    struct http_slice line;
    int st;

    h->keep_alive = h->minor >= 1;
    for (;;) {
        struct http_field *f = &h->field[h->n_fields];

        if ((st = next_line(c, &line)) < 0)
            return st;
        if (line.len == 0)
            return 0;
        if (h->n_fields == HTTP_MAX_FIELDS)
            return ERR_TOOLONG;
        if ((st = parse_field(f, c->buf, line)) < 0 || (st = apply_field(h, c->buf, f)) < 0)
            return st;
        h->n_fields++;
    }
}

/* Clears what parsing builds on; the fields are written before they are read. */
static void head_init(struct http_head *h)
{
    h->method = h->target = (struct http_slice){ 0, 0 };
    h->status = h->minor = 0;
    h->keep_alive = h->expect_continue = false;
    h->framing = HTTP_BODY_NONE;
    h->length = 0;
    h->n_fields = 0;
}

int http_parse_request(struct http_head *out, const char *buf, size_t len)
{
    struct cursor c = { buf, 0, len };
    struct http_slice line;
    int st;

    assert(len <= UINT32_MAX);
    head_init(out);
    do {
        if ((st = next_line(&c, &line)) < 0)
            return st;
    } while (line.len == 0 && c.at < len);
    if ((st = parse_request_line(out, buf, line)) < 0)
        return st;
    return parse_fields(out, &c);
}

int http_parse_reply(struct http_head *out, const char *buf, size_t len)
{
    struct cursor c = { buf, 0, len };
    struct http_slice line;
    int st;

    assert(len <= UINT32_MAX);
    head_init(out);
    if ((st = next_line(&c, &line)) < 0 || (st = parse_status_line(out, buf, line)) < 0 ||
        (st = parse_fields(out, &c)) < 0)
        return st;
    if (out->status < 200 || out->status == 204 || out->status == 304) {
        out->framing = HTTP_BODY_NONE;
    } else if (out->framing == HTTP_BODY_NONE) {
        out->framing = HTTP_BODY_CLOSE;
        out->keep_alive = false;
    }
    return 0;
}

void http_head_terminate(const struct http_head *h, char *buf)
{
    if (h->method.len) {
        buf[h->method.at + h->method.len] = '\0';
        buf[h->target.at + h->target.len] = '\0';
    }
    for (uint32_t i = 0; i < h->n_fields; i++) {
        buf[h->field[i].name.at + h->field[i].name.len] = '\0';
        buf[h->field[i].value.at + h->field[i].value.len] = '\0';
    }
}

const char *http_head_field(const struct http_head *h, const char *buf, const char *name)
{
    for (uint32_t i = 0; i < h->n_fields; i++)
        if (strcasecmp(buf + h->field[i].name.at, name) == 0)
            return buf + h->field[i].value.at;
    return NULL;
}

bool http_percent_decode(char *text, bool plus)
{
    char *to = text;

    for (const char *p = text; *p; p++) {
        int hi, lo;

        if (*p == '+' && plus) {
            *to++ = ' ';
        } else if (*p != '%') {
            *to++ = *p;
        } else if ((hi = hex_digit((unsigned char)p[1])) < 0 ||
                   (lo = hex_digit((unsigned char)p[2])) < 0 || hi + lo == 0) {
            return false;
        } else {
            *to++ = (char)(hi << 4 | lo);
            p += 2;
        }
    }
    *to = '\0';
    return true;
}

/* One byte of the size line or of a trailer line, all but chunk data. */
static int chunk_byte(struct http_chunked *c, unsigned char b)
{
    int digit = hex_digit(b);

    if (c->cr && b != '\n')
        return ERR_BADMSG;
    if (b == '\r') {
        c->cr = true;
        return 0;
    }
    if (b == '\n') {
        if (!c->cr)
            return ERR_BADMSG;
        c->cr = false;
        switch (c->state) {
        case CHUNK_SIZE:
        case CHUNK_EXT:
            if (c->digits == 0)
                return ERR_BADMSG;
            c->state = c->left ? CHUNK_DATA : CHUNK_TRAILER;
            break;
        case CHUNK_DATA_END:
            c->state = CHUNK_SIZE;
            break;
        default:
            if (c->line == 0)
                c->state = CHUNK_DONE;
        }
        c->line = c->digits = 0;
        return 0;
    }
    c->line++;
    if (c->state == CHUNK_SIZE && digit >= 0) {
        if (++c->digits > 15)
            return ERR_BADMSG;
        c->left = c->left << 4 | (uint64_t)digit;
        return 0;
    }
    if (c->state == CHUNK_SIZE && (b == ';' || b == ' ' || b == '\t'))
        c->state = CHUNK_EXT;
    if (c->state == CHUNK_SIZE || c->state == CHUNK_DATA_END || ++c->extra > HTTP_MAX_CHUNK_EXTRA)
        return ERR_BADMSG;
    return 0;
}

ssize_t http_chunked_take(struct http_chunked *c, const char *in, size_t len, const char **data,
                          size_t *n)
{
    size_t at = 0;

    *data = in;
    *n = 0;
    while (at < len && c->state != CHUNK_DONE && c->state != CHUNK_DATA) {
        int st = chunk_byte(c, (unsigned char)in[at++]);

        if (st < 0)
            return st;
    }
    if (c->state == CHUNK_DATA && at < len) {
        *data = in + at;
        *n = len - at < c->left ? len - at : (size_t)c->left;
        c->left -= *n;
        at += *n;
        if (c->left == 0)
            c->state = CHUNK_DATA_END;
    }
    return (ssize_t)at;
}
