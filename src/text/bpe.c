#include "text/bpe.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "text/ids.h"
#include "text/utf8.h"
#include "text/vocab.h"

#define NO_RANK UINT32_MAX
#define NONE    UINT32_MAX /* no neighbour */

/* A token of the word so far, linked to its neighbours. */
struct bpe_symbol {
    int32_t id;
    uint32_t prev, next;
    uint32_t rank; /* of the pair with the next one */
};

static uint32_t hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;

    return (uint32_t)(h >> 32);
}

/* Where the pair is, or the empty slot where it would go. */
static struct bpe_merge *probe(const struct bpe *b, int32_t left, int32_t right)
{
    uint32_t mask = b->slots - 1, at = hash(left, right) & mask;

    while (b->slot[at].rank != NO_RANK && (b->slot[at].left != left || b->slot[at].right != right))
        at = (at + 1) & mask;
    return &b->slot[at];
}

int bpe_init(struct bpe *b, const struct vocab *vocab, size_t n, struct err *e)
{
    uint32_t slots = 1024;

    *b = (struct bpe){ .vocab = vocab, .unk = -1 };
    if (n > BPE_MAX_MERGES)
        return err_set(e, ERR_LIMIT, "%zu merges are more than %u", n, BPE_MAX_MERGES);
    while (slots < 2 * n)
        slots *= 2;
    b->slot = malloc(slots * sizeof *b->slot);
    if (!b->slot)
        return err_set(e, ERR_NOMEM, "no memory for %zu merges", n);
    memset(b->slot, 0xff, slots * sizeof *b->slot);
    b->slots = slots;
    for (int i = 0; i < 256; i++)
        b->byte_id[i] = vocab_byte_id(vocab, (unsigned char)i);
    return 0;
}

void bpe_finish(struct bpe *b)
{
    free(b->slot);
    b->slot = NULL;
}

/* The id of left and right written together. */
static int32_t find_joined(const struct vocab *v, const char *left, size_t left_len,
                           const char *right, size_t right_len)
{
    char small[256], *text = small;
    int32_t id;

    if (left_len + right_len > sizeof small && !(text = malloc(left_len + right_len)))
        return -1;
    memcpy(text, left, left_len);
    memcpy(text + left_len, right, right_len);
    id = vocab_find(v, text, left_len + right_len);
    if (text != small)
        free(text);
    return id;
}

int bpe_add(struct bpe *b, const char *left, size_t left_len, const char *right, size_t right_len,
            struct err *e)
{
    int32_t l = vocab_find(b->vocab, left, left_len), r = vocab_find(b->vocab, right, right_len);
    int32_t id = find_joined(b->vocab, left, left_len, right, right_len);
    struct bpe_merge *m;

    if (l < 0 || r < 0 || id < 0)
        return err_set(e, ERR_BADMSG, "merge %u: '%.*s' + '%.*s': %s is not in the vocabulary",
                       b->n, (int)(left_len > 60 ? 60 : left_len), left,
                       (int)(right_len > 60 ? 60 : right_len), right,
                       l < 0   ? "the left part"
                       : r < 0 ? "the right part"
                               : "their concatenation");
    assert(2 * b->n < b->slots);
    m = probe(b, l, r);
    *m = (struct bpe_merge){ l, r, b->n++, id }; /* of two equal merges the later one counts */
    return 0;
}

int bpe_add_line(struct bpe *b, const char *line, size_t len, struct err *e)
{
    const char *space = memchr(line, ' ', len);

    if (!space || memchr(space + 1, ' ', len - (size_t)(space + 1 - line)))
        return err_set(e, ERR_BADMSG, "merge %u: '%.*s' is not two tokens with a blank between",
                       b->n, (int)(len > 60 ? 60 : len), line);
    return bpe_add(b, line, (size_t)(space - line), space + 1, len - (size_t)(space + 1 - line), e);
}

/* The heap holds rank << 32 | position: the least is the lowest rank, then the leftmost. An entry
 * whose symbol has another rank by now is stale and skipped. */
static void heap_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t x = heap[at];

    for (size_t kid; (kid = 2 * at + 1) < n; at = kid) {
        if (kid + 1 < n && heap[kid + 1] < heap[kid])
            kid++;
        if (heap[kid] >= x)
            break;
        heap[at] = heap[kid];
    }
    heap[at] = x;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t x)
{
    size_t at = (*n)++;

    for (; at > 0 && heap[(at - 1) / 2] > x; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = x;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];

    heap[0] = heap[--*n];
    if (*n > 0)
        heap_down(heap, *n, 0);
    return top;
}

static uint32_t pair_rank(const struct bpe *b, const struct bpe_symbol *s, uint32_t at)
{
    return s[at].next == NONE ? NO_RANK : probe(b, s[at].id, s[s[at].next].id)->rank;
}

