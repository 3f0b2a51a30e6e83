#include "text/vocab.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "text/utf8.h"

#define BYTE_FIRST 0x100u /* where the characters of unprintable bytes begin */

static bool printable(uint32_t b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

/* The unprintable bytes are 00-20, 7f-a0 and ad. */
uint32_t vocab_byte_char(unsigned char b)
{
    if (printable(b))
        return b;
    return BYTE_FIRST + (b <= 0x20 ? b : b <= 0xa0 ? b - 0x7fu + 0x21u : 0x43u);
}

/* The byte that a character stands for, -1 for none. */
static int char_byte(uint32_t cp)
{
    uint32_t k = cp - BYTE_FIRST;

    if (cp < BYTE_FIRST)
        return printable(cp) ? (int)cp : -1;
    if (k > 0x43)
        return -1;
    return k <= 0x20 ? (int)k : k < 0x43 ? (int)(k - 0x21 + 0x7f) : 0xad;
}

void vocab_init(struct vocab *v)
{
    *v = (struct vocab){ 0 };
    buf_init(&v->text, VOCAB_MAX_BYTES);
}

void vocab_finish(struct vocab *v)
{
    buf_finish(&v->text);
    free(v->entry);
    free(v->slot);
    *v = (struct vocab){ 0 };
}

/* FNV-1a, 64 bits folded. */
static uint32_t hash(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32);
}

/* Where the piece is, or where it would go. */
static uint32_t probe(const struct vocab *v, const char *piece, size_t len)
{
    uint32_t mask = v->slots - 1, at = hash(piece, len) & mask;

    for (; v->slot[at] >= 0; at = (at + 1) & mask) {
        const struct vocab_entry *t = &v->entry[v->slot[at]];

        if (t->piece_len == len && memcmp(v->text.data + t->piece, piece, len) == 0)
            break;
    }
    return at;
}

int32_t vocab_find(const struct vocab *v, const char *piece, size_t len)
{
    return v->slots ? v->slot[probe(v, piece, len)] : -1;
}

static int grow_slots(struct vocab *v)
{
    uint32_t slots = v->slots ? 2 * v->slots : 1024;
    int32_t *slot = malloc(slots * sizeof *slot);

    if (!slot)
        return ERR_NOMEM;
    memset(slot, 0xff, slots * sizeof *slot);
    free(v->slot);
    v->slot = slot;
    v->slots = slots;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct vocab_entry *t = &v->entry[i];

        if (t->flags & VOCAB_SET)
            slot[probe(v, v->text.data + t->piece, t->piece_len)] = (int32_t)i;
    }
    return 0;
}

static int grow_entries(struct vocab *v, uint32_t want)
{
    uint32_t cap = v->cap ? v->cap : 512;
    struct vocab_entry *p;

    while (cap < want)
        cap *= 2;
    if (cap > v->cap) {
        if (!(p = realloc(v->entry, cap * sizeof *p)))
            return ERR_NOMEM;
        v->entry = p;
        v->cap = cap;
    }
    if (want > v->n) {
        memset(v->entry + v->n, 0, (want - v->n) * sizeof *v->entry);
        v->n = want;
    }
    return 0;
}

/* Appends text and a NUL, and says where it lies. */
static int put_text(struct vocab *v, const char *s, size_t len, uint32_t *at)
{
    *at = (uint32_t)v->text.len;
    buf_append(&v->text, s, len);
    return buf_append(&v->text, "", 1);
}

int vocab_add_raw(struct vocab *v, int64_t id, const char *piece, size_t len, const char *bytes,
                  size_t bytes_len, unsigned flags, struct err *e)
{
    struct vocab_entry t = { .piece_len = (uint32_t)len, .bytes_len = (uint32_t)bytes_len };
    int st;

    if (id < 0 || id >= VOCAB_MAX)
        return err_set(e, ERR_LIMIT, "token id %lld of '%.60s' is not below %u", (long long)id,
                       piece, VOCAB_MAX);
    if ((2 * v->n_set >= v->slots && (st = grow_slots(v)) < 0) ||
        (st = grow_entries(v, (uint32_t)id + 1)) < 0)
        return err_set(e, st, "no memory for a vocabulary of %u tokens", v->n_set);
    if (v->entry[id].flags & VOCAB_SET)
        return err_set(e, ERR_BADMSG, "token id %lld is given twice: '%.60s' and '%.60s'",
                       (long long)id, v->text.data + v->entry[id].piece, piece);
    if (vocab_find(v, piece, len) >= 0)
        return err_set(e, ERR_BADMSG, "token '%.60s' is given twice: ids %d and %lld", piece,
                       vocab_find(v, piece, len), (long long)id);
    put_text(v, piece, len, &t.piece);
    if ((st = put_text(v, bytes, bytes_len, &t.bytes)) < 0)
        return err_set(e, st, "the vocabulary's texts exceed %u bytes or the memory",
                       VOCAB_MAX_BYTES);
    t.flags = (uint8_t)(flags | VOCAB_SET);
    v->entry[id] = t;
    v->n_set++;
    v->slot[probe(v, piece, len)] = (int32_t)id;
    return 0;
}

/* The bytes that a byte-level piece stands for. A piece with a character outside the table stands
 * for its own text, as in HuggingFace's decoder: false. */
static bool byte_level(const char *piece, size_t len, char *out, size_t *out_len)
{
    size_t n = 0;

    for (size_t at = 0, l; at < len; at += l) {
        int b = -1;

        if (utf8_scan(piece + at, len - at, &l) == UTF8_GOOD)
            b = char_byte(utf8_get(piece + at, &l));
        if (b < 0)
            return false;
        out[n++] = (char)b;
    }
    *out_len = n;
    return true;
}

int vocab_add(struct vocab *v, int64_t id, const char *piece, size_t len, unsigned flags,
              struct err *e)
{
    char *bytes = malloc(len + 1);
    size_t n;
    int st;

    if (!bytes)
        return err_set(e, ERR_NOMEM, "no memory for a token of %zu bytes", len);
    if (byte_level(piece, len, bytes, &n))
        st = vocab_add_raw(v, id, piece, len, bytes, n, flags, e);
    else
        st = vocab_add_raw(v, id, piece, len, piece, len, flags, e);
    free(bytes);
    return st;
}

void vocab_mark_added(struct vocab *v, int32_t id, bool special)
{
    struct vocab_entry *t = &v->entry[id];

    assert(t->flags & VOCAB_SET);
    t->flags |= VOCAB_ADDED | (special ? VOCAB_SPECIAL : 0);
    t->bytes = t->piece;
    t->bytes_len = t->piece_len;
}

const struct vocab_entry *vocab_get(const struct vocab *v, int64_t id)
{
    if (id < 0 || id >= v->n || !(v->entry[id].flags & VOCAB_SET))
        return NULL;
    return &v->entry[id];
}

const char *vocab_piece(const struct vocab *v, const struct vocab_entry *t)
{
    return v->text.data + t->piece;
}

const char *vocab_bytes(const struct vocab *v, const struct vocab_entry *t)
{
    return v->text.data + t->bytes;
}

int32_t vocab_byte_id(const struct vocab *v, unsigned char b)
{
    char c[UTF8_MAX];

    return vocab_find(v, c, utf8_put(c, vocab_byte_char(b)));
}
