/* Prompts of a step where a pipeline computes them.
 *
 * One prompt alone follows its plan (chunk.h). Several share steps of equal time: the work that is in
 * sight is spread over the steps that may still be sent, so that there are always as many of them as
 * the stages need, and each is filled in order of the queue. Decoding tokens were planned before and
 * take nothing of that time. Who was passed over for some steps gets a share first, so that nobody
 * waits for the end of a long prompt. Without a prediction that may be used, chunks are fixed. */
#include <assert.h>
#include <math.h>

#include "sched/core.h"

#define PASSED_MAX  3    /* steps that pass a prompt over; then it gets its share */
#define SHARE       0.25 /* of a step's time, of one that was passed over */
#define SHARES_MOST 0.5  /* of a step's time, of all of these */
#define OVERTIME    1.1  /* of the time left, for the whole rest of the first one */
#define LEAST_PART  0.25 /* of a step's time; less of a prompt is left for the next step */
#define MOST_REREAD 0.3  /* of the time left, for the history that a part must read again */
#define FULL        0.03 /* of a step's time: less than that is not filled */
#define LONG_RULE   16   /* chunks of a plan that is corrected on the way */

struct pack {
    struct req *req[SCHED_VISIBLE];
    uint32_t n;
    double target, left; /* ms */
};

static bool is_short(const struct sched *s, const struct req *r)
{
    return r->n_prompt <= s->cfg.short_first.threshold;
}

static bool is_aged(const struct sched *s, const struct req *r)
{
    double most = s->cfg.short_first.long_max_wait;

    return most > 0 && r->n_chunks == 0 && s->now - r->t_added >= most;
}

struct req *sched_next_waiting(const struct sched *s)
{
    struct req *head = s->queue[REQ_WAIT].head, *first_short = NULL, *first_long = NULL;
    uint32_t n = 0;

    if (!s->cfg.short_first.enabled)
        return head;
    for (struct req *r = head; r && n < SCHED_SHORT_LOOK; r = r->next, n++) {
        if (r->n_preempted > 0)
            return r;
        if (!first_short && is_short(s, r))
            first_short = r;
        if (!first_long && !is_short(s, r))
            first_long = r;
    }
    if (first_long && is_aged(s, first_long))
        return first_long;
    return first_short ? first_short : head;
}

/* Has it more to compute than a decode step? */
static bool has_prompt(const struct req *r)
{
    return req_todo(r) > 1;
}

/* Those of one kind, in order of the queue. Kinds, where short ones go first: long ones that have
 * waited too long, short ones, the rest. */
static void collect_kind(const struct sched *s, struct pack *p, int kind)
{
    for (struct req *r = s->queue[REQ_RUN].head; r && p->n < SCHED_VISIBLE; r = r->next) {
        int is = is_short(s, r) ? 1 : is_aged(s, r) ? 0 : 2;

        if (has_prompt(r) && (kind < 0 || kind == is))
            p->req[p->n++] = r;
    }
}

static void collect(const struct sched *s, struct pack *p)
{
    p->n = 0;
    if (!s->cfg.short_first.enabled) {
        collect_kind(s, p, -1);
        return;
    }
    for (int kind = 0; kind < 3; kind++)
        collect_kind(s, p, kind);
}

/* ---- fixed chunks ---- */

static void plan_fixed(struct sched *s, struct outline *o, const struct pack *p)
{
    uint32_t size = pace_fixed_size(s->pace, p->req[0]->n_planned, p->req[0]->n_all);

    if (o->budget > size)
        o->budget = size;
    for (uint32_t i = 0; i < p->n && o->budget > 0; i++) {
        p->req[i]->alone = false;
        sched_plan_chunk(s, o, p->req[i], UINT32_MAX);
    }
}

/* ---- one prompt alone ---- */

/* The longest chunk on its way. */
static double longest_in_flight(const struct sched *s)
{
    double most = 0;

    for (uint32_t i = 0; i < s->n_flights; i++) {
        const struct plan *p = &s->flight[(s->first_flight + i) % s->cfg.max_inflight].plan;

        most = fmax(most, pace_predicted(s->pace, p->seq));
    }
    return most;
}

static void make_rule(struct sched *s, struct req *r, double committed_ms)
{
    pace_plan(s->pace, &r->rule, r->n_planned, r->n_all, committed_ms);
    r->rule_chunks = 0;
}

static void begin_alone(struct sched *s, struct req *r)
{
    double committed_ms = longest_in_flight(s);

    make_rule(s, r, committed_ms);
    r->alone = !(committed_ms > 0);
    r->alone_from = r->n_planned;
    r->alone_since = s->now;
}

static void plan_alone(struct sched *s, struct outline *o, struct req *r)
{
    uint32_t n;

    if (r->rule.n == 0 || r->rule.tokens != r->n_all)
        begin_alone(s, r);
    else if (!r->rule.fixed && r->rule.n >= LONG_RULE && pace_is_off(s->pace))
        make_rule(s, r, r->rule.ms);
    n = chunk_rule_next(&r->rule, r->rule_chunks++, r->n_planned);
    sched_plan_chunk(s, o, r, pace_smooth(s->pace, n));
}

void sched_prompt_done(struct sched *s, struct req *r)
{
    double work;

    if (!r->alone)
        return;
    r->alone = false;
    if (r->alone_from >= r->n_prompt)
        return;
    work = chunk_work(&r->rule.time, r->alone_from, r->n_prompt);
    guard_note(&s->pace->guard, r->n_prompt - r->alone_from, !r->rule.fixed,
               (s->now - r->alone_since) * 1e3 / work);
}

/* ---- several prompts ---- */

