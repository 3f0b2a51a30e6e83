/* The instance's figures: vLLM's names and bounds, so that dashboards made for it work, and what it
 * has no name for under "sluice:". */
#ifndef SLUICE_SERVE_METRICS_H
#define SLUICE_SERVE_METRICS_H

#include <stdint.h>

#include "base/buf.h"
#include "wire/sampling.h"

struct engine;
struct metrics;
struct serve;

/* Labels of all of them: the model's name (copied), and which engine of a data-parallel group this is. */
int metrics_create(struct metrics **out, const char *model_name, uint32_t engine);
void metrics_destroy(struct metrics *m);

/* One request of the engine that has ended. Times are monotonic, 0 where it never came to it. */
struct metrics_request {
    enum finish finish;
    uint32_t n_prompt, n_out, n_cached, n_external, n_prefill, n_preempted, max_tokens, n;
    double t_arrive, t_queued, t_start, t_first, t_last, t_end;
};
void metrics_request(struct metrics *m, const struct metrics_request *r);
void metrics_first_token(struct metrics *m, double seconds);
void metrics_inter_token(struct metrics *m, double seconds);

/* A request that found the queue full (--max-num-queued-reqs). */
void metrics_rejected(struct metrics *m);

/* One HTTP reply (a stream: its start, with 0 reply_bytes). handler is static text: the route's path. */
void metrics_http(struct metrics *m, const char *handler, const char *method, int status,
                  double seconds, uint64_t request_bytes, uint64_t reply_bytes);

/* Takes over what the engine has measured since the last call: often, for it keeps only so much. */
void metrics_collect(struct metrics *m, struct engine *e);

/* The whole page. Returns b's status. */
int metrics_render(struct metrics *m, struct serve *s, struct buf *b);

#endif
