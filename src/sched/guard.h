/* Two checks that keep a chunk plan from doing harm. Before it is used: it must beat the best fixed size
 * under the model, and not lose to it if the model is wrong by as much as fits are. While it is used:
 * prompts of each length class are timed, a few of them with fixed chunks, and plans stop where they
 * turn out slower. Pure; nothing is allocated. */
#ifndef SLUICE_SCHED_GUARD_H
#define SLUICE_SCHED_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/chunk.h"

#define GUARD_CLASSES 32 /* by the logarithm of the tokens to compute */

/* Mean and variance of measured over ideal times, as they come. */
struct guard_side {
    uint32_t n;
    double mean, spread; /* spread: sum of squared distances from the mean */
};

struct guard {
    struct guard_class {
        struct guard_side plan, fixed;
        uint32_t seen;
    } class[GUARD_CLASSES];
};

/* Is the plan faster than chunks of this size, by one part in a hundred? And does it lose no more than half
 * of that where the attention and the linear part are a fifth off in opposite directions, or the
 * fixed cost is off by two? */
bool guard_prefers(const struct chunk_task *t, const struct chunk_rule *plan,
                   const struct chunk_rule *fixed);

/* Which of both the next prompt with so many tokens to compute should use: the better one, and now and
 * then the other, to know. */
bool guard_wants_plan(struct guard *g, uint64_t rest);
/* Such a prompt took this many times its work. */
void guard_note(struct guard *g, uint64_t rest, bool planned, double over_work);

#endif