/* Merges the symbol with its successor. */
static void join(const struct bpe *b, struct bpe_symbol *s, uint32_t at)
{
    uint32_t dead = s[at].next, next = s[dead].next;

    s[at].id = probe(b, s[at].id, s[dead].id)->id;
    s[at].next = next;
    s[dead].rank = NO_RANK; /* its entries in the heap are stale */
    if (next != NONE)
        s[next].prev = at;
}

/* Every merge pushes at most two entries, and there are fewer merges than symbols. */
#define HEAP_PER_SYMBOL 3

static void merge_all(const struct bpe *b, struct bpe_symbol *s, uint64_t *heap, uint32_t n_symbols)
{
    size_t n = 0;

    for (uint32_t i = 0; i < n_symbols; i++)
        if ((s[i].rank = pair_rank(b, s, i)) != NO_RANK)
            heap[n++] = (uint64_t)s[i].rank << 32 | i;
    for (size_t i = n / 2; i-- > 0;)
        heap_down(heap, n, i);
    while (n > 0) {
        uint64_t top = heap_pop(heap, &n);
        uint32_t at = (uint32_t)top, edge[2];

        if (s[at].rank != top >> 32)
            continue;
        join(b, s, at);
        edge[0] = s[at].prev;
        edge[1] = at;
        for (int i = 0; i < 2; i++) {
            if (edge[i] == NONE)
                continue;
            s[edge[i]].rank = pair_rank(b, s, edge[i]);
            if (s[edge[i]].rank != NO_RANK)
                heap_push(heap, &n, (uint64_t)s[edge[i]].rank << 32 | edge[i]);
        }
        assert(n <= HEAP_PER_SYMBOL * (size_t)n_symbols);
    }
}

static int reserve(struct bpe_work *w, size_t len)
{
    size_t cap = w->cap ? w->cap : 256;

    if (len <= w->cap)
        return 0;
    while (cap < len)
        cap *= 2;
    free(w->symbol);
    free(w->heap);
    w->symbol = malloc(cap * sizeof *w->symbol);
    w->heap = malloc(HEAP_PER_SYMBOL * cap * sizeof *w->heap);
    w->cap = w->symbol && w->heap ? cap : 0;
    return w->cap ? 0 : ERR_NOMEM;
}

void bpe_work_finish(struct bpe_work *w)
{
    free(w->symbol);
    free(w->heap);
    free(w->piece);
    *w = (struct bpe_work){ 0 };
}

/* The word's bytes as symbols; those without a token are gone before anything is merged. */
static uint32_t first_symbols(const struct bpe *b, struct bpe_symbol *s, const char *word,
                              size_t len)
{
    uint32_t n = 0;
    bool was_unk = false;

    for (size_t i = 0; i < len; i++) {
        int32_t id = b->byte_id[(unsigned char)word[i]];
        bool unk = id < 0;

        if (unk && (b->unk < 0 || (was_unk && b->fuse_unk)))
            continue;
        s[n] = (struct bpe_symbol){ unk ? b->unk : id, n - 1, n + 1, NO_RANK };
        was_unk = unk;
        n++;
    }
    if (n > 0)
        s[n - 1].next = NONE;
    return n;
}

/* The id of the word if it is a token as it stands, -1 if not, ERR_NOMEM. */
static int whole_word(const struct bpe *b, struct bpe_work *w, const char *word, size_t len,
                      int32_t *id)
{
    size_t n = 0;

    if (2 * len > w->piece_cap) {
        char *p = realloc(w->piece, 2 * len);

        if (!p)
            return ERR_NOMEM;
        w->piece = p;
        w->piece_cap = 2 * len;
    }
    for (size_t i = 0; i < len; i++) {
        char c[UTF8_MAX];
        size_t l = utf8_put(c, vocab_byte_char((unsigned char)word[i]));

        memcpy(w->piece + n, c, l);
        n += l;
    }
    *id = vocab_find(b->vocab, w->piece, n);
    return 0;
}

int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *word, size_t len,
               struct ids *out)
{
    uint32_t n;
    int st;

    if (b->ignore_merges) {
        int32_t id;

        if ((st = whole_word(b, w, word, len, &id)) < 0)
            return st;
        if (id >= 0)
            return ids_push(out, id);
    }
    if (len >= NONE || (st = reserve(w, len)) < 0)
        return ERR_NOMEM;
    n = first_symbols(b, w->symbol, word, len);
    if (n > 1)
        merge_all(b, w->symbol, w->heap, n);
    for (uint32_t i = n ? 0 : NONE; i != NONE; i = w->symbol[i].next)
        if ((st = ids_push(out, w->symbol[i].id)) < 0)
            return st;
    return 0;
}
