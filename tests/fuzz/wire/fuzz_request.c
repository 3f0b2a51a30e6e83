/* Request bodies: the first byte chooses the endpoint, the rest is the body. What is accepted holds to
 * the limits; what is refused has a status and a sentence that is valid UTF-8 in JSON. */
#include <stdint.h>
#include <stdlib.h>

#include "base/buf.h"
#include "wire/openai.h"

#define VOCAB 1000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds)
        abort();
}

static void check_request(const struct oai_request *r)
{
    check(r->n >= 1 && r->n <= OAI_MAX_N && r->n_stops <= OAI_MAX_STOPS);
    check(r->sampling.temperature >= 0 && r->sampling.top_p > 0 && r->sampling.top_p <= 1);
    check(r->kind == OAI_CHAT ? r->messages != NULL : r->n_prompts >= 1);
    for (uint32_t i = 0; i < r->n_prompts; i++)
        for (uint32_t k = 0; k < r->prompts[i].n_ids; k++)
            check(r->prompts[i].ids[k] >= 0 && r->prompts[i].ids[k] < VOCAB);
}

static void check_error(const struct oai_error *e)
{
    struct buf b;
    json_t *o;

    check(e->code >= 400 && e->code < 600 && e->message[0]);
    buf_init(&b, BUF_MAX_LINE);
    oai_put_error(&b, e);
    o = json_loads(buf_str(&b), 0, NULL);
    check(o != NULL);
    json_decref(o);
    buf_finish(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sampling defaults;
    struct oai_rules rules = {
        .vocab = VOCAB, .max_logprobs = 20, .defaults = &defaults, .trust_chat_template = true
    };
    struct oai_request r;
    struct oai_error e;

    if (size == 0)
        return 0;
    sampling_init(&defaults);
    if (oai_decode(&r, data[0] & 1 ? OAI_CHAT : OAI_COMPLETION, (const char *)data + 1, size - 1,
                   &rules, &e) == 0) {
        check_request(&r);
        oai_request_finish(&r);
    } else {
        check_error(&e);
    }
    return 0;
}
