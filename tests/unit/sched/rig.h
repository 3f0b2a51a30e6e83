/* A scheduler with a client that remembers what it was told, for tests. */
#ifndef SLUICE_TESTS_UNIT_SCHED_RIG_H
#define SLUICE_TESTS_UNIT_SCHED_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"
#include "sched/sched.h"

#define RIG_MAX_IDS 64
#define RIG_MAX_OUT 128
#define RIG_EOS     2
#define RIG_TOKEN   500 /* an output token that ends nothing */

struct told {
    bool started, ended, gone, held;
    int32_t token[RIG_MAX_OUT];
    uint32_t n_tokens;
    enum finish last_finish; /* of the last token */
    enum finish finish;
    int32_t stop_id;
    uint32_t n_cached, n_external, n_preempted;
};

struct rig {
    struct sched *s;
    double now; /* one second a call */
    struct told told[RIG_MAX_IDS];
};

/* A request; what is 0 or NULL is the plain case. The prompt is n ids from `first` on. */
struct ask {
    uint32_t n;
    int32_t first;
    uint32_t max_tokens; /* 0: 4 */
    uint32_t min_tokens;
    bool ignore_eos, prompt_only, prompt_logprobs;
    int32_t stop_id; /* 0: none */
    const char *salt;
    int64_t priority;
    enum sched_role role;
    uint32_t hit_multiple;
    int32_t first_out; /* the prefill's token; 0: not told */
    uint32_t n_output; /* of the n: told elsewhere before */
    bool give_back, pinned;
};

/* Blocks of 16, 64 of them; context 512, 64 tokens a step, 8 requests, 1 plan; chunks, cache. */
struct sched_config rig_config(void);
void rig_open(struct rig *g, const struct sched_config *c); /* NULL: rig_config */
void rig_close(struct rig *g);                              /* everything must be over */

int rig_try(struct rig *g, struct ask a, sched_id *out, struct err *e);
sched_id rig_add(struct rig *g, struct ask a);
const struct plan *rig_step(struct rig *g);
void rig_commit(struct rig *g, const struct plan *p, int32_t token); /* the same to all */
/* Steps one at a time, until there is nothing to do. Returns how many. */
uint32_t rig_run(struct rig *g, int32_t token);
/* One step that must be there, committed. Returns its number of entries. */
uint32_t rig_once(struct rig *g);

const struct told *rig_told(struct rig *g, sched_id id); /* reads the events first */
struct sched_stats rig_stats(const struct rig *g);
/* The state by its name, "" if the id is forgotten. */
const char *rig_state(const struct rig *g, sched_id id);
struct sched_pull rig_pull(struct rig *g); /* the order that must be there */

/* Checks entry i of a plan. */
void rig_expect(const struct plan *p, uint32_t i, sched_id id, uint32_t start, uint32_t n,
                bool sample);

#endif
