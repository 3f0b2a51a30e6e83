/* The profile that a pipeline makes of its stages before it serves: real steps over blocks that nobody
 * uses yet, so that prompts can be cut into chunks which take all stages equally long
 * (sched/profile.h). It is kept for the next start. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/internal.h"
#include "sched/profile.h"
#include "sys/clock.h"
#include "sys/store.h"

/* Plans of the profile: apart from those of the scheduler, which count from 1. */
#define FIRST_SEQ        (1ull << 63)
#define PROFILE_ID       UINT64_MAX
#define WAIT_STEP        1.0
#define PROGRESS_SECONDS 2.0

struct measuring {
    struct engine *e;
    struct profile p;
    uint32_t max_tokens;
    int32_t *tokens; /* [max_tokens] */
    uint32_t *blocks;
    struct sampling sampling;
    struct plan plan[ENGINE_MAX_STAGES]; /* in flight: a ring */
    struct plan_entry entry[ENGINE_MAX_STAGES];
    uint32_t index[ENGINE_MAX_STAGES]; /* of the point */
    uint32_t first, n;
    uint64_t next_seq;
    double told;                     /* when the log was told how far it is */
    double ended[ENGINE_MAX_STAGES]; /* the last step on each stage, by our clock */
};

static void no_row(void *arg, const struct plan_entry *en, uint32_t index,
                   const struct k_sample *row, const struct k_choice *c)
{
    (void)arg;
    (void)en;
    (void)index;
    (void)row;
    (void)c;
}

static const struct worker_sink no_sink = { .prompt = no_row, .token = no_row };

/* A request as long as any may be, of which each point computes a piece. */
static int make_request(struct measuring *m)
{
    const struct sched_config *s = &m->e->sched_config;
    uint64_t room = (uint64_t)s->n_blocks * s->block_tokens;
    uint32_t n_blocks;

    m->max_tokens = room < s->max_model_len ? (uint32_t)room : s->max_model_len;
    n_blocks = (m->max_tokens + s->block_tokens - 1) / s->block_tokens;
    m->tokens = calloc(m->max_tokens, sizeof *m->tokens);
    m->blocks = calloc(n_blocks, sizeof *m->blocks);
    if (!m->tokens || !m->blocks)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < n_blocks; i++)
        m->blocks[i] = i;
    sampling_init(&m->sampling);
    return 0;
}

static int begin_point(struct measuring *m, const struct profile_point *at, struct err *err)
{
    struct engine *e = m->e;
    uint32_t slot = (m->first + m->n) % e->ranks->pp, bt = e->sched_config.block_tokens, n_times;
    uint64_t end = at->history + at->chunk;
    struct pipe_time times[ENGINE_MAX_STAGES];
    int st;

    m->entry[slot] = (struct plan_entry){
        .id = PROFILE_ID,
        .start = (uint32_t)at->history,
        .n = at->chunk,
        .tokens = m->tokens + at->history,
        .blocks = m->blocks,
        .n_blocks = (uint32_t)((end + bt - 1) / bt),
        .sampling = &m->sampling,
        .all_tokens = m->tokens,
        .n_prompt = m->max_tokens,
        .n_all = m->max_tokens,
    };
    m->plan[slot] = (struct plan){ .seq = m->next_seq++,
                                   .n_entries = 1,
                                   .n_tokens = at->chunk,
                                   .n_prefill_tokens = at->chunk,
                                   .entries = &m->entry[slot] };
    m->index[slot] = at->index;
    m->n++;
    st = engine_stage_send(e, &m->plan[slot], err);
    return st < 0 ? st
                  : engine_stage_run(e, &m->plan[slot], e->choice, &no_sink, times, &n_times, err);
}

/* A stage that had ended the step before when this one left the stage before it waited for nothing else. */
static void note_passed(struct measuring *m, uint32_t index, const struct pipe_time *times)
{
    const struct ranks *r = m->e->ranks;
    double left = 0;

    for (uint32_t i = 0; i < r->pp; i++) {
        double ahead = r->clock_ahead[i * r->tp];

        if (i > 0 && m->ended[i] <= left)
            profile_passed(&m->p, index, i, times[i].start - ahead - left);
        m->ended[i] = left = times[i].end - ahead;
    }
}

