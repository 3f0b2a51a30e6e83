/* Events of the engine to text and log-probabilities, choice by choice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/gen.h"
#include "text/tokenizer.h"

/* ---- token texts for log-probabilities ---- */

/* One token's text as the wire shows it; what it points to is owned and freed by free_shown. */
struct shown {
    struct oai_logprob p;
    char *text;
};

static int show(struct shown *out, const struct choice *c, const struct engine_logprob *l)
{
    const struct tokenizer *tok = c->g->s->tok;
    size_t len = 0;
    char *text = NULL;
    int st;

    if (c->g->req.tokens_as_ids || !tok) {
        text = malloc(32);
        if (!text)
            return ERR_NOMEM;
        len = (size_t)snprintf(text, 32, "token_id:%d", l->id);
    } else if ((st = tokenizer_decode(tok, &l->id, 1, false, &text, &len)) < 0) {
        return st;
    }
    *out = (struct shown){ .text = text };
    out->p = (struct oai_logprob){ .token = text ? text : "",
                                   .len = len,
                                   .id = l->id,
                                   .rank = l->rank,
                                   .logprob = (double)l->logprob };
    if (tok)
        out->p.bytes = tokenizer_bytes(tok, l->id, &out->p.n_bytes);
    return 0;
}

/* The chosen token first, then the wanted ones, or else the most probable others. */
static int collect(struct oai_logprob *alt, char **texts, uint32_t cap, uint32_t *n,
                   const struct choice *c, const struct engine_logprobs *l)
{
    const struct engine_logprob *others = l->n_want ? l->want : l->top;
    uint32_t n_others = l->n_want ? l->n_want : l->n_top;
    struct shown s;
    int st = show(&s, c, &l->chosen);

    if (st < 0)
        return st;
    alt[0] = s.p;
    texts[0] = s.text;
    *n = 1;
    for (uint32_t i = 0; i < n_others && *n < cap; i++) {
        if (others[i].id == l->chosen.id)
            continue;
        if ((st = show(&s, c, &others[i])) < 0)
            return st;
        alt[*n] = s.p;
        texts[(*n)++] = s.text;
    }
    return 0;
}

/* Most alternatives of one position: the token, and what --max-logprobs allows. */
static uint32_t max_alternatives(const struct choice *c)
{
    return c->g->s->rules.max_logprobs + 1;
}

typedef int put_fn(struct choice *c, const struct oai_logprob *alt, uint32_t n, bool known);

static int with_texts(struct choice *c, const struct engine_logprobs *l, bool known, put_fn *put)
{
    uint32_t cap = max_alternatives(c), n = 0;
    struct oai_logprob *alt = calloc(cap, sizeof *alt);
    char **texts = calloc(cap, sizeof *texts);
    int st = ERR_NOMEM;

    if (alt && texts)
        st = collect(alt, texts, cap, &n, c, l);
    if (st == 0)
        st = put(c, alt, n - 1, known);
    for (uint32_t i = 0; i < n; i++)
        free(texts[i]);
    free(texts);
    free(alt);
    return st;
}

/* A chat lists no more alternatives than asked for, the token itself among them; wanted ids all. */
static int put_output_logprob(struct choice *c, const struct oai_logprob *alt, uint32_t n,
                              bool known)
{
    const struct oai_request *r = &c->g->req;

    if (r->kind == OAI_CHAT)
        n = r->sampling.n_want || n + 1 < r->top_logprobs ? n + 1 : r->top_logprobs;
    return oai_logprobs_add(c->logprobs, known, alt, n);
}

static int put_prompt_logprob(struct choice *c, const struct oai_logprob *alt, uint32_t n,
                              bool known)
{
    struct buf *b = &c->prompt_logprobs;

    buf_putc(b, b->len ? ',' : '[');
    return known ? oai_put_prompt_logprob(b, alt, n) : buf_puts(b, "null");
}

/* ---- prompt ---- */

int output_echo(struct choice *c)
{
    const struct oai_request *r = &c->g->req;
    const struct oai_prompt *p;
    size_t len = 0;
    char *text = NULL;
    int st;

    if (!r->echo)
        return 0;
    if (r->kind == OAI_CHAT) {
        const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
        const char *role = json_string_value(json_object_get(last, "role"));
        const json_t *content = json_object_get(last, "content");

        if (!role || strcmp(role, c->g->s->cfg->response_role) != 0)
            return 0;
        return buf_append(&c->text, json_string_value(content), json_string_length(content));
    }
    p = &r->prompts[c->index / r->n];
    if (p->text)
        return buf_append(&c->text, p->text, p->len);
    if (!c->g->s->tok)
        return 0;
    if ((st = tokenizer_decode(c->g->s->tok, p->ids, p->n_ids, r->skip_special, &text, &len)) < 0)
        return st;
    st = buf_append(&c->text, text ? text : "", len);
    free(text);
    return st;
}

