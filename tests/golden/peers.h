/* The ranks of a model as threads of one process: what they do together (model_peers) goes through
 * shared memory and a barrier, so that what is tested is the model's share of it. A rank that does
 * not come ends the program with a sentence. */
#ifndef SLUICE_TESTS_GOLDEN_PEERS_H
#define SLUICE_TESTS_GOLDEN_PEERS_H

#include <stdint.h>

#include "model/model.h"

#define PEERS_MAX 16

struct ring; /* ranks that exchange among themselves */

/* One rank. */
struct peers {
    struct ring *tp, *experts, *head;
    uint32_t tp_rank, ep_rank, head_rank;
    uint64_t calls; /* of all verbs */
    struct model_peers verbs;
};

/* The ranks of dp instances of tp each, in the order dp_rank * tp + tp_rank. All of them share the
 * experts; `head` neighbouring instances share the head. */
struct peers_world {
    uint32_t dp, tp, head, n;
    struct ring *tp_rings[PEERS_MAX], *experts, *head_rings[PEERS_MAX];
    struct peers rank[PEERS_MAX];
};

void peers_open(struct peers_world *w, uint32_t dp, uint32_t tp,
                uint32_t head); /* head 0: no one */
void peers_close(struct peers_world *w);
/* A rank's part of the model; with_experts: experts are whole and shared by all ranks. */
struct model_part peers_part(struct peers_world *w, uint32_t rank, bool with_experts);
/* Calls fn(arg, rank) on a thread for each rank and waits for all. */
void peers_run(const struct peers_world *w, void (*fn)(void *arg, uint32_t rank), void *arg);

#endif