static int end_point(struct measuring *m, struct box *b, struct err *err)
{
    struct engine *e = m->e;
    struct pipe_time times[ENGINE_MAX_STAGES];
    double seconds[ENGINE_MAX_STAGES];
    uint32_t n_times = 0;
    int st = ERR_BADMSG;

    if (m->n > 0)
        st = result_read(b->bytes.data, b->bytes.len, &m->plan[m->first],
                         model_config(e->model)->vocab, e->choice, &no_sink, times, &n_times);
    atomic_store(&b->full, false);
    if (st < 0 || n_times != e->ranks->pp)
        return err_set(err, ERR_BADMSG, "the last stage sent a result that fits no step in flight");
    for (uint32_t i = 0; i < n_times; i++)
        seconds[i] = times[i].end - times[i].start;
    profile_measured(&m->p, m->index[m->first], seconds, clock_now());
    note_passed(m, m->index[m->first], times);
    log_debug("profiling: %u tokens behind %u: %.2f ms on the first stage, %.2f on the last",
              m->entry[m->first].n, m->entry[m->first].start, 1e3 * seconds[0],
              1e3 * seconds[n_times - 1]);
    m->first = (m->first + 1) % e->ranks->pp;
    m->n--;
    return 0;
}

/* Waits for one result at least. */
static int take_results(struct measuring *m, struct err *err)
{
    struct engine *e = m->e;
    double until = clock_now() + e->ranks->step_seconds;
    struct mail *mail, *next;
    int st = 0;

    while (!(mail = engine_inbox_take(&e->inbox, WAIT_STEP)))
        if (clock_now() > until)
            return err_set(err, ERR_TIMEOUT, "a step of the profile was not computed within %.0f s",
                           e->ranks->step_seconds);
    for (; mail && st == 0; mail = next) {
        next = mail->next;
        if (mail->kind == MAIL_BROKEN)
            st = err_set(err, ERR_CLOSED, "%s", e->lost);
        else if (mail->kind == MAIL_BOX)
            st = end_point(m, (struct box *)(void *)mail, err);
    }
    return st;
}

static void say_progress(struct measuring *m)
{
    double now = clock_now();

    if (now - m->told < PROGRESS_SECONDS)
        return;
    m->told = now;
    log_info("profiling: %.0f %%, %u chunks measured", 100 * profile_progress(&m->p, now),
             m->p.n_measured);
}

/* Every stage has a step to work at. But chunks without history, of which there is one of each size, begin
 * when no other is under way: so the next stage waits for them, and is seen to. */
static uint32_t most_in_flight(const struct measuring *m, const struct profile_point *at)
{
    return at->history == 0 ? 1 : m->e->ranks->pp;
}

static int measure_all(struct measuring *m, struct err *err)
{
    struct profile_point at;
    bool next = false, more = true;
    int st = 0;

    while (st == 0 && (more || m->n > 0)) {
        if (more && !next)
            next = more = profile_next(&m->p, clock_now(), &at);
        if (next && m->n < most_in_flight(m, &at)) {
            st = begin_point(m, &at, err);
            next = false;
        } else if (m->n > 0) {
            st = take_results(m, err);
        }
        say_progress(m);
    }
    return st;
}

static int measure(struct engine *e, struct profile_fit *fit, double seconds, struct err *err)
{
    struct measuring *m = calloc(1, sizeof *m);
    const struct profile_limits limits = {
        .n_stages = e->ranks->pp,
        .base = e->sched_config.max_batched_tokens,
        .align = e->sched_config.block_tokens,
        .seconds = seconds > 0 ? seconds : PROFILE_DEFAULT_SECONDS,
    };
    int st = m ? 0 : ERR_NOMEM;

    if (st == 0) {
        m->e = e;
        m->next_seq = FIRST_SEQ;
        st = make_request(m);
    }
    if (st < 0) {
        err_set(err, st, "no memory to profile the pipeline");
    } else {
        struct profile_limits l = limits;

        l.max_tokens = m->max_tokens;
        log_info("profiling the pipeline of %u stages for chunk planning, %.0f s at most",
                 e->ranks->pp, l.seconds);
        m->told = clock_now();
        profile_begin(&m->p, &l, m->told);
        st = measure_all(m, err);
        plan_writer_forget(e->writer, PROFILE_ID);
        if (st == 0 && profile_fit(&m->p, fit, err) < 0) {
            log_info("the profile is not used: %s", err->text); /* the scheduler warns, once */
            fit->n_stages = 0;
        }
    }
    if (m) {
        free(m->tokens);
        free(m->blocks);
    }
    free(m);
    return st;
}

