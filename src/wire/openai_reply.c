/* Results to JSON text. The order of members is vLLM's, so that a reply can be compared with one of
 * its own line by line. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "wire/openai.h"

/* ---- log-probabilities ---- */

/* JSON texts of lists without their brackets. A chat uses only the first, for its entries. */
enum { COL_OFFSET, COL_LOGPROB, COL_TOKEN, COL_TOP, N_COLS };

struct oai_logprobs {
    enum oai_kind kind;
    struct buf col[N_COLS];
    uint32_t n;
    uint32_t offset; /* characters of all tokens so far */
};

int oai_logprobs_create(struct oai_logprobs **out, enum oai_kind kind)
{
    struct oai_logprobs *l = calloc(1, sizeof *l);

    if (!l)
        return ERR_NOMEM;
    l->kind = kind;
    for (int i = 0; i < N_COLS; i++)
        buf_init(&l->col[i], BUF_MAX_REPLY);
    *out = l;
    return 0;
}

void oai_logprobs_destroy(struct oai_logprobs *l)
{
    if (!l)
        return;
    for (int i = 0; i < N_COLS; i++)
        buf_finish(&l->col[i]);
    free(l);
}

void oai_logprobs_clear(struct oai_logprobs *l)
{
    for (int i = 0; i < N_COLS; i++)
        buf_reset(&l->col[i]);
    l->n = 0;
}

/* JSON has no infinity: what cannot be sampled gets the reference's floor. */
static void put_logprob(struct buf *b, double v)
{
    json_put_double(b, isfinite(v) && v > -9999.0 ? v : -9999.0);
}

