/* Byte-level BPE: text to token ids and back, from a HuggingFace tokenizer.json or from the
 * vocabulary in a GGUF file. Immutable after loading: any number of threads may use one. */
#ifndef SLUICE_TEXT_TOKENIZER_H
#define SLUICE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct tokenizer;

/* What a GGUF file says of its tokenizer; all borrowed for the call. */
struct tokenizer_gguf {
    const char *pre; /* tokenizer.ggml.pre: "smollm", "llama-bpe", "qwen2", ... */
    uint32_t n_tokens;
    const char *const *tokens; /* byte-level text ("Ġthe"), NUL-terminated */
    const int32_t
        *types; /* llama.cpp's token types (1 normal, 3 control, 4 user defined, 6 byte) */
    uint32_t n_merges;
    const char *const *merges; /* "a b" */
    int32_t bos, eos;          /* -1: none */
    bool add_bos;
    const char *chat_template; /* NULL: none */
};

/* An unknown pre-tokenizer, a merge of unknown tokens, a doubled id: ERR_UNSUPPORTED or ERR_BADMSG
 * with a sentence. */
int tokenizer_from_gguf(struct tokenizer **out, const struct tokenizer_gguf *g, struct err *e);

/* dir/tokenizer.json, and dir/tokenizer_config.json (add_bos_token, chat_template, eos_token ...)
 * and dir/chat_template.jinja and dir/special_tokens_map.json where they are. ERR_NOTFOUND when there
 * is no tokenizer.json. */
int tokenizer_from_dir(struct tokenizer **out, const char *dir, struct err *e);
/* The same from bytes in memory (config may be NULL): what the fuzz target calls. */
int tokenizer_from_json(struct tokenizer **out, const char *json, size_t len, const char *config,
                        size_t config_len, struct err *e);
void tokenizer_destroy(struct tokenizer *t); /* NULL is fine */

uint32_t tokenizer_vocab(const struct tokenizer *t); /* ids are below this */
int32_t tokenizer_bos(const struct tokenizer *t);    /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t);
/* Tokenizer's own template, NULL if it has none. Borrowed. */
const char *tokenizer_chat_template(const struct tokenizer *t);

/* Special-token strings for templates ("bos_token", "eos_token", "pad_token", "unk_token"); NULL if not set. */
const char *tokenizer_special(const struct tokenizer *t, const char *name);

enum {
    TOK_ADD_SPECIAL =
        1, /* what the model puts around a text (BOS), unless it already stands there */
    TOK_PLAIN_SPECIAL = 2, /* special tokens in the text are plain text */
};

/* Token ids of text (UTF-8; invalid parts count as U+FFFD, one for each maximal bad part).
 * *ids is malloc'ed, the caller frees it; *n may be 0 (then *ids may be NULL). Time grows as n log n
 * at worst, whatever the text. ERR_NOMEM, ERR_TOOLONG (above BUF_MAX_BODY bytes), ERR_LIMIT (the
 * tokenizer's own pattern backtracks without end). */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     int32_t **ids, size_t *n);

/* The longest text that can give no more than n tokens, in bytes: longer ones need not be encoded to know
 * that they give more. (Not counted: bytes for which the vocabulary has no token.) */
size_t tokenizer_text_limit(const struct tokenizer *t, size_t n);

/* The bytes of one token: borrowed, not terminated. Length 0 for an id that has none or is out of
 * range. Special tokens give their text. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len);
/* The token as its vocabulary writes it ("Ġthe"); NULL out of range. Borrowed. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* The text of n ids, malloc'ed, NUL-terminated (may hold NULs: see len). Invalid UTF-8 becomes
 * U+FFFD. ERR_NOMEM, ERR_TOOLONG. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **text, size_t *len);

#endif
