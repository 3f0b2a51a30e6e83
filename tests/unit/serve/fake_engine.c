#include "fake_engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "sys/clock.h"
#include "text/tokenizer.h"

#define MAX_EVENTS 8192

struct fake fake;

struct engine {
    struct engine_options opt;
    struct model_config model;
};

static struct engine_event queue[MAX_EVENTS];
static uint32_t q_head, q_n;
static struct engine the_engine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool held, failing;

/* ---- control ---- */

void fake_reset(void)
{
    fake = (struct fake){ .text = "Hello" };
    q_head = q_n = 0;
}

void fake_hold_load(bool hold)
{
    pthread_mutex_lock(&lock);
    held = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void fake_break(const char *why)
{
    snprintf(fake.broken, sizeof fake.broken, "%s", why);
    the_engine.opt.notify(the_engine.opt.notify_arg);
}

void fake_fail_load(bool fail)
{
    failing = fail;
}

static struct engine_event *push(struct fake_request *r, enum engine_event_kind kind)
{
    struct engine_event *ev = &queue[(q_head + q_n) % MAX_EVENTS];

    if (q_n == MAX_EVENTS)
        abort();
    *ev = (struct engine_event){
        .kind = kind, .id = r->id, .user = r->user, .time = clock_now(), .stop_id = -1
    };
    if (q_n++ == 0)
        the_engine.opt.notify(the_engine.opt.notify_arg);
    return ev;
}

/* Log-probabilities as if the token had rank 2 and token 'z' rank 1. */
static struct engine_logprobs *logprobs_of(int32_t token, int32_t n)
{
    struct engine_logprobs *l = calloc(1, sizeof *l + 2 * sizeof *l->top);

    l->chosen = (struct engine_logprob){ token, -1.5f, 2 };
    l->top = (struct engine_logprob *)(l + 1);
    l->top[0] = (struct engine_logprob){ 'z', -0.5f, 1 };
    l->top[1] = l->chosen;
    l->n_top = n > 2 ? 2 : (uint32_t)n;
    return l;
}

void fake_token(struct fake_request *r, int32_t token)
{
    struct engine_event *ev = push(r, ENGINE_TOKEN);

    ev->token = token;
    ev->out_index = r->n_out++;
    if (r->sampling.logprobs >= 0)
        ev->logprobs = logprobs_of(token, r->sampling.logprobs);
}

void fake_end(struct fake_request *r, enum finish f, int status, const char *why)
{
    struct engine_event *ev = push(r, ENGINE_END);

    ev->finish = f;
    ev->status = status;
    ev->why = why ? strdup(why) : NULL;
    ev->n_cached = fake.n_cached;
    ev->n_prefill = r->n_prompt - fake.n_cached;
    ev->t_arrive = ev->t_start = ev->t_first = ev->t_last = ev->time;
    if (r->has_kv && r->kv.do_remote_decode && fake.answer_kv) {
        ev->kv = malloc(sizeof *ev->kv);
        if (kv_params_copy(ev->kv, fake.answer_kv) < 0)
            abort();
    }
    r->ended = true;
}

static void push_prompt(struct fake_request *r)
{
    struct engine_event *ev = push(r, ENGINE_PROMPT);

    ev->n_prompt = r->n_prompt;
    ev->prompt = calloc(r->n_prompt, sizeof *ev->prompt);
    for (uint32_t i = 1; i < r->n_prompt; i++)
        ev->prompt[i] = logprobs_of(r->prompt[i], r->sampling.prompt_logprobs);
}

static bool in_stops(const struct sampling *s, int32_t id)
{
    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == id)
            return true;
    return false;
}

/* Everything at once: the whole answer is in the queue before the front looks. */
static void answer(struct fake_request *r, const struct sampling *s)
{
    size_t n = strlen(fake.text);
    double began = clock_now();

    push(r, ENGINE_START);
    if (s->prompt_logprobs >= 0)
        push_prompt(r);
    for (uint32_t i = 0; i < s->max_tokens && !s->prompt_only; i++) {
        int32_t token = fake.end_token && i == n ? 257 : (unsigned char)fake.text[i % n];

        fake_token(r, token);
        if (fake.one_step)
            queue[(q_head + q_n - 1) % MAX_EVENTS].time = began;
        if (token == 257 || in_stops(s, token)) {
            fake_end(r, FINISH_STOP, 0, NULL);
            if (token != 257)
                queue[(q_head + q_n - 1) % MAX_EVENTS].stop_id = token;
            return;
        }
    }
    fake_end(r, FINISH_LENGTH, 0, NULL);
}

