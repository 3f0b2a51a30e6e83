/* The split of a text into the words that BPE works on: a chain of regular expressions, each
 * splitting what the one before left. */
#ifndef SLUICE_TEXT_PRETOK_H
#define SLUICE_TEXT_PRETOK_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct err;

#define PRETOK_MAX_STEPS 16
/* Steps of one match; a run of blanks takes about one for each. A pattern that needs more than this
 * fails the encoding with ERR_LIMIT. */
#define PRETOK_MATCH_LIMIT 20000000u
#define PRETOK_HEAP_KIB    65536u

/* What becomes of a match (HuggingFace's names). */
enum pretok_split {
    PRETOK_ISOLATED,   /* a piece of its own */
    PRETOK_REMOVED,    /* nothing */
    PRETOK_CONTIGUOUS, /* adjacent matches are one piece */
    PRETOK_PREVIOUS,   /* joined to the text before it */
    PRETOK_NEXT,       /* joined to the text after it */
};

struct pretok_step {
    struct pcre2_real_code_8 *code;
    enum pretok_split split;
    bool invert; /* what does not match counts as the match */
};

struct pretok {
    struct pretok_step step[PRETOK_MAX_STEPS];
    int n;
};

void pretok_finish(struct pretok *p);

/* literal: the pattern is plain text. ERR_UNSUPPORTED, ERR_BADMSG or ERR_LIMIT with the pattern. */
int pretok_add(struct pretok *p, const char *pattern, size_t len, bool literal,
               enum pretok_split split, bool invert, struct err *e);
/* The pre_tokenizer of a tokenizer.json (may be null). */
int pretok_add_json(struct pretok *p, json_t *j, struct err *e);

/* What a GGUF file's tokenizer.ggml.pre stands for. */
struct pretok_named {
    bool nfc;           /* the model's tokenizer normalizes */
    bool ignore_merges; /* a word that is a token is that token */
};

/* ERR_UNSUPPORTED for a name that is not in the table. */
int pretok_add_named(struct pretok *p, const char *name, struct pretok_named *out, struct err *e);
/* The same as the pre_tokenizer of a tokenizer.json: a new reference, NULL for a name that is not in
 * the table (or without memory). */
json_t *pretok_named_json(const char *name, struct pretok_named *out);

/* Scratch memory of one encoding. */
struct pretok_work {
    struct pcre2_real_match_data_8 *match;
    struct pcre2_real_match_context_8 *context;
};

int pretok_work_init(struct pretok_work *w);
void pretok_work_finish(struct pretok_work *w);

typedef int pretok_word_fn(void *arg, const char *word, size_t len);

/* Calls word for each piece that is not empty, in order, until one returns less than 0, and returns
 * that. text is good UTF-8. ERR_LIMIT, ERR_NOMEM. */
int pretok_run(const struct pretok *p, struct pretok_work *w, const char *text, size_t len,
               pretok_word_fn *word, void *arg);

#endif
