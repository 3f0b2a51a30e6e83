/* What a stage's steps take, learned from measured ones: the coefficients of struct stage_time, fitted
 * to relative errors by recursive least squares with forgetting, weighted down for outliers (Huber)
 * and kept within bounds. A common factor (a busy machine) is tracked apart as the load gain, so
 * that it comes and goes without disturbing the coefficients. Pure; nothing is allocated. */
#ifndef SLUICE_SCHED_LATENCY_H
#define SLUICE_SCHED_LATENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/stage_time.h"

#define LATENCY_ERRORS      32  /* of so many last steps the mean error is known */
#define LATENCY_MAX_SAMPLES 256 /* of a profile; more are not read */

/* A step as the model sees it: what its requests' chunks add up to. */
struct latency_step {
    double area;    /* sum of C (H + kappa C) */
    double tokens;  /* sum of C */
    double history; /* sum of H */
};

struct latency {
    double kappa, floor_tokens; /* below so many tokens the linear part gets no cheaper; 0: none */
    double unit[4];             /* a coefficient is its theta over its unit */
    double theta[4], p[4][4];   /* scaled coefficients and their covariance */
    double sigma;               /* of the relative error */
    double gain;                /* log of the load gain */
    double ratio[5];            /* logs of measured over predicted, the last five */
    double error[LATENCY_ERRORS];
    uint64_t n_steps;   /* served, with those that were dropped */
    uint64_t gain_from; /* steps before the load gain is tracked */
    bool grid;          /* the profile had chunks behind histories */
};

/* Steps of serving that count for latency_error. */
uint64_t latency_counted(const struct latency *l);

struct latency_sample {
    uint32_t chunk;
    uint64_t history;
    double ms;
};

void latency_init(struct latency *l, double kappa);
/* Begins with coefficients that were fitted before; steps of serving move them from there. */
void latency_start(struct latency *l, const struct stage_time *f);
/* The coefficients may have been fitted when the machine was more or less busy than it is now: the load
 * gain is tracked from the first steps on. */
void latency_under_load(struct latency *l);
void latency_step_add(const struct latency *l, struct latency_step *s, double chunk,
                      double history);

/* Measurements before serving; also finds the floor of the linear part. Not finite or not positive
 * ones are left out, as are those that lie far from the others (a cold first run). */
void latency_profile(struct latency *l, const struct latency_sample *s, uint32_t n);
/* The coefficients that n samples make, whatever the speed of the machine; returns their mean relative
 * error, each counted as 0.5 at most, or 1 if no sample can be used. */
double latency_fit(struct stage_time *out, double kappa, const struct latency_sample *s,
                   uint32_t n);
/* A step of serving. The first few, and what is not a positive number, are dropped. */
void latency_measured(struct latency *l, const struct latency_step *s, double ms);

double latency_predict(const struct latency *l, const struct latency_step *s);
/* The load gain that predictions are multiplied with; 1 while it is small. */
double latency_gain(const struct latency *l);
/* The coefficients, without the load gain: it changes no plan. */
struct stage_time latency_coefficients(const struct latency *l);
/* Mean relative error of the last steps, each counted as 0.5 at most; 1 before the first. */
double latency_error(const struct latency *l);
/* May plans be trusted? Enough steps, a small error, and a small uncertainty at each of the n points
 * that a plan is made of. */
bool latency_converged(const struct latency *l, const struct latency_step *points, uint32_t n);

#endif
