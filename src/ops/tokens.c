#include "ops/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/rand.h"
#include "base/status.h"
#include "model/model.h"
#include "ops/calibrate.h"
#include "sys/map.h"
#include "text/tokenizer.h"

#define RANDOM_TOKENS 512

static int make_random(struct tokens *out, const struct model_config *c, struct err *e)
{
    out->n = RANDOM_TOKENS;
    if (!(out->ids = malloc(out->n * sizeof *out->ids)))
        return err_set(e, ERR_NOMEM, "no memory");
    for (size_t i = 0; i < out->n; i++)
        out->ids[i] = (int32_t)(rand_uniform(1, i, 0) * c->vocab);
    return 0;
}

static int check(const struct tokens *t, const struct model_config *c, const char *file,
                 struct err *e)
{
    if (t->n < 2 || t->n > CALIBRATE_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "%s: %zu tokens; 2 to %u are taken", file ? file : "the text",
                       t->n, CALIBRATE_MAX_TOKENS);
    for (size_t i = 0; i < t->n; i++)
        if (t->ids[i] < 0 || (uint32_t)t->ids[i] >= c->vocab)
            return err_set(e, ERR_MISMATCH,
                           "the tokenizer gives id %d, but the model's vocabulary is %u", t->ids[i],
                           c->vocab);
    return 0;
}

static int encode(struct tokens *out, const struct tokenizer *t, const char *file, const char *text,
                  struct err *e)
{
    struct map m = { 0 };
    int st = file ? map_open(&m, file, e) : 0;

    if (st < 0)
        return st;
    st = tokenizer_encode(t, file ? (const char *)m.data : text, file ? m.size : strlen(text),
                          TOK_ADD_SPECIAL, &out->ids, &out->n);
    map_close(&m);
    return st < 0 ? err_set(e, st, "%s: %s", file ? file : "the text", status_text(st)) : 0;
}

int tokens_read(struct tokens *out, const char *model, const char *file, const char *text,
                const struct model_config *c, struct err *e)
{
    struct tokenizer *t = NULL;
    int st = model_load_tokenizer(&t, model, e);

    *out = (struct tokens){ 0 };
    if (st == ERR_NOTFOUND && !file) {
        log_warning("%s has no tokenizer: random token ids stand for a text", model);
        return make_random(out, c, e);
    }
    if (st == 0 && (st = encode(out, t, file, text, e)) == 0)
        st = check(out, c, file, e);
    tokenizer_destroy(t);
    if (st < 0)
        tokens_finish(out);
    return st;
}

void tokens_finish(struct tokens *t)
{
    free(t->ids);
    *t = (struct tokens){ 0 };
}
