/* A model folder: tokenizer.json and the small files beside it. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "sys/map.h"
#include "text/template.h"
#include "text/tokenizer_parts.h"

#define MAX_JSON (512u << 20)

/* A special token is written as text or as {"content": text}. */
static const char *special_text(json_t *j)
{
    return json_string_value(json_is_object(j) ? json_object_get(j, "content") : j);
}

/* A text, or a list of {"name", "template"}, of which "default" counts. */
static const char *template_text(json_t *j)
{
    json_t *part;
    size_t i;

    json_array_foreach(j, i, part)
    {
        const char *name = json_string_value(json_object_get(part, "name"));

        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(part, "template"));
    }
    return json_string_value(j);
}

/* add_bos_token and add_eos_token count where the post-processor adds nothing there. */
static int add_around(struct tokenizer *t, json_t *j)
{
    static const char *const key[] = { "add_bos_token", "add_eos_token" };
    struct ids *to[] = { &t->prefix, &t->suffix };

    for (int i = 0; i < 2; i++) {
        const char *text = t->special[i == 0 ? SPECIAL_BOS : SPECIAL_EOS];
        int32_t id = text ? vocab_find(&t->vocab, text, strlen(text)) : -1;

        if (json_is_true(json_object_get(j, key[i])) && to[i]->n == 0 && id >= 0 &&
            ids_push(to[i], id) < 0)
            return ERR_NOMEM;
    }
    return 0;
}

int tokenizer_read_config(struct tokenizer *t, json_t *j, struct err *e)
{
    const char *text = template_text(json_object_get(j, "chat_template"));
    int st = 0;

    for (int i = 0; i < SPECIAL_N && st == 0; i++)
        if (!t->special[i])
            st = tokenizer_set_special(
                t, i, special_text(json_object_get(j, tokenizer_special_names[i])));
    if (st == 0)
        st = add_around(t, j);
    if (st == 0 && text && !t->chat_template && !(t->chat_template = strdup(text)))
        st = ERR_NOMEM;
    return st < 0 ? err_set(e, st, "no memory for the tokenizer") : 0;
}

static int parse(json_t **out, const char *data, size_t len, struct err *e)
{
    json_error_t why;

    if (len > MAX_JSON)
        return err_set(e, ERR_LIMIT, "%zu bytes of JSON are more than %u", len, MAX_JSON);
    if ((*out = json_loadb(data ? data : "", len, 0, &why)))
        return 0;
    return err_set(e, json_error_code(&why) == json_error_out_of_memory ? ERR_NOMEM : ERR_BADMSG,
                   "line %d, column %d: %s", why.line, why.column, why.text);
}

/* Reads one of the two kinds of file into t. */
static int apply(struct tokenizer *t, const char *data, size_t len,
                 int (*read)(struct tokenizer *, json_t *, struct err *), struct err *e)
{
    json_t *j = NULL;
    int st = parse(&j, data, len, e);

    if (st == 0)
        st = read(t, j, e);

    json_decref(j);
    return st;
}

int tokenizer_from_json(struct tokenizer **out, const char *json, size_t len, const char *config,
                        size_t config_len, struct err *e)
{
    struct tokenizer *t = tokenizer_new();
    int st = t ? apply(t, json, len, tokenizer_read_json, e)
               : err_set(e, ERR_NOMEM, "no memory for the tokenizer");

    if (st == 0 && config)
        st = apply(t, config, config_len, tokenizer_read_config, e);
    if (st < 0) {
        tokenizer_destroy(t);
        return st;
    }
    tokenizer_seal(t);
    *out = t;
    return 0;
}

/* Reads dir/name if it is there. */
static int apply_file(struct tokenizer *t, const char *dir, const char *name,
                      int (*read)(struct tokenizer *, json_t *, struct err *), bool required,
                      struct err *e)
{
    char path[4096];
    struct map m;
    int st;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return err_set(e, ERR_TOOLONG, "path '%.60s...' is too long", dir);
    if ((st = map_open(&m, path, e)) == ERR_NOTFOUND && !required)
        return 0;
    if (st < 0)
        return st;
    st = apply(t, (const char *)m.data, m.size, read, e);
    map_close(&m);
    return st < 0 ? err_prefix(e, st, "%s", path) : 0;
}

/* chat_template.jinja outranks the one in tokenizer_config.json. */
static int read_jinja(struct tokenizer *t, const char *dir, struct err *e)
{
    char path[4096];
    struct map m;
    int st;

    if (snprintf(path, sizeof path, "%s/chat_template.jinja", dir) >= (int)sizeof path)
        return err_set(e, ERR_TOOLONG, "path '%.60s...' is too long", dir);
    if ((st = map_open(&m, path, e)) < 0)
        return st == ERR_NOTFOUND ? 0 : st;
    if (m.size > TEMPLATE_MAX_SOURCE)
        st = err_set(e, ERR_LIMIT, "%s: %zu bytes are more than %u", path, m.size,
                     TEMPLATE_MAX_SOURCE);
    else if (!(t->chat_template = strndup(m.data ? (const char *)m.data : "", m.size)))
        st = err_set(e, ERR_NOMEM, "no memory for the tokenizer");
    map_close(&m);
    return st;
}

int tokenizer_from_dir(struct tokenizer **out, const char *dir, struct err *e)
{
    struct tokenizer *t = tokenizer_new();
    int st;

    if (!t)
        return err_set(e, ERR_NOMEM, "no memory for the tokenizer");
    if ((st = apply_file(t, dir, "tokenizer.json", tokenizer_read_json, true, e)) < 0 ||
        (st = read_jinja(t, dir, e)) < 0 ||
        (st = apply_file(t, dir, "tokenizer_config.json", tokenizer_read_config, false, e)) < 0 ||
        (st = apply_file(t, dir, "special_tokens_map.json", tokenizer_read_config, false, e)) < 0) {
        tokenizer_destroy(t);
        return st;
    }
    tokenizer_seal(t);
    *out = t;
    return 0;
}
