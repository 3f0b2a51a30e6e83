/* What one step of the scheduler costs with 256 requests that decode: plan, commit and events.
 * Takes the cheapest of many rounds, so that a busy machine does not matter, and fails beyond a
 * bound that a model's step would notice.
 *
 *     step_cost [bound in microseconds] */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sched/sched.h"

#define N_SEQS   256
#define N_PROMPT 64
#define N_OUT    1024
#define ROUND    32 /* steps timed together: each request gets two blocks in it */

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void add_all(struct sched *s)
{
    int32_t prompt[N_PROMPT];
    struct sampling p;
    sched_id id;

    sampling_init(&p);
    p.max_tokens = N_OUT;
    for (int i = 0; i < N_SEQS; i++) {
        for (int j = 0; j < N_PROMPT; j++)
            prompt[j] = i * 31 + j;
        struct sched_request r = { .prompt = prompt, .n_prompt = N_PROMPT, .sampling = &p };

        if (sched_add(s, &r, 0, &id, NULL) < 0)
            exit(2);
    }
}

static bool one_step(struct sched *s)
{
    static struct step_choice choice[N_SEQS];
    const struct plan *p = sched_step(s, 0);
    struct sched_event ev;

    if (!p)
        return false;
    for (uint32_t i = 0; i < p->n_entries; i++)
        choice[i] = (struct step_choice){
            .n = p->entries[i].sample,
            .token = { (int32_t)(i * 17 + p->entries[i].out_index) },
        };
    sched_commit(s, &(struct step_result){ .seq = p->seq, .choice = choice }, 0);
    while (sched_next_event(s, &ev))
        ;
    return p->n_entries == N_SEQS;
}

int main(int argc, char **argv)
{
    struct sched_config c = { .block_tokens = 16,
                              .n_blocks = N_SEQS * (N_PROMPT + N_OUT) / 16,
                              .max_model_len = N_PROMPT + N_OUT,
                              .max_batched_tokens = 2048,
                              .max_seqs = N_SEQS,
                              .max_inflight = 1,
                              .chunked_prefill = true,
                              .prefix_caching = true };
    double bound = argc > 1 ? strtod(argv[1], NULL) : 100, best = 1e9;
    struct sched *s;

    if (sched_create(&s, &c, NULL) < 0)
        return 2;
    add_all(s);
    while (!one_step(s))
        ;
    for (int round = 0; round < (N_OUT - 16) / ROUND; round++) {
        double start = now_us(), us;

        for (int i = 0; i < ROUND; i++)
            if (!one_step(s))
                return 2;
        us = (now_us() - start) / ROUND;
        best = us < best ? us : best;
    }
    sched_destroy(s);
    printf("one step of %d decoding requests: %.1f us (bound %.0f)\n", N_SEQS, best, bound);
    return best <= bound ? 0 : 1;
}