static uint32_t count_characters(const char *s, size_t len)
{
    uint32_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

static void put_bytes(struct buf *b, const struct oai_logprob *p)
{
    buf_putc(b, '[');
    for (size_t i = 0; i < p->n_bytes; i++)
        buf_printf(b, i ? ",%u" : "%u", (unsigned char)p->bytes[i]);
    buf_putc(b, ']');
}

/* {"token","logprob","bytes" without the closing brace. */
static void open_chat_entry(struct buf *b, const struct oai_logprob *p)
{
    buf_puts(b, "{\"token\":");
    json_put_string(b, p->token, p->len);
    buf_puts(b, ",\"logprob\":");
    put_logprob(b, p->logprob);
    buf_puts(b, ",\"bytes\":");
    put_bytes(b, p);
}

/* A chat lists at most as many alternatives as were asked for, the token itself among them. */
static int add_chat(struct oai_logprobs *l, const struct oai_logprob *alt, uint32_t n)
{
    struct buf *b = &l->col[0];

    if (l->n++ > 0)
        buf_putc(b, ',');
    open_chat_entry(b, &alt[0]);
    buf_puts(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            buf_putc(b, ',');
        open_chat_entry(b, &alt[i]);
        buf_putc(b, '}');
    }
    return buf_puts(b, "]}");
}

static bool same_token(const struct oai_logprob *a, const struct oai_logprob *b)
{
    return a->len == b->len && memcmp(a->token, b->token, a->len) == 0;
}

/* {"token":logprob,...}; two ids with one text would be two members of one name: the first stays. */
static void put_top(struct buf *b, const struct oai_logprob *alt, uint32_t n)
{
    buf_putc(b, '{');
    for (uint32_t i = 0; i <= n; i++) {
        bool twice = false;

        for (uint32_t k = 0; k < i; k++)
            twice = twice || same_token(&alt[i], &alt[k]);
        if (twice)
            continue;
        if (i > 0)
            buf_putc(b, ',');
        json_put_string(b, alt[i].token, alt[i].len);
        buf_putc(b, ':');
        put_logprob(b, alt[i].logprob);
    }
    buf_putc(b, '}');
}

static int add_completion(struct oai_logprobs *l, bool known, const struct oai_logprob *alt,
                          uint32_t n)
{
    if (l->n++ > 0)
        for (int i = 0; i < N_COLS; i++)
            buf_putc(&l->col[i], ',');
    buf_printf(&l->col[COL_OFFSET], "%u", l->offset);
    json_put_string(&l->col[COL_TOKEN], alt[0].token, alt[0].len);
    l->offset += count_characters(alt[0].token, alt[0].len);
    if (known) {
        put_logprob(&l->col[COL_LOGPROB], alt[0].logprob);
        put_top(&l->col[COL_TOP], alt, n);
    } else {
        buf_puts(&l->col[COL_LOGPROB], "null");
        buf_puts(&l->col[COL_TOP], "null");
    }
    for (int i = 0; i < N_COLS; i++)
        if (l->col[i].status < 0)
            return l->col[i].status;
    return 0;
}

int oai_logprobs_add(struct oai_logprobs *l, bool known, const struct oai_logprob *alt, uint32_t n)
{
    return l->kind == OAI_CHAT ? add_chat(l, alt, n) : add_completion(l, known, alt, n);
}

static void put_logprobs(struct buf *b, const struct oai_logprobs *l)
{
    static const char *const names[] = { "text_offset", "token_logprobs", "tokens",
                                         "top_logprobs" };

    if (!l) {
        buf_puts(b, "null");
    } else if (l->kind == OAI_CHAT) {
        buf_printf(b, "{\"content\":[%s]}", buf_str(&l->col[0]));
    } else {
        for (int i = 0; i < N_COLS; i++) {
            buf_printf(b, "%c\"%s\":[", i ? ',' : '{', names[i]);
            buf_append(b, buf_str(&l->col[i]), l->col[i].len);
            buf_putc(b, ']');
        }
        buf_putc(b, '}');
    }
}

int oai_put_prompt_logprob(struct buf *b, const struct oai_logprob *alt, uint32_t n)
{
    buf_putc(b, '{');
    for (uint32_t i = 0; i <= n; i++) {
        buf_printf(b, "%s\"%d\":{\"logprob\":", i ? "," : "", alt[i].id);
        put_logprob(b, alt[i].logprob);
        buf_printf(b, ",\"rank\":%u,\"decoded_token\":", alt[i].rank);
        json_put_string(b, alt[i].token, alt[i].len);
        buf_putc(b, '}');
    }
    return buf_putc(b, '}');
}

/* ---- parts ---- */

static void put_ids(struct buf *b, const int32_t *ids, uint32_t n)
{
    if (!ids) {
        buf_puts(b, "null");
        return;
    }
    buf_putc(b, '[');
    for (uint32_t i = 0; i < n; i++)
        buf_printf(b, i ? ",%d" : "%d", ids[i]);
    buf_putc(b, ']');
}

static void put_finish(struct buf *b, const struct oai_choice *c)
{
    buf_puts(b, ",\"finish_reason\":");
    if (c->finish == FINISH_RECOMPUTE) /* as peers say it, who give the cause as the stop_reason */
        json_put_text(b, finish_name(FINISH_STOP));
    else
        json_put_text(b, c->finish == FINISH_NONE ? NULL : finish_name(c->finish));
}

static void put_stop_reason(struct buf *b, const struct oai_choice *c)
{
    buf_puts(b, ",\"stop_reason\":");
    if (c->finish == FINISH_RECOMPUTE)
        json_put_text(b, finish_name(c->finish));
    else if (c->stop)
        json_put_string(b, c->stop->s, c->stop->len);
    else if (c->stop_id >= 0)
        buf_printf(b, "%d", c->stop_id);
    else
        buf_puts(b, "null");
}

static void put_head(struct buf *b, const struct oai_head *h, const char *object)
{
    buf_puts(b, "{\"id\":");
    json_put_text(b, h->id);
    buf_printf(b, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)h->created);
    json_put_text(b, h->model);
    buf_puts(b, ",\"choices\":[");
}

