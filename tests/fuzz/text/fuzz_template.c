/* The input is a template. What compiles is rendered over a small chat. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"
#include "text/template.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char variables[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\" "
    "h\\u00e9 \"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"a\":[1,2.5,true,null]}}}]}],\"add_generation_prompt\":true,\"bos_token\":\"<"
    "s>\","
    "\"n\":7,\"e\":[],\"now\":1}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct template *t;
    struct err e = { 0 };
    char *text = NULL;
    size_t len;
    json_t *vars;
    int st = template_compile(&t, (const char *)data, size, &e);

    if (st == 0) {
        vars = json_loads(variables, 0, NULL);
        st = template_render(t, vars, &text, &len, &e);
        if (st == 0 && utf8_valid_prefix(text, len) != len)
            abort();
        free(text);
        template_destroy(t);
        json_decref(vars);
    }
    if (st < 0 && st != ERR_INVAL && !e.text[0])
        abort();
    return 0;
}