int output_prompt(struct choice *c, const struct engine_event *ev)
{
    const struct oai_request *r = &c->g->req;
    bool in_columns = r->kind == OAI_COMPLETION && r->echo && c->logprobs;
    int st = 0;

    for (uint32_t i = 0; i < ev->n_prompt && st == 0; i++) {
        struct engine_logprobs none = { .chosen = { .id = c->prompt->ids[i] } };
        const struct engine_logprobs *l = ev->prompt[i] ? ev->prompt[i] : &none;

        if (in_columns)
            st = with_texts(c, l, ev->prompt[i] != NULL, put_output_logprob);
        if (st == 0)
            st = with_texts(c, l, ev->prompt[i] != NULL, put_prompt_logprob);
    }
    return st < 0 ? st : buf_putc(&c->prompt_logprobs, ']');
}

/* ---- tokens ---- */

static bool is_in(const int32_t *ids, uint32_t n, int32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* The engine ends the output with this token, whose text is then not shown. */
static bool is_end_token(const struct choice *c, int32_t id)
{
    const struct sampling *s = &c->g->req.sampling;
    const struct model_config *m = c->g->s->info.model;

    return (!s->ignore_eos && is_in(m->eos, m->n_eos, id)) || is_in(s->stop_ids, s->n_stop_ids, id);
}

static int keep_id(struct choice *c, int32_t id)
{
    if (c->n_ids == c->cap_ids) {
        uint32_t cap = c->cap_ids ? 2 * c->cap_ids : 16;
        int32_t *p = realloc(c->ids, cap * sizeof *p);

        if (!p)
            return ERR_NOMEM;
        c->ids = p;
        c->cap_ids = cap;
    }
    c->ids[c->n_ids++] = id;
    return 0;
}

/* Text through the stop strings, which are not looked for among the first min_tokens. */
static int pass_text(struct choice *c)
{
    int st;

    if (c->n_out > c->g->req.sampling.min_tokens)
        return stop_push(&c->stop, buf_str(&c->raw), c->raw.len, &c->text);
    if ((st = stop_flush(&c->stop, &c->text)) < 0)
        return st;
    return buf_append(&c->text, buf_str(&c->raw), c->raw.len);
}

static int pass_token(struct choice *c, int32_t id)
{
    const struct oai_request *r = &c->g->req;
    int st = 0;

    c->n_out++;
    c->n_unsent++;
    buf_reset(&c->raw);
    if (c->detok.tok && (r->include_stop || !is_end_token(c, id)))
        st = detok_push(&c->detok, id, &c->raw);
    if (st == 0)
        st = pass_text(c);
    if (st == 0 && r->return_token_ids)
        st = keep_id(c, id);
    if (st == 0 && submit_gives_back(c->g))
        st = buf_printf(&c->given_back, "%c%d", c->given_back.len ? ',' : '[', id);
    return st;
}

int output_resume(struct choice *c)
{
    const struct oai_request *r = &c->g->req;
    int st = 0;

    if (!r->has_kv || c->index > 0 || r->kv.n_output == 0)
        return 0;
    for (uint32_t i = 0; i < r->kv.n_output && st == 0; i++)
        st = pass_token(c, r->kv.output_ids[i]);
    c->n_before = c->n_out;
    if (!r->stream)
        return st;
    buf_reset(&c->text);
    c->n_ids = c->n_unsent = 0;
    c->sent_any = true;
    return st;
}

int output_token(struct choice *c, const struct engine_event *ev)
{
    int st = pass_token(c, ev->token);

    if (st == 0 && c->logprobs && ev->logprobs)
        st = with_texts(c, ev->logprobs, true, put_output_logprob);
    return st;
}

/* All ids, for whoever goes on with the output. Text that waits for more stays unsent. */
static int give_back(struct choice *c)
{
    struct buf *ids = &c->given_back;
    int st = ids->len ? 0 : buf_putc(ids, '[');
    json_t *list;

    c->finish = FINISH_RECOMPUTE;
    if (st < 0 || (st = buf_putc(ids, ']')) < 0)
        return st;
    list = json_loadb(ids->data, ids->len, 0, NULL);
    c->kv = json_pack("{s:o}", "output_token_ids", list);
    return c->kv ? 0 : ERR_NOMEM;
}

int output_end(struct choice *c, const struct engine_event *ev)
{
    int st = 0;

    c->n_cached = ev->n_cached < c->prompt->n ? ev->n_cached : c->prompt->n;
    if (ev->finish == FINISH_RECOMPUTE && !c->stopped)
        return give_back(c);
    if (ev->kv && !(c->kv = kv_params_encode(ev->kv)))
        return ERR_NOMEM;
    if (!c->stopped) {
        buf_reset(&c->raw);
        if ((st = detok_flush(&c->detok, &c->raw)) == 0 && (st = pass_text(c)) == 0)
            st = stop_flush(&c->stop, &c->text);
    }
    c->finish = c->stop.found ? FINISH_STOP : ev->finish;
    c->stop_id = c->stop.found ? -1 : ev->stop_id;
    return st;
}