static void give(struct sched *s, struct outline *o, struct pack *p, struct req *r, uint32_t n)
{
    uint32_t start = r->n_planned;

    sched_plan_chunk(s, o, r, n);
    p->left -= pace_chunk_work(s->pace, r->n_planned - start, start);
    r->n_passed = 0;
}

/* Whole blocks of the rest of r whose work is at most ms; all of it, if it is. */
static uint32_t part_for(struct sched *s, const struct req *r, double ms)
{
    double n = pace_chunk(s->pace, r->n_planned, ms);
    uint32_t bt = s->cfg.block_tokens, todo = req_todo(r);

    return n >= todo ? todo : (uint32_t)n / bt * bt;
}

/* At least a block: the history may cost more than the share. */
static uint32_t share_of(struct sched *s, const struct req *r, double ms)
{
    uint32_t n = part_for(s, r, ms);

    return n > 0 ? n : s->cfg.block_tokens;
}

/* True if somebody got one. */
static bool give_shares(struct sched *s, struct outline *o, struct pack *p)
{
    double before = p->left, until = before - SHARES_MOST * p->target;

    for (uint32_t i = 0; i < p->n && p->left > until && o->budget > 0; i++)
        if (p->req[i]->n_passed >= PASSED_MAX)
            give(s, o, p, p->req[i], share_of(s, p->req[i], SHARE * p->target));
    return p->left < before;
}

/* What r gets of the time left: 0 if it waits for the next step. */
static uint32_t rest_of_time(struct sched *s, const struct pack *p, const struct req *r, bool first)
{
    uint32_t todo = req_todo(r), n;
    double whole = pace_chunk_work(s->pace, todo, r->n_planned);

    if (whole <= p->left || (first && whole <= OVERTIME * p->left))
        return todo;
    if (first)
        return share_of(s, r, p->left);
    n = part_for(s, r, p->left);
    if (n == 0 || pace_chunk_work(s->pace, n, r->n_planned) < LEAST_PART * p->target ||
        pace_history_work(s->pace, r->n_planned) > MOST_REREAD * p->left)
        return 0;
    return n;
}

static double visible_work(struct sched *s, const struct pack *p)
{
    double sum = 0;

    for (uint32_t i = 0; i < p->n; i++)
        sum += pace_work(s->pace, p->req[i]->n_planned, p->req[i]->n_all);
    return sum;
}

static void plan_shared(struct sched *s, struct outline *o, struct pack *p)
{
    const struct req *head = p->req[0];
    bool first;

    p->target = pace_target(s->pace, visible_work(s, p), s->cfg.max_inflight - s->n_flights,
                            head->n_planned, head->n_all);
    p->left = p->target - pace_fixed(s->pace);
    for (uint32_t i = 0; i < p->n; i++) {
        p->req[i]->n_passed++;
        p->req[i]->alone = false;
        p->req[i]->rule.n = 0;
    }
    first = !give_shares(s, o, p);
    for (uint32_t i = 0; i < p->n && o->budget > 0 && p->left > FULL * p->target; i++) {
        uint32_t n = p->req[i]->n_passed == 0 ? 0 : rest_of_time(s, p, p->req[i], first);

        if (n > 0)
            give(s, o, p, p->req[i], n);
        first = first && n == 0;
    }
}

/* ---- the reference policy ---- */

static void plan_equal_time(struct sched *s, struct outline *o, const struct pack *p)
{
    struct equal_time_request running[SCHED_VISIBLE], waiting[SCHED_VISIBLE];
    uint64_t tokens[2 * SCHED_VISIBLE];
    uint32_t n_running = 0, n_waiting = 0, given = 0;
    const struct equal_time_step step = {
        .token_budget = o->budget,
        .max_model_len = (uint64_t)s->cfg.max_model_len + 1,
        .threshold = s->cfg.long_prefill_threshold,
        .timing = s->cfg.chunks.timing && !s->pace->equal_time.frozen,
    };

    for (uint32_t i = 0; i < p->n; i++) {
        const struct req *r = p->req[i];
        struct equal_time_request q = { .prompt = r->n_all, .total = r->n_all };

        *(r->n_chunks ? &q.done : &q.hit) = r->n_planned;
        *(r->n_chunks ? &running[n_running++] : &waiting[n_waiting++]) = q;
    }
    equal_time_split(&s->pace->equal_time, &step, running, n_running, waiting, n_waiting, tokens);
    for (uint32_t i = 0, r = 0, w = n_running; i < p->n && o->budget > 0; i++) {
        uint64_t n = tokens[p->req[i]->n_chunks ? r++ : w++];

        if (n > 0)
            sched_plan_chunk(s, o, p->req[i], (uint32_t)(n < UINT32_MAX ? n : UINT32_MAX));
        given += n > 0;
    }
    if (given == 0) /* its model found no chunk: prompts go on all the same */
        sched_plan_chunk(s, o, p->req[0], UINT32_MAX);
}

void sched_plan_prompts(struct sched *s, struct outline *o)
{
    struct pack p;

    o->by_time = true;
    for (const struct req *r = s->queue[REQ_RUN].head; r; r = r->next)
        o->n_visible += has_prompt(r);
    sched_admit_waiting(s, o);
    collect(s, &p);
    if (p.n == 0 || o->budget == 0)
        return;
    if (s->cfg.chunks.policy == SCHED_CHUNK_EQUAL_TIME)
        plan_equal_time(s, o, &p);
    else if (!pace_usable(s->pace, p.req[0]->n_planned, p.req[0]->n_all))
        plan_fixed(s, o, &p);
    else if (p.n == 1)
        plan_alone(s, o, p.req[0]);
    else
        plan_shared(s, o, &p);
}
