#include "text/added.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/status.h"
#include "text/utf8.h"

void added_finish(struct added *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        free(a->token[i].text);
    free(a->token);
    *a = (struct added){ 0 };
}

int added_add(struct added *a, const char *text, size_t len, int32_t id, unsigned flags,
              struct err *e)
{
    struct added_token *t;

    if (len == 0 || len > ADDED_MAX_BYTES || a->n == ADDED_MAX)
        return err_set(e, ERR_LIMIT,
                       "added token %d: %zu bytes (1 to %u are possible), number %u of at most %u",
                       id, len, ADDED_MAX_BYTES, a->n + 1, ADDED_MAX);
    if (a->n == a->cap) {
        uint32_t cap = a->cap ? 2 * a->cap : 32;

        if (!(t = realloc(a->token, cap * sizeof *t)))
            return err_set(e, ERR_NOMEM, "no memory for %u added tokens", cap);
        a->token = t;
        a->cap = cap;
    }
    t = &a->token[a->n];
    *t = (struct added_token){ malloc(len), len, id, flags };
    if (!t->text)
        return err_set(e, ERR_NOMEM, "no memory for an added token of %zu bytes", len);
    memcpy(t->text, text, len);
    a->n++;
    return 0;
}

/* By bytes; of two equal texts the first one added (they have one id anyway). */
static int compare(const void *x, const void *y)
{
    const struct added_token *s = x, *t = y;
    int c = memcmp(s->text, t->text, s->len < t->len ? s->len : t->len);

    return c ? c : (s->len > t->len) - (s->len < t->len);
}

void added_seal(struct added *a)
{
    uint32_t at = 0;

    if (a->n)
        qsort(a->token, a->n, sizeof *a->token, compare);
    for (int b = 0; b < 256; b++) {
        a->first[b] = at;
        while (at < a->n && (unsigned char)a->token[at].text[0] == b)
            at++;
    }
    a->first[256] = at;
}

/* The first of the sorted tokens lo to hi, alike in their first d bytes and longer than that, whose
 * byte d is not below c. */
static uint32_t lower(const struct added *a, uint32_t lo, uint32_t hi, size_t d, unsigned c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if ((unsigned char)a->token[mid].text[d] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest token that the text begins with; NULL if none. Narrows the sorted list byte by byte:
 * the shortest of those left comes first. */
static const struct added_token *longest(const struct added *a, const char *text, size_t len)
{
    const struct added_token *best = NULL;
    unsigned char c = (unsigned char)text[0];
    uint32_t lo = a->first[c], hi = a->first[c + 1];

    for (size_t d = 1; lo < hi; d++) {
        while (lo < hi && a->token[lo].len == d)
            best = &a->token[lo++];
        if (d == len)
            break;
        c = (unsigned char)text[d];
        lo = lower(a, lo, hi, d, c);
        hi = lower(a, lo, hi, d, c + 1u);
    }
    return best;
}

/* Where the character before `at` (> 0) begins. */
static size_t back(const char *text, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

/* Letter, mark, digit, connector: what \w means to Rust, near enough. */
static bool is_word(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_ND) || c == UTF8PROC_CATEGORY_NL ||
           c == UTF8PROC_CATEGORY_PC;
}

static bool beside_word(const char *text, size_t len, size_t start, size_t stop)
{
    size_t l;

    return (start > 0 && is_word(utf8_get(text + back(text, start), &l))) ||
           (stop < len && is_word(utf8_get(text + stop, &l)));
}

static void strip(const struct added_token *t, const char *text, size_t len, size_t at,
                  struct added_hit *hit)
{
    size_t l;

    while (t->flags & ADDED_LSTRIP && hit->start > at &&
           utf8_is_space(utf8_get(text + back(text, hit->start), &l)))
        hit->start = back(text, hit->start);
    while (t->flags & ADDED_RSTRIP && hit->stop < len &&
           utf8_is_space(utf8_get(text + hit->stop, &l)))
        hit->stop += l;
}

bool added_next(const struct added *a, const char *text, size_t len, size_t at, bool plain,
                struct added_hit *hit)
{
    for (size_t i = at; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        const struct added_token *t;

        if (a->first[c] == a->first[c + 1] || !(t = longest(a, text + i, len - i)))
            continue;
        *hit = (struct added_hit){ i, i + t->len, t->id };
        if ((plain && t->flags & ADDED_SPECIAL) ||
            (t->flags & ADDED_SINGLE_WORD && beside_word(text, len, hit->start, hit->stop))) {
            i = hit->stop - 1; /* it stays text, and nothing inside it is looked for */
            continue;
        }
        strip(t, text, len, at, hit);
        return true;
    }
    return false;
}
