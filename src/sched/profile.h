/* The profile that an instance makes of its stages when it starts: which chunks to compute, what their
 * times say, how that is kept for the next start, and what the log says of it. Measuring is the
 * caller's: it runs real forwards through all stages. Pure; only profile_describe allocates. */
#ifndef SLUICE_SCHED_PROFILE_H
#define SLUICE_SCHED_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/latency.h"
#include "sched/sched.h"

struct buf;
struct err;

#define PROFILE_MAX_POINTS      96
#define PROFILE_DEFAULT_SECONDS 10.0

struct profile_limits {
    uint32_t n_stages;
    uint32_t base;       /* tokens of a step */
    uint32_t align;      /* block size */
    uint64_t max_tokens; /* history and chunk together: of a context, and of the pool */
    double seconds;      /* for all of it; no point is begun that would take it beyond that */
};

/* A chunk behind so many tokens of anything: what the history's blocks hold does not matter. */
struct profile_point {
    uint32_t index;
    uint32_t chunk;
    uint64_t history;
};

struct profile {
    struct profile_limits limits;
    struct profile_point point[PROFILE_MAX_POINTS];
    uint32_t n_points, next, n_warm_up; /* the first n_warm_up are not used */
    double began, ended;
    uint32_t n_measured;
    double ms[FLOW_MAX_STAGES][PROFILE_MAX_POINTS];        /* 0: not measured */
    double passed_ms[FLOW_MAX_STAGES][PROFILE_MAX_POINTS]; /* to that stage; 0: not measured */
};

/*     profile_begin(p, limits, now)
 *     while (profile_next(p, now, &point))  compute it, take each stage's time
 *         profile_measured(p, point.index, seconds, now)
 *         profile_passed(p, point.index, stage, seconds)   where it is known
 *     profile_fit(p, &fit, e)
 *
 * Points may be in flight together: times come by index, in any order. */
void profile_begin(struct profile *p, const struct profile_limits *l, double now);
/* 1 and *out, or 0: that was all, or the time is over. Small chunks and short histories come first; then
 * all once more. Chunks that would take too long by what is known are left out. */
int profile_next(struct profile *p, double now, struct profile_point *out);
/* Seconds of each stage; what is no positive number is left out. */
void profile_measured(struct profile *p, uint32_t index, const double *seconds, double now);
/* Seconds from the end of a chunk on the stage before `stage` to its beginning on that one, if it had been
 * waiting for it: so long it takes to pass a chunk on. Clocks of two hosts may make it negative. */
void profile_passed(struct profile *p, uint32_t index, uint32_t stage, double seconds);
/* Share of the time that is over, 0 to 1, for a progress line. */
double profile_progress(const struct profile *p, double now);

struct profile_fit {
    uint32_t n_stages;
    struct stage_time stage[FLOW_MAX_STAGES];
    double error[FLOW_MAX_STAGES]; /* mean relative error over the points */
    struct stage_link link;        /* on average; zeros where it is not known */
    uint32_t n_points;             /* that were measured; of equal ones the shortest time counts */
    double seconds;                /* that measuring took */
};

/* ERR_RANGE with a sentence: too few points, or times that follow no model. Then chunks stay fixed. */
int profile_fit(const struct profile *p, struct profile_fit *out, struct err *e);

/* What a fit belongs to. Each text is of the caller's making: whatever changes the times must be in it. */
struct profile_key {
    const char *fingerprint; /* of the model */
    const char *shape;       /* stages and their layers, ranks, sizes, threads */
    const char *host;
};

#define PROFILE_NAME_BYTES 48
/* The file for this key: "chunks-HEX.json". */
void profile_file_name(char out[PROFILE_NAME_BYTES], const struct profile_key *k);
/* Appends the fit as JSON; the buffer's status. */
int profile_write(struct buf *b, const struct profile_key *k, const struct profile_fit *f);
/* ERR_BADMSG, or ERR_MISMATCH if it is another key's, with a sentence: measure anew. */
int profile_read(struct profile_fit *out, const char *text, size_t len, const struct profile_key *k,
                 struct err *e);

/* The lines for the log: that planning is on, the numbers of each stage, and what they make of the
 * longest prompt. ERR_NOMEM; ERR_INVAL if c has no chunk policy or f is not of its stages. */
typedef void profile_line_fn(void *arg, const char *line);
int profile_describe(const struct profile_fit *f, const struct sched_config *c,
                     profile_line_fn *line, void *arg, struct err *e);

#endif