/* ---- engine.h ---- */

int engine_open(struct engine **out, const struct engine_options *opt, struct err *e)
{
    pthread_mutex_lock(&lock);
    while (held)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (failing)
        return err_set(e, ERR_BADMSG, "the file is broken");
    fake.opened = opt->model;
    fake.n_draft_tokens = opt->n_draft_tokens;
    snprintf(fake.overrides, sizeof fake.overrides, "%s",
             opt->model.hf_overrides ? opt->model.hf_overrides : "");
    snprintf(fake.quantization, sizeof fake.quantization, "%s",
             opt->model.quantization ? opt->model.quantization : "");
    the_engine.opt = *opt;
    the_engine.model = (struct model_config){ .vocab = FAKE_VOCAB, .eos = { 257 }, .n_eos = 1 };
    *out = &the_engine;
    return 0;
}

const char *engine_broken(const struct engine *e)
{
    (void)e;
    return fake.broken[0] ? fake.broken : NULL;
}

bool engine_is_apart(const struct engine *e, char *why, size_t room)
{
    (void)e;
    if (fake.apart[0])
        snprintf(why, room, "%s", fake.apart);
    return fake.apart[0] != '\0';
}

/* No test of the front starts a second rank. */
int engine_worker_serve(const struct engine_options *opt, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "rank %u of a fake", opt->ranks.rank);
}

void engine_close(struct engine *e)
{
    struct engine_event ev;

    while (e && engine_events(e, &ev, 1))
        engine_event_finish(&ev);
}

void engine_info(const struct engine *e, struct engine_info *out)
{
    *out = (struct engine_info){ .model = &e->model,
                                 .max_model_len = FAKE_CONTEXT,
                                 .block_tokens = 16,
                                 .n_blocks = 300,
                                 .max_batched_tokens = 2048,
                                 .max_seqs = 128,
                                 .isa = "fake",
                                 .kv_dtype = "F16",
                                 .fingerprint = "0123456789abcdef",
                                 .threads = 1,
                                 .kv_host = "127.0.0.1",
                                 .kv_port = fake.is_producer ? 7777 : 0,
                                 .engine_id = "e" };
}

int engine_submit(struct engine *e, const struct engine_request *q, uint64_t *id, struct err *err)
{
    struct fake_request *r = &fake.req[fake.n_req % FAKE_REQUESTS];

    (void)e;
    if (fake.submit_status < 0)
        return err_set(err, fake.submit_status, "%s", fake.submit_why ? fake.submit_why : "no");
    *r = (struct fake_request){ .id = ++fake.n_req,
                                .user = q->user,
                                .sampling = *q->sampling,
                                .n_prompt = q->n_prompt,
                                .has_kv = q->kv != NULL };
    memcpy(r->prompt, q->prompt, (q->n_prompt < 64 ? q->n_prompt : 64) * sizeof *r->prompt);
    if (q->kv)
        r->kv = *q->kv;
    *id = r->id;
    if (fake.on_submit)
        fake.on_submit(r);
    if (!fake.manual)
        answer(r, q->sampling);
    return 0;
}

void engine_cancel(struct engine *e, uint64_t id, enum finish finish)
{
    struct fake_request *r = &fake.req[(id - 1) % FAKE_REQUESTS];

    (void)e;
    if (r->id != id)
        return;
    r->cancelled = true;
    r->cancel_finish = finish;
    fake.n_cancelled++;
    if (!r->ended)
        fake_end(r, finish, 0, NULL);
}

uint32_t engine_events(struct engine *e, struct engine_event *out, uint32_t max)
{
    uint32_t n = 0;

    (void)e;
    while (n < max && q_n > 0) {
        out[n++] = queue[q_head];
        q_head = (q_head + 1) % MAX_EVENTS;
        q_n--;
    }
    return n;
}

void engine_prompt_free(struct engine_logprobs **p, uint32_t n)
{
    for (uint32_t i = 0; p && i < n; i++)
        free(p[i]);
    free(p);
}

void engine_kv_free(struct kv_params *p)
{
    if (!p)
        return;
    kv_params_finish(p);
    free(p);
}

