#include "proxy/splice.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"

struct scan {
    const char *p, *end;
    int depth;
    bool too_deep;
};

static int scan_value(struct scan *s);

static void skip_space(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
}

static bool take(struct scan *s, char c)
{
    if (s->p == s->end || *s->p != c)
        return false;
    s->p++;
    return true;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

static int scan_escape(struct scan *s)
{
    if (s->p == s->end || !*s->p || !strchr("\"\\/bfnrtu", *s->p))
        return ERR_BADMSG;
    if (*s->p++ != 'u')
        return 0;
    for (int i = 0; i < 4; i++, s->p++)
        if (s->p == s->end || !is_hex(*s->p))
            return ERR_BADMSG;
    return 0;
}

static int scan_string(struct scan *s)
{
    if (!take(s, '"'))
        return ERR_BADMSG;
    while (s->p < s->end) {
        unsigned char c = (unsigned char)*s->p++;

        if (c == '"')
            return 0;
        if (c < 0x20) {
            s->p--;
            return ERR_BADMSG;
        }
        if (c == '\\' && scan_escape(s) < 0)
            return ERR_BADMSG;
    }
    return ERR_BADMSG;
}

static bool scan_digits(struct scan *s)
{
    const char *start = s->p;

    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return s->p > start;
}

static int scan_number(struct scan *s)
{
    take(s, '-');
    if (!take(s, '0') && !scan_digits(s))
        return ERR_BADMSG;
    if (take(s, '.') && !scan_digits(s))
        return ERR_BADMSG;
    if (s->p < s->end && (*s->p | 0x20) == 'e') {
        s->p++;
        if (!take(s, '+'))
            take(s, '-');
        if (!scan_digits(s))
            return ERR_BADMSG;
    }
    return 0;
}

static int scan_word(struct scan *s, const char *word)
{
    for (; *word; word++)
        if (!take(s, *word))
            return ERR_BADMSG;
    return 0;
}

static int scan_member(struct scan *s)
{
    if (scan_string(s) < 0)
        return ERR_BADMSG;
    skip_space(s);
    if (!take(s, ':'))
        return ERR_BADMSG;
    return scan_value(s);
}

/* The rest of an array or object, after its opening bracket. */
static int scan_container(struct scan *s, char close, int (*element)(struct scan *s))
{
    if (++s->depth > SPLICE_MAX_DEPTH) {
        s->too_deep = true;
        return ERR_BADMSG;
    }
    skip_space(s);
    if (!take(s, close)) {
        do {
            skip_space(s);
            if (element(s) < 0)
                return ERR_BADMSG;
            skip_space(s);
        } while (take(s, ','));
        if (!take(s, close))
            return ERR_BADMSG;
    }
    s->depth--;
    return 0;
}

static int scan_value(struct scan *s)
{
    skip_space(s);
    if (s->p == s->end)
        return ERR_BADMSG;
    switch (*s->p) {
    case '{':
        s->p++;
        return scan_container(s, '}', scan_member);
    case '[':
        s->p++;
        return scan_container(s, ']', scan_value);
    case '"':
        return scan_string(s);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        return scan_number(s);
    }
}

int splice_check(const char *text, size_t len, size_t *at)
{
    struct scan s = { text, text + len, 0, false };
    int st = ERR_BADMSG;

    skip_space(&s);
    if (s.p < s.end && *s.p == '{' && scan_value(&s) == 0) {
        skip_space(&s);
        st = s.p == s.end ? 0 : ERR_BADMSG;
    }
    if (st < 0)
        *at = (size_t)(s.p - text);
    return s.too_deep ? ERR_TOOLONG : st;
}

/* A walk over the members of an object. */
struct member {
    const char *start;      /* after the brace or comma before it, white space included */
    struct splice_text key; /* with its quotes */
    struct splice_text value;
    const char *end; /* before the comma or brace after it */
};

static void walk_begin(struct scan *s, struct splice_text object)
{
    *s = (struct scan){ object.p, object.p + object.len, 0, false };
    skip_space(s);
    assert(s->p < s->end && *s->p == '{');
    s->p++;
}

static bool walk_next(struct scan *s, struct member *m)
{
    m->start = s->p;
    skip_space(s);
    if (s->p == s->end || *s->p != '"')
        return false;
    m->key.p = s->p;
    scan_string(s);
    m->key.len = (size_t)(s->p - m->key.p);
    skip_space(s);
    take(s, ':');
    skip_space(s);
    m->value.p = s->p;
    scan_value(s);
    m->value.len = (size_t)(s->p - m->value.p);
    skip_space(s);
    m->end = s->p;
    take(s, ',');
    return true;
}

/* A key that is written with escapes is decoded before it is compared: it names the same member. */
static bool key_is(struct splice_text quoted, const char *key)
{
    bool same = false;
    json_t *j;

    if (!memchr(quoted.p, '\\', quoted.len))
        return quoted.len == strlen(key) + 2 && memcmp(quoted.p + 1, key, quoted.len - 2) == 0;
    j = json_loadb(quoted.p, quoted.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (j)
        same = json_string_length(j) == strlen(key) && strcmp(json_string_value(j), key) == 0;
    json_decref(j);
    return same;
}

bool splice_is_object(struct splice_text value)
{
    return value.p && value.len && value.p[0] == '{';
}

struct splice_text splice_get(struct splice_text object, const char *key)
{
    struct splice_text found = { NULL, 0 };
    struct member m;
    struct scan s;

    walk_begin(&s, object);
    while (walk_next(&s, &m))
        if (key_is(m.key, key))
            found = m.value;
    return found;
}

struct splice_text splice_path(struct splice_text object, const char *const *keys)
{
    for (; *keys; keys++) {
        object = splice_get(object, *keys);
        if (keys[1] && !splice_is_object(object))
            return (struct splice_text){ NULL, 0 };
    }
    return object;
}

size_t splice_array_len(struct splice_text value)
{
    struct scan s = { value.p, value.p + value.len, 0, false };
    size_t n = 0;

    if (!value.p || !take(&s, '['))
        return 0;
    skip_space(&s);
    if (s.p < s.end && *s.p == ']')
        return 0;
    do {
        scan_value(&s);
        skip_space(&s);
        n++;
    } while (take(&s, ','));
    return n;
}

bool splice_is(struct splice_text value, const char *literal)
{
    return value.p && value.len == strlen(literal) && memcmp(value.p, literal, value.len) == 0;
}

bool splice_integer(long long *out, struct splice_text value)
{
    char digits[24];
    char *end;

    if (!value.p || value.len == 0 || value.len > 18)
        return false;
    memcpy(digits, value.p, value.len);
    digits[value.len] = '\0';
    *out = strtoll(digits, &end, 10);
    return *end == '\0';
}

static const struct splice_edit *edit_for(const struct splice_edit *edits, size_t n,
                                          const struct member *m)
{
    for (size_t i = 0; i < n; i++)
        if (key_is(m->key, edits[i].key))
            return &edits[i];
    return NULL;
}

static void put_member(struct buf *out, const struct member *m, const struct splice_edit *e)
{
    if (!e) {
        buf_append(out, m->start, (size_t)(m->end - m->start));
        return;
    }
    buf_append(out, m->start, (size_t)(m->value.p - m->start));
    buf_append(out, e->value.p, e->value.len);
    buf_append(out, m->value.p + m->value.len, (size_t)(m->end - m->value.p) - m->value.len);
}

int splice_edit(struct buf *out, struct splice_text object, const struct splice_edit *edits,
                size_t n)
{
    bool found[SPLICE_MAX_EDITS] = { false };
    const char *comma = "";
    struct member m;
    struct scan s;

    assert(n <= SPLICE_MAX_EDITS);
    walk_begin(&s, object);
    buf_append(out, object.p, (size_t)(s.p - object.p));
    while (walk_next(&s, &m)) {
        const struct splice_edit *e = edit_for(edits, n, &m);

        if (e)
            found[e - edits] = true;
        if (e && e->op == SPLICE_DELETE)
            continue;
        buf_puts(out, comma);
        put_member(out, &m, e);
        comma = ",";
    }
    for (size_t i = 0; i < n; i++) {
        if (found[i] || edits[i].op != SPLICE_SET)
            continue;
        buf_printf(out, "%s\"%s\":", comma, edits[i].key);
        buf_append(out, edits[i].value.p, edits[i].value.len);
        comma = ",";
    }
    return buf_append(out, s.p, (size_t)(s.end - s.p));
}
