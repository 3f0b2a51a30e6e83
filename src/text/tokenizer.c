#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

const char *const tokenizer_special_names[SPECIAL_N] = { "bos_token", "eos_token", "pad_token",
                                                         "unk_token" };

struct tokenizer *tokenizer_new(void)
{
    struct tokenizer *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    vocab_init(&t->vocab);
    t->bos = t->eos = -1;
    return t;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_finish(&t->bpe);
    vocab_finish(&t->vocab);
    pretok_finish(&t->pretok);
    added_finish(&t->added_raw);
    added_finish(&t->added_normal);
    free(t->prefix.v);
    free(t->suffix.v);
    for (int i = 0; i < SPECIAL_N; i++)
        free(t->special[i]);
    free(t->chat_template);
    free(t);
}

int tokenizer_set_special(struct tokenizer *t, int which, const char *text)
{
    char *copy;

    if (!text)
        return 0;
    if (!(copy = strdup(text)))
        return ERR_NOMEM;
    free(t->special[which]);
    t->special[which] = copy;
    return 0;
}

static int32_t special_id(const struct tokenizer *t, int which)
{
    const char *text = t->special[which];

    return text ? vocab_find(&t->vocab, text, strlen(text)) : -1;
}

void tokenizer_seal(struct tokenizer *t)
{
    added_seal(&t->added_raw);
    added_seal(&t->added_normal);
    if (t->bos < 0)
        t->bos = special_id(t, SPECIAL_BOS);
    if (t->eos < 0)
        t->eos = special_id(t, SPECIAL_EOS);
    for (uint32_t i = 0; i < t->vocab.n; i++)
        if (t->vocab.entry[i].bytes_len > t->longest)
            t->longest = t->vocab.entry[i].bytes_len;
}

/* Composing takes three bytes or fewer for each one that it leaves. */
size_t tokenizer_text_limit(const struct tokenizer *t, size_t n)
{
    return n * t->longest * (t->normal == NORMAL_NONE ? 1 : 3);
}

uint32_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->vocab.n;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return t->chat_template;
}

const char *tokenizer_special(const struct tokenizer *t, const char *name)
{
    for (int i = 0; i < SPECIAL_N; i++)
        if (strcmp(name, tokenizer_special_names[i]) == 0)
            return t->special[i];
    return NULL;
}

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len)
{
    const struct vocab_entry *v = vocab_get(&t->vocab, id);

    *len = v ? v->bytes_len : 0;
    return v ? vocab_bytes(&t->vocab, v) : "";
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id)
{
    const struct vocab_entry *v = vocab_get(&t->vocab, id);

    return v ? vocab_piece(&t->vocab, v) : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    const struct vocab_entry *v = vocab_get(&t->vocab, id);

    return v && v->flags & VOCAB_SPECIAL;
}

/* Characters span tokens: the bytes are joined first and made good UTF-8 then. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **text, size_t *len)
{
    struct buf raw, clean;
    int st;

    buf_init(&raw, BUF_MAX_BODY);
    buf_init(&clean, BUF_MAX_BODY);
    buf_append(&raw, "", 0);
    for (size_t i = 0; i < n; i++) {
        size_t l;
        const char *bytes = tokenizer_bytes(t, ids[i], &l);

        if (!(skip_special && tokenizer_is_special(t, ids[i])))
            buf_append(&raw, bytes, l);
    }
    st = raw.status;
    if (st == 0 && utf8_valid_prefix(raw.data, raw.len) == raw.len) {
        *text = buf_take(&raw, len);
        return 0;
    }
    if (st == 0 && (st = utf8_append_clean(&clean, raw.data, raw.len)) == 0)
        *text = buf_take(&clean, len);
    buf_finish(&raw);
    buf_finish(&clean);
    return st;
}
