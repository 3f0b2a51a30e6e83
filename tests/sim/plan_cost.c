/* What planning one prompt costs, with all that is done to know whether the plan is worth it. Takes the
 * cheapest of many, so that a busy machine does not matter, and fails beyond a bound that a step of a
 * model would notice.
 *
 *     plan_cost [bound in microseconds] */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sched/pace.h"

#define ROUNDS 60

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

struct prompt {
    struct stage_time time;
    uint32_t n_stages, tokens, history;
};

static const struct prompt prompts[] = {
    { { 1.589e-6, 0.042, 1.26e-3, 25, 0.5, 0 }, 2, 131072, 0 },
    { { 1.589e-6, 0.042, 1.26e-3, 25, 0.5, 0 }, 2, 131072, 129536 },
    { { 3.97e-7, 0.0105, 3.15e-4, 15.6, 0.5, 0 }, 8, 131072, 0 },
    { { 1.107e-6, 0.0482, 0, 25, 0.5, 0 }, 2, 262144, 0 },
    { { 2.77e-7, 0.012, 0, 15.6, 0.5, 0 }, 8, 262144, 0 },
};

static double cost_of(struct pace *p, const struct prompt *q)
{
    struct sched_config c = { .block_tokens = 128,
                              .max_batched_tokens = 32768,
                              .max_model_len = q->tokens,
                              .chunks = { .policy = SCHED_CHUNK_OPTIMAL,
                                          .n_stages = q->n_stages,
                                          .smooth = 1,
                                          .max_fit = 30 } };
    struct stage_time stages[FLOW_MAX_STAGES];
    struct chunk_rule rule;
    double best = 1e9;

    for (uint32_t i = 0; i < q->n_stages; i++)
        stages[i] = q->time;
    for (int i = 0; i < ROUNDS; i++) {
        double start, us;

        pace_init(p, &c);
        if (pace_set_latency(p, stages, q->n_stages, NULL, NULL) < 0)
            exit(2);
        start = now_us();
        pace_plan(p, &rule, q->history, q->tokens, 0);
        us = now_us() - start;
        best = us < best ? us : best;
    }
    printf("%u tokens behind %u, %u stages: %u chunks, %.0f us\n", q->tokens - q->history,
           q->history, q->n_stages, rule.n, best);
    return best;
}

int main(int argc, char **argv)
{
    double bound = argc > 1 ? strtod(argv[1], NULL) : 200, most = 0;
    struct pace *p = malloc(sizeof *p);

    if (!p)
        return 2;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        double us = cost_of(p, &prompts[i]);

        most = us > most ? us : most;
    }
    free(p);
    printf("the dearest plan: %.0f us (bound %.0f)\n", most, bound);
    return most <= bound ? 0 : 1;
}
