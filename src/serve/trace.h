/* A timeline of steps in a file (--trace): when each pipeline stage computed which step. It is an array of
 * trace events in JSON, which chrome://tracing and Perfetto draw: a row a stage. A file that was not
 * closed lacks only the last bracket, which they do without. */
#ifndef SLUICE_SERVE_TRACE_H
#define SLUICE_SERVE_TRACE_H

#include <stdint.h>

struct engine_step_times;
struct err;
struct trace;

#define TRACE_MAX_BYTES (1u << 30) /* later steps are left out, and the log says so */

/* Replaces the file. ERR_IO with a sentence. */
int trace_open(struct trace **out, const char *path, struct err *e);
/* One step (struct engine_options, timeline). From one thread at a time. */
void trace_step(void *trace, const struct engine_step_times *t);
/* NULL is fine. */
void trace_close(struct trace *t);

#endif
