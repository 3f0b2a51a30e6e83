/* The tokenizer that came with a checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/source.h"
#include "sys/map.h"
#include "text/tokenizer.h"

#define VOCAB_MAX_TOKENS (1u << 24)

/* Strings of the file with a terminator each. */
struct strings {
    char *bytes;
    const char **item;
    uint32_t n;
};

static void strings_free(struct strings *s)
{
    free(s->bytes);
    free(s->item);
}

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for the vocabulary");
}

/* A zero byte inside a string would cut it: no token of byte-level BPE has one. */
static int strings_read(struct strings *s, const struct gguf *g, const char *key, struct err *e)
{
    struct gguf_array a;
    const unsigned char *p;
    size_t total = 0, n;
    char *to;
    int st = gguf_array(g, key, GGUF_STRING, &a, e);

    if (st < 0)
        return st;
    if (a.n > VOCAB_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "key %s: %llu strings, more than %u", key,
                       (unsigned long long)a.n, VOCAB_MAX_TOKENS);
    p = a.data;
    for (uint64_t i = 0; i < a.n; i++) {
        gguf_next_string(&p, &n);
        total += n + 1;
    }
    to = s->bytes = calloc(1, total ? total : 1);
    s->item = calloc(a.n ? a.n : 1, sizeof *s->item);
    if (!s->bytes || !s->item)
        return no_memory(e);
    p = a.data;
    for (; s->n < a.n; s->n++) {
        const char *from = gguf_next_string(&p, &n);

        if (memchr(from, '\0', n))
            return err_set(e, ERR_BADMSG, "key %s: string %u holds a zero byte", key, s->n);
        s->item[s->n] = memcpy(to, from, n);
        to += n + 1;
    }
    return 0;
}

/* The terminated copy of a string value; NULL where there is none. */
static int text_read(char **out, const struct gguf *g, const char *key, struct err *e)
{
    const char *s;
    size_t n;
    int st = gguf_string(g, key, &s, &n, e);

    *out = NULL;
    if (st == ERR_NOTFOUND)
        return 0;
    if (st < 0)
        return st;
    if (!(*out = strndup(s, n)))
        return no_memory(e);
    return 0;
}

static int id_read(int32_t *out, const struct gguf *g, const char *key, struct err *e)
{
    uint64_t v;
    int st = gguf_u64(g, key, &v, e);

    *out = -1;
    if (st == ERR_NOTFOUND)
        return 0;
    if (st == 0 && v > INT32_MAX)
        return err_set(e, ERR_BADMSG, "key %s: %llu is no token id", key, (unsigned long long)v);
    if (st == 0)
        *out = (int32_t)v;
    return st;
}

/* One type a token, or all normal where the file does not say. */
static int types_read(int32_t **out, const struct gguf *g, uint32_t n_tokens, struct err *e)
{
    struct gguf_array a = { 0 };
    int st = gguf_array(g, "tokenizer.ggml.token_type", GGUF_I32, &a, e);

    if (st < 0 && st != ERR_NOTFOUND)
        return st;
    if (st == 0 && a.n != n_tokens)
        return err_set(e, ERR_BADMSG, "tokenizer.ggml.token_type has %llu entries for %u tokens",
                       (unsigned long long)a.n, n_tokens);
    if (!(*out = malloc((n_tokens + 1) * sizeof **out)))
        return no_memory(e);
    for (uint32_t i = 0; st < 0 && i < n_tokens; i++)
        (*out)[i] = 1;
    if (st == 0)
        memcpy(*out, a.data, n_tokens * sizeof **out);
    return 0;
}

/* Everything that is copied out of the file for the call. */
struct vocab {
    struct strings tokens, merges;
    int32_t *types;
    char *kind, *pre, *template;
};

static void vocab_free(struct vocab *v)
{
    strings_free(&v->tokens);
    strings_free(&v->merges);
    free(v->types);
    free(v->kind);
    free(v->pre);
    free(v->template);
}

static int vocab_read(struct vocab *v, const struct gguf *g, struct err *e)
{
    int st;

    if ((st = text_read(&v->kind, g, "tokenizer.ggml.model", e)) < 0)
        return st;
    if (!v->kind)
        return err_set(e, ERR_NOTFOUND, "the file has no tokenizer (no key tokenizer.ggml.model)");
    if (strcmp(v->kind, "gpt2") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.ggml.model \"%.64s\" is not supported; gpt2 (byte-level BPE) is",
                       v->kind);
    if ((st = strings_read(&v->tokens, g, "tokenizer.ggml.tokens", e)) < 0 ||
        (st = strings_read(&v->merges, g, "tokenizer.ggml.merges", e)) < 0)
        return st == ERR_NOTFOUND ? ERR_BADMSG : st;
    if ((st = types_read(&v->types, g, v->tokens.n, e)) < 0 ||
        (st = text_read(&v->pre, g, "tokenizer.ggml.pre", e)) < 0)
        return st;
    return text_read(&v->template, g, "tokenizer.chat_template", e);
}

static int from_gguf(struct tokenizer **out, const struct gguf *g, struct err *e)
{
    struct vocab v = { 0 };
    struct tokenizer_gguf t = { 0 };
    int st = vocab_read(&v, g, e);

    if (st == 0) {
        t.pre = v.pre ? v.pre : "default";
        t.n_tokens = v.tokens.n;
        t.tokens = v.tokens.item;
        t.types = v.types;
        t.n_merges = v.merges.n;
        t.merges = v.merges.item;
        t.chat_template = v.template;
        if ((st = id_read(&t.bos, g, "tokenizer.ggml.bos_token_id", e)) == 0 &&
            (st = id_read(&t.eos, g, "tokenizer.ggml.eos_token_id", e)) == 0 &&
            ((st = gguf_bool(g, "tokenizer.ggml.add_bos_token", &t.add_bos, e)) == 0 ||
             st == ERR_NOTFOUND))
            st = tokenizer_from_gguf(out, &t, e);
    }
    vocab_free(&v);
    return st;
}

int model_load_tokenizer(struct tokenizer **out, const char *path, struct err *e)
{
    struct map map = { 0 };
    struct gguf *g = NULL;
    bool is_gguf;
    int st = source_is_gguf(&is_gguf, path, e);

    if (st < 0)
        return st;
    if (!is_gguf)
        return tokenizer_from_dir(out, path, e);
    if ((st = map_open(&map, path, e)) == 0 &&
        ((st = gguf_parse(&g, map.data, map.size, e)) < 0 || (st = from_gguf(out, g, e)) < 0))
        err_prefix(e, st, "%s", path);
    gguf_free(g);
    map_close(&map);
    return st;
}
