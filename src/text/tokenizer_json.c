/* tokenizer.json, part by part. */
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/tokenizer_parts.h"

static bool is_set(json_t *j)
{
    return j && !json_is_null(j) && !(json_is_string(j) && json_string_length(j) == 0);
}

/* What would change the ids and is not done here. */
static int check_model(json_t *model, struct err *e)
{
    static const char *const foreign[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const char *type = json_string_value(json_object_get(model, "type"));

    if (!json_is_object(model))
        return err_set(e, ERR_BADMSG, "no \"model\"");
    if (type && strcmp(type, "BPE") != 0)
        return err_set(e, ERR_UNSUPPORTED, "model type '%.60s': only BPE is supported", type);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (is_set(json_object_get(model, foreign[i])))
            return err_set(e, ERR_UNSUPPORTED, "model: %s is not supported", foreign[i]);
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return err_set(e, ERR_UNSUPPORTED, "model: byte_fallback is not supported");
    if (json_number_value(json_object_get(model, "dropout")) > 0)
        return err_set(e, ERR_UNSUPPORTED, "model: dropout is not supported");
    return 0;
}

static int read_vocab(struct tokenizer *t, json_t *vocab, struct err *e)
{
    const char *piece;
    json_t *id;
    int st;

    if (!json_is_object(vocab) || json_object_size(vocab) > VOCAB_MAX)
        return err_set(e, ERR_BADMSG, "model.vocab is not an object of up to %u tokens", VOCAB_MAX);
    json_object_foreach(vocab, piece, id)
    {
        if (!json_is_integer(id))
            return err_set(e, ERR_BADMSG, "model.vocab: '%.60s' has no integer id", piece);
        if ((st = vocab_add(&t->vocab, json_integer_value(id), piece, strlen(piece), 0, e)) < 0)
            return st;
    }
    return 0;
}

/* "a b" or ["a", "b"]. */
static int read_merge(struct tokenizer *t, json_t *m, struct err *e)
{
    json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);

    if (json_is_string(m))
        return bpe_add_line(&t->bpe, json_string_value(m), json_string_length(m), e);
    if (json_array_size(m) != 2 || !json_is_string(a) || !json_is_string(b))
        return err_set(e, ERR_BADMSG, "model.merges[%u] is neither \"a b\" nor [\"a\", \"b\"]",
                       t->bpe.n);
    return bpe_add(&t->bpe, json_string_value(a), json_string_length(a), json_string_value(b),
                   json_string_length(b), e);
}

static int read_merges(struct tokenizer *t, json_t *model, struct err *e)
{
    json_t *merges = json_object_get(model, "merges"), *m;
    const char *unk = json_string_value(json_object_get(model, "unk_token"));
    size_t i;
    int st;

    if (!json_is_array(merges))
        return err_set(e, ERR_BADMSG, "model.merges is not a list");
    if ((st = bpe_init(&t->bpe, &t->vocab, json_array_size(merges), e)) < 0)
        return st;
    json_array_foreach(merges, i, m)
    {
        if ((st = read_merge(t, m, e)) < 0)
            return st;
    }
    t->bpe.unk = unk ? vocab_find(&t->vocab, unk, strlen(unk)) : -1;
    t->bpe.fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
    t->bpe.ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    return 0;
}

/* null, a form, or a Sequence of at most one form. */
static int read_normalizer(struct tokenizer *t, json_t *j, struct err *e)
{
    static const char *const forms[] = {
        [NORMAL_NFC] = "NFC", [NORMAL_NFD] = "NFD", [NORMAL_NFKC] = "NFKC", [NORMAL_NFKD] = "NFKD"
    };
    const char *type = json_string_value(json_object_get(j, "type"));
    json_t *parts = json_object_get(j, "normalizers");

    if (!is_set(j))
        return 0;
    if (type && strcmp(type, "Sequence") == 0) {
        if (json_array_size(parts) == 0)
            return 0;
        type = json_string_value(json_object_get(json_array_get(parts, 0), "type"));
        if (json_array_size(parts) > 1)
            return err_set(e, ERR_UNSUPPORTED, "a normalizer Sequence of more than one step");
    }
    for (size_t i = 1; type && i < sizeof forms / sizeof *forms; i++)
        if (strcmp(type, forms[i]) == 0) {
            t->normal = (enum normal_form)i;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED,
                   "normalizer '%.60s' is not known; known are NFC, NFD, NFKC, NFKD",
                   type ? type : "without type");
}

static unsigned added_flags(json_t *j)
{
    static const struct {
        const char *name;
        unsigned flag;
    } names[] = { { "special", ADDED_SPECIAL },
                  { "lstrip", ADDED_LSTRIP },
                  { "rstrip", ADDED_RSTRIP },
                  { "single_word", ADDED_SINGLE_WORD } };
    unsigned flags = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is_true(json_object_get(j, names[i].name)))
            flags |= names[i].flag;
    return flags;
}

