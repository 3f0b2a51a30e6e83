/* What a request is called, with which seed its choices start, and their way into the engine. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/rand.h"
#include "net/http_server.h"
#include "serve/gen.h"

/* ---- names and seeds ---- */

/* The name that the client knows: its own, or one made here. Two requests may have the same; the
 * engine's ids and the transfer's are apart from it. */
void submit_choose_id(struct gen *g)
{
    const char *given = api_request_id(g->http);

    if (given) { /* api.c sends it back */
        snprintf(g->base_id, sizeof g->base_id, "%s", given);
    } else {
        if (g->req.request_id && api_id_ok(g->req.request_id))
            snprintf(g->base_id, sizeof g->base_id, "%s", g->req.request_id);
        else
            rand_hex(g->base_id, 8);
        http_set_header(g->http, "X-Request-Id", g->base_id);
    }
    snprintf(g->id, sizeof g->id, "%s%s", g->req.kind == OAI_CHAT ? "chatcmpl-" : "cmpl-",
             g->base_id);
}

static uint64_t mix(uint64_t key, uint64_t counter)
{
    uint32_t r[4];

    rand_philox(r, key, counter, 0);
    return (uint64_t)r[0] << 32 | r[1];
}

/* The seed of the request's first choice: its own, else from --seed, else drawn. */
uint64_t submit_base_seed(struct gen *g)
{
    uint64_t seed;

    if (g->req.sampling.has_seed)
        return g->req.sampling.seed;
    if (g->s->cfg->has_seed)
        return mix((uint64_t)g->s->cfg->seed, ++g->s->n_seeded);
    rand_bytes(&seed, sizeof seed);
    return seed;
}

/* ---- submitting ---- */

int submit_http_status(int status)
{
    switch (status) {
    case ERR_TOOLONG:
    case ERR_RANGE:
    case ERR_INVAL:
    case ERR_UNSUPPORTED:
    case ERR_EXISTS:
        return 400;
    case ERR_CLOSED:
    case ERR_LIMIT:
    case ERR_NOMEM:
    case ERR_NOBLOCKS:
    case ERR_BUSY:
        return 503;
    default:
        return 500;
    }
}

static void submit_failed(struct gen *g, int status, const struct err *err)
{
    if (status == ERR_CLOSED && g->s->phase == SERVE_READY) {
        log_error("the engine has closed by itself; the instance is not ready any more");
        snprintf(g->s->broken, sizeof g->s->broken, "the engine is not running");
        g->s->phase = SERVE_DEAD;
    }
    if (g->req.has_kv)
        remote_release(g->s, &g->req.kv);
    if (g->req.has_kv && status != ERR_EXISTS) /* that name is another request's */
        remote_refuse(g->s, &g->req.kv);
    gen_fail(g, submit_http_status(status), err->text[0] ? err->text : status_text(status));
}

/* Who goes on with it needs all that was told: of one choice, and without log-probabilities. */
bool submit_gives_back(const struct gen *g)
{
    const struct oai_request *r = &g->req;

    return g->s->cfg->recompute_when_full && r->has_kv && r->kv.do_remote_prefill &&
           g->n_prompts == 1 && r->n == 1 && !r->want_logprobs && r->sampling.logprobs < 0 &&
           r->sampling.n_want == 0;
}

static int submit(struct choice *c)
{
    struct gen *g = c->g;
    struct sampling s = g->req.sampling; /* borrows the lists */
    uint32_t k = c->index % g->req.n;
    struct engine_request r = { .prompt = c->prompt->ids,
                                .n_prompt = c->prompt->n,
                                .sampling = &s,
                                .salt = g->req.salt.s,
                                .salt_len = g->req.salt.len,
                                .priority = g->req.priority,
                                .kv = g->req.has_kv && c->index == 0 ? &g->req.kv : NULL,
                                .give_back = submit_gives_back(g),
                                .user = c };
    struct err err = { "" };
    int st;

    s.has_seed = true;
    s.seed = k == 0 ? g->req.sampling.seed : mix(g->req.sampling.seed, k);
    st = engine_submit(g->s->engine, &r, &c->engine_id, &err);
    if (st < 0) {
        submit_failed(g, st, &err);
        return st;
    }
    c->submitted = true;
    g->n_submitted++;
    return 0;
}

void submit_from(struct gen *g, uint32_t first)
{
    uint32_t end = g->late_siblings ? 1 : g->n_choices;

    for (uint32_t i = first; i < end; i++)
        if (submit(&g->choices[i]) < 0)
            return;
}

/* KV transfer is for one prompt and once. A prefill instance computes only the first choice; a decode
 * instance pulls for the first choice, and the others find the prompt in the prefix cache. Prompt
 * log-probabilities need the prompt computed here. */
void submit_settle_transfer(struct gen *g)
{
    struct oai_request *r = &g->req;

    if (!r->has_kv)
        return;
    if (r->kv.do_remote_decode && r->n_prompts > 1) {
        log_debug("%s: %u prompts in one request: no KV is held for a remote decode", g->id,
                  r->n_prompts);
        remote_refuse(g->s, &r->kv);
        r->has_kv = false;
    } else if (r->kv.do_remote_decode) {
        r->n = 1;
    } else if (r->sampling.prompt_logprobs >= 0) {
        remote_release(g->s, &r->kv);
        r->has_kv = false;
    } else {
        g->late_siblings = true;
    }
}
