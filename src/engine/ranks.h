/* The ranks of an instance as one of them sees them: which part is its own, how it reaches the others,
 * and what each of them has found. Two groups: one is the pipe's, which moves plans and states; over
 * the other the computing thread sums and exchanges inside a step (struct model_peers). */
#ifndef SLUICE_ENGINE_RANKS_H
#define SLUICE_ENGINE_RANKS_H

#include "engine/engine.h"
#include "engine/pipe.h"

struct err;
struct group;
struct model_config;

#define RANKS_WHY_MAX 512

/* What a rank tells the others before they begin. */
struct rank_facts {
    int32_t status; /* < 0: it cannot, and why says so */
    char why[RANKS_WHY_MAX];
    char host[40]; /* the same for ranks that share memory */
    int64_t pid;
    uint64_t available; /* memory on its host */
    uint64_t need;      /* bytes, before anything is loaded: at least */
    uint64_t scratch;   /* bytes for activations */
    uint64_t block;     /* bytes of a KV block */
    uint64_t pool;      /* bytes for KV blocks that were asked for; 0: by memory */
    uint32_t n_draft;   /* layers for drafts */
    char fingerprint[72];
};

struct ranks {
    uint32_t pp, tp, n; /* n = pp * tp */
    uint32_t rank, stage, place;
    uint32_t first_layer, n_layers; /* of the stage; n_layers 0: all */
    double step_seconds;
    struct model_part part;

    struct group *pipe_group; /* NULL: alone, or the pipe has it */
    struct group *whole;      /* of the computing thread; NULL: no exchanges */
    bool owns_whole;
    uint32_t dp_rank, dp_size;
    size_t scratch; /* bytes that the sums of `whole` need */
    struct group *tp_group, *ep_group, *head_group;
    struct model_peers peers;
    int failed; /* < 0: an exchange has failed; the step's results are garbage */

    struct rank_facts *facts; /* [n] */
    double *clock_ahead;      /* [n] rank 0: seconds that a rank's clock is ahead of ours */
    bool clocks_compared;
};

/* Finds this rank's part; rank 0 waits for the others, the others for it. Returns with nothing left on
 * failure. */
int ranks_open(struct ranks **out, const struct engine_options *opt, struct err *e);
void ranks_close(struct ranks *r); /* leaves the groups; NULL is fine */
/* Ends the others' waits, in the groups that are not the pipe's, with this sentence. */
void ranks_abandon(struct ranks *r, const char *why);

/* All ranks tell each other their facts (host and pid are filled in here). mine->status and e are what
 * this rank has come to. If one of them cannot go on none does: the first one's status, with its
 * sentence. */
int ranks_gather(struct ranks *r, struct rank_facts *mine, struct err *e);

/* The group of the computing thread: a whole one, in which rank i of this instance is first + i. Makes
 * the parts that the model's exchanges go over. The group is left by ranks_close if owns_whole is set
 * then. Before it is left by others, ranks_unuse. */
int ranks_use(struct ranks *r, struct group *whole, uint32_t first, struct err *e);
void ranks_unuse(struct ranks *r);
/* Bytes that the computing thread's sums need. */
size_t ranks_scratch(const struct engine_options *opt, const struct model_config *c);

/* The same bytes on all tensor-parallel ranks: those of the first. */
void ranks_share(void *ranks, void *data, size_t bytes);

/* "rank 3 (stage 1, place 1, pid 4711)" */
const char *ranks_name(const struct ranks *r, uint32_t rank, char *out, size_t room);

static inline uint32_t ranks_last(const struct ranks *r)
{
    return (r->pp - 1) * r->tp; /* the rank that samples */
}

#endif
