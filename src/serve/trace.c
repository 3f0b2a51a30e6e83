#include "serve/trace.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "engine/engine.h"

#define BUFFER        (1 << 16)
#define FLUSH_SECONDS 1.0

struct trace {
    FILE *f;
    double flush_at;
    double zero; /* the first step's beginning; times in the file count from there */
    uint64_t n_events, bytes;
    uint32_t n_named; /* stages whose rows have a name */
    bool failed;      /* the disk is full, or the file is: said once */
    char buffer[BUFFER];
};

static void put(struct trace *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(struct trace *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vfprintf(t->f, fmt, ap);
    va_end(ap);
    t->bytes += n > 0 ? (uint64_t)n : 0;
}

int trace_open(struct trace **out, const char *path, struct err *e)
{
    struct trace *t = calloc(1, sizeof *t);

    if (!t)
        return ERR_NOMEM;
    t->f = fopen(path, "we");
    if (!t->f) {
        free(t);
        return err_set(e, ERR_IO, "--trace: %s cannot be written: %s", path, strerror(errno));
    }
    setvbuf(t->f, t->buffer, _IOFBF, sizeof t->buffer);
    put(t, "[\n");
    *out = t;
    return 0;
}

/* Every event but the last is followed by a comma: so the comma comes with the next one. */
static void begin_event(struct trace *t)
{
    if (t->n_events++ > 0)
        put(t, ",\n");
}

static void name_stages(struct trace *t, uint32_t n)
{
    for (; t->n_named < n; t->n_named++) {
        begin_event(t);
        put(t,
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":%u,\"args\":{\"name\":"
            "\"stage %u\"}}",
            t->n_named, t->n_named);
    }
}

/* Of each request: its number, its tokens in the step, and how many came before them. */
static void put_requests(struct trace *t, const struct engine_step_times *s)
{
    put(t, "\"args\":{\"tokens\":%u,\"prefill\":%u,\"n_requests\":%u,\"requests\":[", s->n_tokens,
        s->n_prefill_tokens, s->n_requests);
    for (uint32_t i = 0; i < s->n_parts && i < ENGINE_STEP_PARTS; i++)
        put(t, "%s{\"id\":%llu,\"tokens\":%u,\"history\":%u}", i ? "," : "",
            (unsigned long long)s->part[i].id, s->part[i].tokens, s->part[i].history);
    put(t, "]}}");
}

static void put_stage(struct trace *t, const struct engine_step_times *s, uint32_t stage)
{
    const struct engine_stage_time *at = &s->stage[stage];

    begin_event(t);
    put(t, "{\"name\":\"step %llu\",\"ph\":\"X\",\"pid\":0,\"tid\":%u,\"ts\":%.1f,\"dur\":%.1f,",
        (unsigned long long)s->seq, stage, 1e6 * (at->start - t->zero),
        1e6 * (at->end - at->start));
    put_requests(t, s);
}

/* So that one can look while it runs. */
static void flush_now_and_then(struct trace *t, double now)
{
    if (now < t->flush_at)
        return;
    fflush(t->f);
    t->flush_at = now + FLUSH_SECONDS;
}

void trace_step(void *trace, const struct engine_step_times *s)
{
    struct trace *t = trace;
    uint32_t n = s->n_stages < ENGINE_MAX_STAGES ? s->n_stages : ENGINE_MAX_STAGES;

    if (t->failed || n == 0)
        return;
    if (t->n_events == 0)
        t->zero = s->stage[0].start;
    name_stages(t, n);
    for (uint32_t i = 0; i < n; i++)
        put_stage(t, s, i);
    flush_now_and_then(t, s->stage[n - 1].end);
    if (ferror(t->f) || t->bytes >= TRACE_MAX_BYTES) {
        log_warning("--trace: %s; what follows is not recorded",
                    ferror(t->f) ? "the file cannot be written" : "the file is full");
        t->failed = true;
    }
}

void trace_close(struct trace *t)
{
    if (!t)
        return;
    put(t, "\n]\n");
    fclose(t->f);
    free(t);
}
