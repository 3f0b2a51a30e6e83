#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "text/tokenizer_parts.h"

/* Token types of GGUF files. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

static int add_token(struct tokenizer *t, const struct tokenizer_gguf *g, uint32_t i, struct err *e)
{
    const char *piece = g->tokens[i];
    int type = g->types ? g->types[i] : TYPE_NORMAL;
    bool added = type == TYPE_CONTROL || type == TYPE_USER_DEFINED;
    size_t len = strlen(piece);
    unsigned byte;
    char one;
    int st;

    if (type == TYPE_BYTE && len == 6 && sscanf(piece, "<0x%2x>", &byte) == 1) {
        one = (char)byte;
        return vocab_add_raw(&t->vocab, i, piece, len, &one, 1, 0, e);
    }
    if ((st = vocab_add(&t->vocab, i, piece, len, 0, e)) < 0 || !added || len == 0)
        return st;
    vocab_mark_added(&t->vocab, (int32_t)i, type == TYPE_CONTROL);
    return added_add(&t->added_raw, piece, len, (int32_t)i,
                     type == TYPE_CONTROL ? ADDED_SPECIAL : 0, e);
}

static int add_merges(struct tokenizer *t, const struct tokenizer_gguf *g, struct err *e)
{
    int st = bpe_init(&t->bpe, &t->vocab, g->n_merges, e);

    for (uint32_t i = 0; st == 0 && i < g->n_merges; i++)
        st = bpe_add_line(&t->bpe, g->merges[i], strlen(g->merges[i]), e);
    return st;
}

static int set_specials(struct tokenizer *t, const struct tokenizer_gguf *g, struct err *e)
{
    int st;

    if (g->bos >= 0 && (uint32_t)g->bos >= g->n_tokens)
        return err_set(e, ERR_BADMSG, "bos token %d is not below %u tokens", g->bos, g->n_tokens);
    if (g->eos >= 0 && (uint32_t)g->eos >= g->n_tokens)
        return err_set(e, ERR_BADMSG, "eos token %d is not below %u tokens", g->eos, g->n_tokens);
    t->bos = g->bos < 0 ? -1 : g->bos;
    t->eos = g->eos < 0 ? -1 : g->eos;
    if ((st = tokenizer_set_special(t, SPECIAL_BOS, tokenizer_piece(t, t->bos))) < 0 ||
        (st = tokenizer_set_special(t, SPECIAL_EOS, tokenizer_piece(t, t->eos))) < 0 ||
        (g->add_bos && t->bos >= 0 && (st = ids_push(&t->prefix, t->bos)) < 0) ||
        (g->chat_template && !(t->chat_template = strdup(g->chat_template))))
        return err_set(e, ERR_NOMEM, "no memory for the tokenizer");
    return 0;
}

static int fill(struct tokenizer *t, const struct tokenizer_gguf *g, struct err *e)
{
    struct pretok_named how;
    int st;

    if ((st = pretok_add_named(&t->pretok, g->pre ? g->pre : "", &how, e)) < 0)
        return st;
    for (uint32_t i = 0; i < g->n_tokens; i++)
        if ((st = add_token(t, g, i, e)) < 0)
            return st;
    if ((st = add_merges(t, g, e)) < 0 || (st = set_specials(t, g, e)) < 0)
        return st;
    t->normal = how.nfc ? NORMAL_NFC : NORMAL_NONE;
    t->bpe.ignore_merges = how.ignore_merges;
    tokenizer_seal(t);
    return 0;
}

int tokenizer_from_gguf(struct tokenizer **out, const struct tokenizer_gguf *g, struct err *e)
{
    struct tokenizer *t = tokenizer_new();
    int st = t ? fill(t, g, e) : err_set(e, ERR_NOMEM, "no memory for the tokenizer");

    if (st < 0) {
        tokenizer_destroy(t);
        return st;
    }
    *out = t;
    return 0;
}
