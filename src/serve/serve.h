/* One instance's front: the OpenAI API over HTTP, tokenizer, chat template, metrics, over an engine.
 *
 *     LOADING --> READY --> DRAINING --> (loop stops)
 *        |          |
 *        +----------+--> DEAD (the engine is gone: 503 on everything)
 *
 * All of it runs on the loop's thread; loading happens on a thread of its own. */
#ifndef SLUICE_SERVE_SERVE_H
#define SLUICE_SERVE_SERVE_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct loop;
struct serve;
struct serve_config;

/* Binds the port, so that a clash shows at once, and starts to load; until that is done every path
 * answers 503. cfg is borrowed until serve_destroy. When loading fails the loop is stopped and
 * serve_exit_code is not 0. */
int serve_create(struct serve **out, const struct serve_config *cfg, struct loop *l, struct err *e);

/* SIGTERM or SIGINT: the first one drains (new requests get 503, running ones have
 * --shutdown-timeout to finish, then end with an error), the second one stops at once. Stops the
 * loop when done. */
void serve_stop(struct serve *s);

/* The instance is broken, and the sentence says why: requests end with it and a 503, and so does what
 * asks for the state; the loop stops soon, with exit code 1. Only the first call counts. */
void serve_fail(struct serve *s, const char *why);

/* Whether the thread that opens the engine still runs: serve_destroy would wait for it. */
bool serve_is_loading(const struct serve *s);

uint16_t serve_port(const struct serve *s);
int serve_exit_code(const struct serve *s);

/* After the loop has ended. NULL is fine. */
void serve_destroy(struct serve *s);

/* What can be said of the options from the model's configuration alone. */
int serve_check_model(const struct serve_config *cfg, struct err *e);

/* A rank other than 0 (cfg->ranks.rank), in a process of its own: no API. Returns when rank 0 tells it to
 * end, or why it ended. */
int serve_rank(const struct serve_config *cfg, struct err *e);

#endif