static void put_fingerprint(struct buf *b, const struct oai_head *h)
{
    buf_puts(b, ",\"system_fingerprint\":");
    json_put_text(b, h->fingerprint);
}

/* {"prompt_tokens","total_tokens","completion_tokens" without the closing brace. */
static void open_usage(struct buf *b, const struct oai_usage *u)
{
    buf_printf(b, "{\"prompt_tokens\":%u,\"total_tokens\":%llu,\"completion_tokens\":%u",
               u->prompt_tokens, (unsigned long long)u->prompt_tokens + u->completion_tokens,
               u->completion_tokens);
}

/* Only chats count what the request left in the cache, and always say 0. */
static void put_reply_usage(struct buf *b, const struct oai_head *h, const struct oai_usage *u)
{
    buf_puts(b, ",\"usage\":");
    open_usage(b, u);
    if (u->cached_known)
        buf_printf(b,
                   ",\"prompt_tokens_details\":{\"cached_tokens\":%u,\"created_cache_tokens\":%s,"
                   "\"multimodal_tokens\":null}",
                   u->cached_tokens, h->kind == OAI_CHAT ? "0" : "null");
    else
        buf_puts(b, ",\"prompt_tokens_details\":null");
    buf_puts(b, ",\"completion_tokens_details\":null}");
}

static void put_running_usage(struct buf *b, const struct oai_usage *u)
{
    if (!u)
        return;
    buf_puts(b, ",\"usage\":");
    open_usage(b, u);
    buf_puts(b, ",\"completion_tokens_details\":null}");
}

static void put_prompt_text(struct buf *b, const struct oai_text *t)
{
    buf_puts(b, ",\"prompt_text\":");
    if (t)
        json_put_string(b, t->s, t->len);
    else
        buf_puts(b, "null");
}

/* ---- whole replies ---- */

static void put_chat_choice(struct buf *b, const struct oai_choice *c, const char *role)
{
    buf_printf(b, "{\"index\":%u,\"message\":{\"role\":", c->index);
    json_put_text(b, role);
    buf_puts(b, ",\"content\":");
    json_put_string(b, c->text, c->len);
    buf_puts(b, ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,"
                "\"reasoning\":null},\"logprobs\":");
    put_logprobs(b, c->logprobs);
    put_finish(b, c);
    put_stop_reason(b, c);
    buf_puts(b, ",\"token_ids\":");
    put_ids(b, c->ids, c->n_ids);
    buf_puts(b, ",\"routed_experts\":null}");
}

static void put_prompt_logprobs(struct buf *b, const struct oai_choice *c)
{
    buf_puts(b, ",\"prompt_logprobs\":");
    if (c->prompt_logprobs)
        buf_append(b, buf_str(c->prompt_logprobs), c->prompt_logprobs->len);
    else
        buf_puts(b, "null");
    buf_puts(b, ",\"prompt_token_ids\":");
    put_ids(b, c->prompt_ids, c->n_prompt_ids);
}

static void put_completion_choice(struct buf *b, const struct oai_choice *c)
{
    buf_printf(b, "{\"index\":%u,\"text\":", c->index);
    json_put_string(b, c->text, c->len);
    buf_puts(b, ",\"logprobs\":");
    put_logprobs(b, c->logprobs);
    put_finish(b, c);
    put_stop_reason(b, c);
    buf_puts(b, ",\"token_ids\":");
    put_ids(b, c->ids, c->n_ids);
    put_prompt_logprobs(b, c);
    buf_puts(b, ",\"routed_experts\":null}");
}

