#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/quant_targets.h"

#include <jansson.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* Entries of "targets" and "ignore" together; a checkpoint may list every layer. */
#define MAX_ENTRIES 65536
/* A pattern that would take longer than this over one name matches nothing. */
#define MATCH_LIMIT 100000

struct entry {
    char *text;
    pcre2_code *code; /* of what follows "re:"; NULL: a name or a class */
    bool ignore;
};

struct quant_targets {
    struct entry *entry;
    size_t n, room;
    pcre2_match_data *match;
    pcre2_match_context *context;
};

void quant_targets_free(struct quant_targets *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++) {
        free(t->entry[i].text);
        pcre2_code_free(t->entry[i].code);
    }
    free(t->entry);
    pcre2_match_data_free(t->match);
    pcre2_match_context_free(t->context);
    free(t);
}

static int compile(struct entry *x, const char *file, struct err *e)
{
    unsigned char reason[256];
    size_t where;
    int why;

    if (strncmp(x->text, "re:", 3) != 0)
        return 0;
    x->code = pcre2_compile((PCRE2_SPTR)x->text + 3, PCRE2_ZERO_TERMINATED,
                            PCRE2_ANCHORED | PCRE2_UTF, &why, &where, NULL);
    if (x->code)
        return 0;
    pcre2_get_error_message(why, reason, sizeof reason);
    return err_set(e, ERR_BADMSG, "%s: \"quantization_config\": \"%.200s\": %s at byte %zu", file,
                   x->text, (char *)reason, where + 3);
}

static int add(struct quant_targets *t, const char *text, bool ignore, const char *file,
               struct err *e)
{
    if (t->n == MAX_ENTRIES)
        return err_set(e, ERR_LIMIT,
                       "%s: \"quantization_config\": more than %d entries of \"targets\" and "
                       "\"ignore\"",
                       file, MAX_ENTRIES);
    if (t->n == t->room) {
        size_t room = t->room ? 2 * t->room : 64;
        struct entry *more = realloc(t->entry, room * sizeof *more);

        if (!more)
            return err_set(e, ERR_NOMEM, "no memory");
        t->entry = more;
        t->room = room;
    }
    t->entry[t->n] = (struct entry){ .text = strdup(text), .ignore = ignore };
    if (!t->entry[t->n++].text)
        return err_set(e, ERR_NOMEM, "no memory");
    return compile(&t->entry[t->n - 1], file, e);
}

static int add_list(struct quant_targets *t, const json_t *list, bool ignore, const char *file,
                    struct err *e)
{
    const char *key = ignore ? "ignore" : "targets";
    int st = 0;

    if (!list || json_is_null(list))
        return ignore ? 0 : add(t, "Linear", false, file, e);
    if (!json_is_array(list))
        return err_set(e, ERR_BADMSG, "%s: \"quantization_config\": \"%s\" must be a list of names",
                       file, key);
    for (size_t i = 0; st == 0 && i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));

        st = text ? add(t, text, ignore, file, e)
                  : err_set(e, ERR_BADMSG,
                            "%s: \"quantization_config\": entry %zu of \"%s\" is not a name", file,
                            i, key);
    }
    return st;
}

int quant_targets_read(struct quant_targets **out, const struct json_t *config, const char *file,
                       struct err *e)
{
    struct quant_targets *t = calloc(1, sizeof *t);
    const char *name;
    json_t *group;
    int st = 0;

    if (!t)
        return err_set(e, ERR_NOMEM, "no memory");
    t->match = pcre2_match_data_create(1, NULL);
    t->context = pcre2_match_context_create(NULL);
    if (!t->match || !t->context)
        st = err_set(e, ERR_NOMEM, "no memory");
    else
        pcre2_set_match_limit(t->context, MATCH_LIMIT);
    if (st == 0)
        st = add_list(t, json_object_get(config, "ignore"), true, file, e);
    json_object_foreach(json_object_get(config, "config_groups"), name, group)
    {
        if (st == 0)
            st = add_list(t, json_object_get(group, "targets"), false, file, e);
    }
    if (st < 0) {
        quant_targets_free(t);
        return st;
    }
    *out = t;
    return 0;
}

static bool names(const struct quant_targets *t, const struct entry *x, const char *module)
{
    if (!x->code)
        return strcmp(x->text, module) == 0;
    return pcre2_match(x->code, (PCRE2_SPTR)module, strlen(module), 0, 0, t->match, t->context) >=
           0;
}

/* The projections of every layer are of class Linear; routers, heads and what joins a prediction
 * layer's inputs are so in some programs and not in others. */
static bool surely_linear(const char *module)
{
    static const char *const tails[] = {
        ".q_proj",    ".k_proj",    ".v_proj",  ".o_proj",    ".q_a_proj",           ".q_b_proj",
        ".kv_b_proj", ".gate_proj", ".up_proj", ".down_proj", ".kv_a_proj_with_mqa",
    };
    size_t n = strlen(module);

    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        size_t m = strlen(tails[i]);

        if (n >= m && strcmp(module + n - m, tails[i]) == 0)
            return true;
    }
    return false;
}

enum quant_wanted quant_targets_of(const struct quant_targets *t, const char *module,
                                   const char **entry)
{
    enum quant_wanted found = QUANT_NOT_TARGET;

    *entry = "";
    for (const struct entry *x = t->entry; x < t->entry + t->n; x++) {
        bool class = !x->ignore && strcmp(x->text, "Linear") == 0;

        if (!class && !names(t, x, module))
            continue;
        if (class && found == QUANT_WANTED)
            continue;
        *entry = x->text;
        if (x->ignore)
            return QUANT_IGNORED;
        found = class && !surely_linear(module) ? QUANT_UNSURE : QUANT_WANTED;
    }
    return found;
}
