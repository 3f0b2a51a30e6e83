/* What a tokenizer is made of: for the files that build and use one. */
#ifndef SLUICE_TEXT_TOKENIZER_PARTS_H
#define SLUICE_TEXT_TOKENIZER_PARTS_H

#include <jansson.h>

#include "text/added.h"
#include "text/bpe.h"
#include "text/ids.h"
#include "text/normal.h"
#include "text/pretok.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

enum { SPECIAL_BOS, SPECIAL_EOS, SPECIAL_PAD, SPECIAL_UNK, SPECIAL_N };
/* "bos_token", ... by the numbers above. */
extern const char *const tokenizer_special_names[SPECIAL_N];

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    struct pretok pretok;
    struct added added_raw;    /* looked for in the text as it comes */
    struct added added_normal; /* looked for after normalization, between the former */
    enum normal_form normal;
    struct ids prefix, suffix; /* what TOK_ADD_SPECIAL puts around a text */
    int32_t bos, eos;
    size_t longest;           /* bytes of the longest token */
    char *special[SPECIAL_N]; /* owned, NULL: not set */
    char *chat_template;      /* owned or NULL */
};

/* An empty one, NULL without memory; tokenizer_destroy takes it at every stage. */
struct tokenizer *tokenizer_new(void);
/* Replaces the special string (SPECIAL_BOS, ...); of text NULL nothing happens. */
int tokenizer_set_special(struct tokenizer *t, int which, const char *text);

/* Fills a new tokenizer from a parsed tokenizer.json. */
int tokenizer_read_json(struct tokenizer *t, json_t *j, struct err *e);
/* Adds what a parsed tokenizer_config.json or special_tokens_map.json says. */
int tokenizer_read_config(struct tokenizer *t, json_t *j, struct err *e);
/* The last step: everything is there. */
void tokenizer_seal(struct tokenizer *t);

#endif