void engine_event_finish(struct engine_event *ev)
{
    free(ev->logprobs);
    engine_prompt_free(ev->prompt, ev->n_prompt);
    engine_kv_free(ev->kv);
    free(ev->why);
}

int engine_kv_release(struct engine *e, const struct kv_params *p)
{
    (void)e;
    (void)p;
    return fake.n_released++ == 0 ? 0 : ERR_NOTFOUND;
}

int engine_kv_release_remote(struct engine *e, const struct kv_params *p)
{
    (void)e;
    fake.released_remote = *p;
    fake.n_released_remote++;
    return 0;
}

void engine_kv_refuse(struct engine *e, const struct kv_params *p)
{
    (void)e;
    (void)p;
    fake.n_refused++;
}

int engine_kv_probe(struct engine *e, const char *host, uint16_t port, struct err *err)
{
    (void)e;
    fake.n_probed++;
    fake.stats.mismatching = 1;
    snprintf(fake.stats.mismatch, sizeof fake.stats.mismatch, "block size of %s:%u", host, port);
    return err_set(err, ERR_MISMATCH, "%s", fake.stats.mismatch);
}

int engine_reset_prefix_cache(struct engine *e, void *user)
{
    (void)e;
    fake.reset_user = user;
    if (!fake.manual)
        fake_reset_done();
    return 0;
}

void fake_reset_done(void)
{
    struct engine_event *ev = push(&(struct fake_request){ .user = fake.reset_user }, ENGINE_RESET);

    ev->status = fake.reset_status;
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    (void)e;
    *out = (struct engine_stats){ .sched = { .blocks_total = 300,
                                             .chunks = { .mode = fake.chunk_mode,
                                                         .plans = 4,
                                                         .plan_chunks = 3,
                                                         .bound_ms = 1500 } },
                                  .n_ranks = 6,
                                  .n_stages = 2,
                                  .stage_seconds = { 2, 2.5 },
                                  .dp = { .size = 2, .up = { true, false } },
                                  .transfer = fake.stats,
                                  .spec_drafts = fake.spec[0],
                                  .spec_draft_tokens = fake.spec[1],
                                  .spec_accepted_tokens = fake.spec[2] + fake.spec[3],
                                  .spec_accepted_pos = { fake.spec[2], fake.spec[3] } };
}

uint32_t engine_step_sizes(struct engine *e, uint32_t *out, uint32_t max)
{
    (void)e;
    (void)max;
    out[0] = 5;
    return 1;
}

uint32_t engine_pull_times(struct engine *e, double *out, uint32_t max)
{
    (void)e;
    (void)out;
    (void)max;
    return 0;
}

/* ---- model.h ---- */

int model_read_config(struct model_config *out, const char *path, const char *hf_overrides,
                      struct err *e)
{
    (void)path;
    (void)e;
    *out = (struct model_config){ .arch = "FakeForCausalLM",
                                  .max_position = hf_overrides ? 16384 : 8192,
                                  .n_layers = 8,
                                  .heads = 6,
                                  .mtp_layers = fake.mtp_layers };
    return 0;
}

/* The character that stands for a byte in byte-level vocabularies. */
static void byte_text(char out[3], int byte)
{
    int c = byte, n = 0;
    bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;

    for (int b = 0; !printable && b < byte; b++)
        n += !((b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae);
    if (!printable)
        c = 256 + n;
    memset(out, 0, 3);
    if (c < 0x80) {
        out[0] = (char)c;
    } else {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
    }
}

int model_load_tokenizer(struct tokenizer **out, const char *path, struct err *e)
{
    static const char *const special[] = { "<|im_start|>", "<|im_end|>", "<|endoftext|>",
                                           FAKE_LONG_TOKEN };
    static char text[256][3];
    const char *tokens[260];
    int32_t types[260];

    if (fake.no_tokenizer)
        return err_set(e, ERR_NOTFOUND, "%s: there is no tokenizer.json", path);
    for (int i = 0; i < 260; i++) {
        if (i < 256)
            byte_text(text[i], i);
        tokens[i] = i < 256 ? text[i] : special[i - 256];
        types[i] = i < 256 ? 1 : 3;
    }
    return tokenizer_from_gguf(
        out,
        &(struct tokenizer_gguf){
            .pre = "smollm",
            .n_tokens = 260,
            .tokens = tokens,
            .types = types,
            .bos = 256,
            .eos = 257,
            .chat_template =
                "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + "
                "m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if "
                "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}" },
        e);
}