/* A token that is looked for in normalized text is normalized itself. */
static int watch_for(struct tokenizer *t, json_t *j, int32_t id, unsigned flags, struct err *e)
{
    json_t *content = json_object_get(j, "content");
    struct buf text;
    int st;

    if (!json_is_true(json_object_get(j, "normalized")))
        return added_add(&t->added_raw, json_string_value(content), json_string_length(content), id,
                         flags, e);
    buf_init(&text, BUF_MAX_LINE);
    st = normal_append(&text, t->normal, json_string_value(content), json_string_length(content));
    st = st < 0 ? err_set(e, st, "added token '%.60s': %s", json_string_value(content),
                          status_text(st))
                : added_add(&t->added_normal, buf_str(&text), text.len, id, flags, e);
    buf_finish(&text);
    return st;
}

/* A token that the vocabulary lacks is numbered on from its end, whatever its "id" says: that is how
 * the reference does it, so it is what the model was trained with. */
static int read_added(struct tokenizer *t, json_t *list, struct err *e)
{
    int64_t next = t->vocab.n_set;
    json_t *j;
    size_t i;
    int st;

    json_array_foreach(list, i, j)
    {
        const char *text = json_string_value(json_object_get(j, "content"));
        size_t len = json_string_length(json_object_get(j, "content"));
        unsigned flags = added_flags(j);
        int32_t id;

        if (!text)
            return err_set(e, ERR_BADMSG, "added_tokens[%zu] has no content", i);
        if (len == 0)
            continue;
        if ((id = vocab_find(&t->vocab, text, len)) < 0) {
            if ((st = vocab_add(&t->vocab, next, text, len, 0, e)) < 0)
                return st;
            id = (int32_t)next;
        }
        if (id >= next)
            next = (int64_t)id + 1;
        vocab_mark_added(&t->vocab, id, flags & ADDED_SPECIAL);
        if ((st = watch_for(t, j, id, flags, e)) < 0)
            return st;
    }
    return 0;
}

/* The ids of special token `name` in a TemplateProcessing. */
static int push_special(struct tokenizer *t, json_t *j, const char *name, struct ids *to,
                        struct err *e)
{
    json_t *list = json_object_get(json_object_get(json_object_get(j, "special_tokens"), name),
                                   "ids");
    json_t *id;
    size_t i;

    if (!json_is_array(list))
        return err_set(e, ERR_BADMSG, "post_processor: special token '%.60s' has no ids", name);
    json_array_foreach(list, i, id)
    {
        if (!json_is_integer(id) || !vocab_get(&t->vocab, json_integer_value(id)))
            return err_set(e, ERR_BADMSG, "post_processor: '%.60s' has an id that is no token",
                           name);
        if (ids_push(to, (int32_t)json_integer_value(id)) < 0)
            return err_set(e, ERR_NOMEM, "no memory for the tokenizer");
    }
    return 0;
}

static int read_template(struct tokenizer *t, json_t *j, struct err *e)
{
    struct ids *to = &t->prefix;
    json_t *part;
    size_t i;
    int st;

    json_array_foreach(json_object_get(j, "single"), i, part)
    {
        const char *name = json_string_value(
            json_object_get(json_object_get(part, "SpecialToken"), "id"));

        if (json_object_get(part, "Sequence"))
            to = &t->suffix;
        else if (!name)
            return err_set(e, ERR_BADMSG,
                           "post_processor.single[%zu] is neither Sequence nor SpecialToken", i);
        else if ((st = push_special(t, j, name, to, e)) < 0)
            return st;
    }
    return 0;
}

static int read_post_processor(struct tokenizer *t, json_t *j, int depth, struct err *e)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    json_t *part;
    size_t i;
    int st;

    if (!is_set(j))
        return 0;
    if (type && strcmp(type, "ByteLevel") == 0)
        return 0; /* only moves offsets, which nobody here asks for */
    if (type && strcmp(type, "TemplateProcessing") == 0)
        return read_template(t, j, e);
    if (!type || strcmp(type, "Sequence") != 0 || depth > 0)
        return err_set(
            e, ERR_UNSUPPORTED,
            "post_processor '%.60s' is not known; known are ByteLevel, TemplateProcessing and "
            "one Sequence of these",
            type ? type : "without type");
    json_array_foreach(json_object_get(j, "processors"), i, part)
    {
        if ((st = read_post_processor(t, part, depth + 1, e)) < 0)
            return st;
    }
    return 0;
}

int tokenizer_read_json(struct tokenizer *t, json_t *j, struct err *e)
{
    json_t *model = json_object_get(j, "model");
    int st;

    if ((st = check_model(model, e)) < 0 ||
        (st = read_vocab(t, json_object_get(model, "vocab"), e)) < 0 ||
        (st = read_merges(t, model, e)) < 0 ||
        (st = read_normalizer(t, json_object_get(j, "normalizer"), e)) < 0 ||
        (st = read_added(t, json_object_get(j, "added_tokens"), e)) < 0 ||
        (st = pretok_add_json(&t->pretok, json_object_get(j, "pre_tokenizer"), e)) < 0)
        return st;
    return read_post_processor(t, json_object_get(j, "post_processor"), 0, e);
}
