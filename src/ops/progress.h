/* A line on standard error that says how far a tool is: rewritten in place on a terminal, else a
 * line now and then. Any thread. */
#ifndef SLUICE_OPS_PROGRESS_H
#define SLUICE_OPS_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct progress {
    pthread_mutex_t lock;
    const char *what; /* "writing" */
    uint64_t done, total;
    double began, shown; /* seconds; of the last line */
    bool terminal, quiet;
};

void progress_init(struct progress *p, const char *what, uint64_t total, bool quiet);
void progress_add(struct progress *p, uint64_t bytes);
void progress_finish(struct progress *p); /* the last line, with the rate */

/* "1.5 GB" into out. Returns out. */
const char *progress_bytes(char out[32], uint64_t bytes);

#endif
