/* Rendered chats against Jinja2 as transformers and vLLM set it up, and SmolLM2's chats against their
 * reference texts and token ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "golden.h"
#include "model/model.h"
#include "text/template.h"
#include "text/tokenizer.h"

static struct template *load(const char *name)
{
    struct template *t = NULL;
    struct err e = { 0 };
    char file[256], *path, *source;
    size_t len = 0;

    snprintf(file, sizeof file, "chat_templates/%s", name);
    path = golden_path(file);
    source = golden_read(path, &len);
    assert_non_null(source);
    if (template_compile(&t, source, len, &e) < 0)
        fail_msg("%s: %s", name, e.text);
    free(source);
    free(path);
    return t;
}

/* Python's word counts where it differs from the other implementation. */
static bool matches(const struct template *t, json_t *c)
{
    json_t *want = json_object_get(c, "python_expected");
    bool fails = json_object_get(c, "python_error");
    struct err e = { 0 };
    char *text = NULL;
    size_t len = 0;
    int st = template_render(t, json_object_get(c, "input"), &text, &len, &e);
    bool same;

    if (!want && !fails)
        want = json_object_get(c, "expected");
    same = want ? st == 0 && json_string_length(want) == len &&
                      memcmp(json_string_value(want), text, len) == 0
                : st == ERR_INVAL || st == ERR_BADMSG;
    /* A template's own exception comes through word for word. */
    if (st == ERR_INVAL)
        same = same && strcmp(e.text, json_string_value(json_object_get(c, "error"))) == 0;
    if (!same)
        print_error("%s: %s\n got: %s\nwant: %s\n", json_string_value(json_object_get(c, "id")),
                    st < 0 ? e.text : "differs", text ? text : "", json_string_value(want));
    free(text);
    return same;
}

static void vectors(void **state)
{
    json_t *all = golden_json("chat_template_vectors.jsonl"), *c;
    struct template *t = NULL;
    const char *loaded = "";
    size_t i, equal = 0;

    (void)state;
    if (!all)
        skip();
    json_array_foreach(all, i, c)
    {
        const char *name = json_string_value(json_object_get(c, "template"));

        if (strcmp(name, loaded) != 0) {
            template_destroy(t);
            t = load(loaded = name);
        }
        equal += matches(t, c);
    }
    print_message("chat templates: %zu of %zu equal\n", equal, json_array_size(all));
    assert_int_equal(equal, json_array_size(all));
    template_destroy(t);
    json_decref(all);
}

static bool chat_matches(const struct template *t, const struct tokenizer *tok, json_t *messages,
                         bool prompt, json_t *want)
{
    json_t *vars = json_pack("{s:O,s:b}", "messages", messages, "add_generation_prompt", prompt);
    json_t *text_want = json_object_get(want, "text");
    struct err e = { 0 };
    char *text = NULL;
    size_t len = 0;
    bool same = template_render(t, vars, &text, &len, &e) == 0 &&
                len == json_string_length(text_want) &&
                memcmp(text, json_string_value(text_want), len) == 0 &&
                golden_encodes(tok, text, len, TOK_ADD_SPECIAL, json_object_get(want, "ids"));

    free(text);
    json_decref(vars);
    return same;
}

static void smollm2_chats(void **state)
{
    json_t *g = golden_json("smollm2/chat.json"), *c;
    char *path = golden_model();
    struct tokenizer *tok = NULL;
    struct template *t = NULL;
    struct err e = { 0 };
    size_t i, equal = 0, total = 0;

    (void)state;
    if (!g || !path) {
        json_decref(g);
        free(path);
        skip();
    }
    if (model_load_tokenizer(&tok, path, &e) < 0 ||
        template_compile(&t, tokenizer_chat_template(tok), strlen(tokenizer_chat_template(tok)),
                         &e) < 0)
        fail_msg("%s", e.text);
    json_array_foreach(json_object_get(g, "conversations"), i, c)
    {
        json_t *messages = json_object_get(c, "messages");

        equal += chat_matches(t, tok, messages, false, json_object_get(c, "without"));
        equal += chat_matches(t, tok, messages, true, json_object_get(c, "with_generation_prompt"));
        total += 2;
    }
    print_message("smollm2 chats: %zu of %zu equal\n", equal, total);
    assert_int_equal(equal, total);
    template_destroy(t);
    tokenizer_destroy(tok);
    free(path);
    json_decref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(smollm2_chats),
    };

    if (!golden_there())
        return 77;
    return cmocka_run_group_tests_name("golden_templates", tests, NULL, NULL);
}
