/* What travels between the ranks of an instance beside the exchanges inside a step: step plans, hidden
 * states from stage to stage, results, commands. A thread of its own moves it over a group of its
 * own, so that states travel while the next chunk is computed. It sleeps while nothing happens.
 *
 * Hidden states go from a rank to the one of the next stage, through two buffers at either end: one
 * travels while the other is filled or read. */
#ifndef SLUICE_ENGINE_PIPE_H
#define SLUICE_ENGINE_PIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

struct err;
struct group;
struct pipe;

#define PIPE_NOBODY      UINT32_MAX
#define PIPE_MAX_MESSAGE (256u << 20) /* bytes of one message */
#define PIPE_MAX_QUEUED  (512u << 20) /* bytes that wait to be sent */

enum pipe_kind {
    PIPE_PLAN,   /* rank 0 to all */
    PIPE_RESULT, /* last stage to rank 0 */
    PIPE_LEAVE,  /* rank 0 to all: end */
    PIPE_KV,     /* commands of KV transfer and their answers */
    PIPE_KINDS,
    PIPE_PING = 64, /* answered by the pipe itself */
    PIPE_PONG,
};

struct pipe_options {
    struct group *group; /* the pipe's from pipe_create on; pipe_destroy leaves it */
    uint32_t from, to;   /* ranks that states come from and go to; PIPE_NOBODY */
    size_t state_bytes;  /* the most of a step */
    double seconds;      /* to wait for states, or for a free buffer */
    /* A message has come; data is borrowed for the call. Called on the pipe's thread. */
    void (*arrived)(void *arg, uint32_t from, uint32_t kind, const void *data, size_t bytes);
    /* The group is broken: nothing arrives any more. Called once, on the pipe's thread. */
    void (*broken)(void *arg, int status, const char *why);
    void *arg;
};

/* On failure the group is the caller's still. */
int pipe_create(struct pipe **out, const struct pipe_options *o, struct err *e);
/* Sends what was posted and the states that are on their way, for some seconds at most, and joins the
 * thread. NULL is fine. */
void pipe_destroy(struct pipe *p);

/* Breaks the group: all ranks hear this sentence. Any thread; `broken` is called soon. */
void pipe_abandon(struct pipe *p, const char *why);

/* Sends a copy of the bytes; messages to one rank arrive in order. Any thread, does not wait. ERR_CLOSED if
 * the group is broken, ERR_LIMIT, ERR_NOMEM. */
int pipe_post(struct pipe *p, uint32_t to, uint32_t kind, const void *data, size_t bytes);

/* When a stage computed a step, by its own clock. */
struct pipe_time {
    double start, end;
};
/* A step's states, with the times of the stages that they have passed. */
struct pipe_states {
    uint64_t seq;
    uint64_t bytes;
    uint32_t n_times;
    struct pipe_time time[ENGINE_MAX_STAGES];
    _Alignas(64) char data[];
};

/* The next states to come, in order; the caller gives them back with pipe_states_done before it asks
 * again. ERR_TIMEOUT, or why the group is broken. */
int pipe_states_wait(struct pipe *p, const struct pipe_states **out);
void pipe_states_done(struct pipe *p);
/* Room for the next states to go, which pipe_states_send sends. */
int pipe_states_room(struct pipe *p, struct pipe_states **out);
void pipe_states_send(struct pipe *p);

/* The rank whose end broke the group, -1 if none did; for `broken`. */
int pipe_lost(const struct pipe *p);

/* Asks all ranks whether they are alive, and returns the first that does not answer within the seconds;
 * PIPE_NOBODY: all did. */
uint32_t pipe_silent(struct pipe *p, double seconds);

#endif
