/* The input is a tokenizer.json. What loads must encode and decode. */
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello <|x|> w\xc3\xb6rld 123\n\xff";
    struct tokenizer *t;
    struct err e = { 0 };
    int32_t *ids = NULL;
    char *back = NULL;
    size_t n = 0, len;

    if (tokenizer_from_json(&t, (const char *)data, size, "{}", 2, &e) < 0) {
        if (!e.text[0])
            abort();
        return 0;
    }
    if (tokenizer_encode(t, text, sizeof text - 1, TOK_ADD_SPECIAL, &ids, &n) == 0 &&
        tokenizer_decode(t, ids, n, false, &back, &len) < 0)
        abort();
    free(ids);
    free(back);
    tokenizer_destroy(t);
    return 0;
}