int oai_put_reply(struct buf *b, const struct oai_head *h, const struct oai_choice *choices,
                  uint32_t n, const struct oai_usage *u, const char *role, const json_t *kv,
                  const struct oai_text *prompt_text)
{
    put_head(b, h, h->kind == OAI_CHAT ? "chat.completion" : "text_completion");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            buf_putc(b, ',');
        if (h->kind == OAI_CHAT)
            put_chat_choice(b, &choices[i], role);
        else
            put_completion_choice(b, &choices[i]);
    }
    buf_puts(b, "],\"service_tier\":null");
    put_fingerprint(b, h);
    put_reply_usage(b, h, u);
    if (h->kind == OAI_CHAT) {
        put_prompt_logprobs(b, &choices[0]);
        put_prompt_text(b, prompt_text);
    }
    buf_puts(b, ",\"kv_transfer_params\":");
    json_put_value(b, kv);
    return buf_puts(b, ",\"ec_transfer_params\":null,\"metrics\":null}");
}

/* ---- events ---- */

static void open_event(struct buf *b, const struct oai_head *h)
{
    buf_puts(b, "data: ");
    put_head(b, h, h->kind == OAI_CHAT ? "chat.completion.chunk" : "text_completion");
}

int oai_put_role_event(struct buf *b, const struct oai_head *h, const struct oai_choice *c,
                       const char *role, const struct oai_usage *usage,
                       const struct oai_text *prompt_text)
{
    open_event(b, h);
    buf_printf(b, "{\"index\":%u,\"delta\":{\"role\":", c->index);
    json_put_text(b, role);
    buf_puts(b, ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
    put_running_usage(b, usage);
    buf_puts(b, ",\"prompt_token_ids\":");
    put_ids(b, c->prompt_ids, c->n_prompt_ids);
    put_prompt_text(b, prompt_text);
    return buf_puts(b, "}\n\n");
}

static void put_chat_delta(struct buf *b, const struct oai_choice *c)
{
    buf_printf(b, "{\"index\":%u,\"delta\":{\"content\":", c->index);
    json_put_string(b, c->text, c->len);
    buf_puts(b, "},\"logprobs\":");
    put_logprobs(b, c->logprobs);
    put_finish(b, c);
    if (c->finish != FINISH_NONE)
        put_stop_reason(b, c);
    buf_puts(b, ",\"token_ids\":");
    put_ids(b, c->ids, c->n_ids);
    buf_putc(b, '}');
}

static void put_completion_delta(struct buf *b, const struct oai_choice *c)
{
    buf_printf(b, "{\"index\":%u,\"text\":", c->index);
    json_put_string(b, c->text, c->len);
    buf_puts(b, ",\"logprobs\":");
    put_logprobs(b, c->logprobs);
    put_finish(b, c);
    put_stop_reason(b, c);
    buf_puts(b, ",\"prompt_token_ids\":");
    put_ids(b, c->prompt_ids, c->n_prompt_ids);
    buf_puts(b, ",\"token_ids\":");
    put_ids(b, c->ids, c->n_ids);
    buf_putc(b, '}');
}

int oai_put_event(struct buf *b, const struct oai_head *h, const struct oai_choice *c,
                  const struct oai_usage *usage, bool with_fingerprint, const json_t *kv)
{
    open_event(b, h);
    if (h->kind == OAI_CHAT)
        put_chat_delta(b, c);
    else
        put_completion_delta(b, c);
    buf_putc(b, ']');
    put_running_usage(b, usage);
    if (with_fingerprint)
        put_fingerprint(b, h);
    if (kv) {
        buf_puts(b, ",\"kv_transfer_params\":");
        json_put_value(b, kv);
    }
    return buf_puts(b, "}\n\n");
}

int oai_put_usage_event(struct buf *b, const struct oai_head *h, const struct oai_usage *u)
{
    open_event(b, h);
    buf_puts(b, "],\"usage\":");
    open_usage(b, u);
    if (u->cached_known)
        buf_printf(b, ",\"prompt_tokens_details\":{\"cached_tokens\":%u%s}", u->cached_tokens,
                   h->kind == OAI_CHAT ? ",\"created_cache_tokens\":0" : "");
    buf_putc(b, '}');
    put_fingerprint(b, h);
    return buf_puts(b, "}\n\n");
}