/* Everything that changes the times. */
static void describe_shape(char *out, size_t room, const struct engine *e,
                           const struct engine_options *opt)
{
    const struct sched_config *s = &e->sched_config;
    int n = snprintf(out, room, "pp %u tp %u ep %d tokens %u len %u block %u threads %u %s kv %s",
                     e->ranks->pp, e->ranks->tp, opt->ranks.expert_parallel, s->max_batched_tokens,
                     s->max_model_len, s->block_tokens, e->kernels->threads, e->kernels->detail,
                     k_type_info[model_kv_type(e->model)].name);

    for (uint32_t i = 0; i < e->ranks->pp && n > 0 && (size_t)n < room; i++)
        n += snprintf(out + n, room - (size_t)n, " %u", opt->ranks.stage_layers[i]);
}

static bool find_kept(struct profile_fit *fit, const struct profile_key *key, const char *name)
{
    struct err why = { "" };
    size_t len;
    char *text;
    int st = store_read(&text, &len, name, &why);

    if (st < 0)
        return false;
    st = profile_read(fit, text, len, key, &why);
    if (st < 0)
        log_info("the profile %s is not used: %s", name, why.text);
    else
        log_info("using the profile %s of an earlier start", name);
    free(text);
    return st == 0;
}

static void keep(const struct profile_fit *fit, const struct profile_key *key, const char *name)
{
    struct err why = { "" };
    struct buf b;

    buf_init(&b, STORE_MAX_BYTES);
    if (profile_write(&b, key, fit) == 0 && store_write(name, b.data, b.len, &why) < 0)
        log_info("the profile is not kept: %s", why.text);
    buf_finish(&b);
}

static void say(void *arg, const char *line)
{
    (void)arg;
    log_info("%s", line);
}

static bool is_wanted(const struct engine *e, const struct engine_options *opt)
{
    enum sched_chunk_policy policy = e->sched_config.chunks.policy;

    if (e->ranks->pp == 1 || (policy != SCHED_CHUNK_OPTIMAL && policy != SCHED_CHUNK_EQUAL_TIME))
        return false;
    if (!opt->ranks.expert_parallel || opt->ranks.dp_size <= 1)
        return true;
    log_warning("the pipeline is not profiled: its steps are those of all data-parallel ranks");
    return false;
}

int engine_profile(struct engine *e, const struct engine_options *opt, struct err *err)
{
    char shape[512], host[128] = "", name[PROFILE_NAME_BYTES];
    const struct profile_key key = { model_fingerprint(e->model), shape, host };
    struct profile_fit fit = { 0 };
    struct err why = { "" };
    int st;

    if (!is_wanted(e, opt))
        return 0;
    describe_shape(shape, sizeof shape, e, opt);
    if (gethostname(host, sizeof host - 1) < 0)
        snprintf(host, sizeof host, "unknown");
    profile_file_name(name, &key);
    log_debug("profile %s: model \"%s\", shape \"%s\", host \"%s\"", name, key.fingerprint, shape,
              host);
    if (!find_kept(&fit, &key, name)) {
        if ((st = measure(e, &fit, opt->profile_seconds, err)) < 0)
            return st;
        if (fit.n_stages == 0)
            return 0;
        keep(&fit, &key, name);
    }
    if (profile_describe(&fit, &e->sched_config, say, NULL, &why) < 0 ||
        sched_set_latency(e->sched, fit.stage, fit.n_stages, &fit.link, &why) < 0)
        log_warning("the profile cannot be used: %s", why.text);
    return 0;
}
