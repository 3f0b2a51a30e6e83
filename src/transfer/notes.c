#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "sys/clock.h"
#include "transfer/internal.h"

#define RECHECK_SECONDS     5.0
#define RECHECK_SECONDS_MAX 60.0

static struct note *find(struct transfer *t, const char *host, uint16_t port)
{
    for (uint32_t i = 0; i < t->n_notes; i++)
        if (t->notes[i].port == port && strcmp(t->notes[i].host, host) == 0)
            return &t->notes[i];
    return NULL;
}

static void remove_note(struct transfer *t, struct note *n)
{
    memmove(n, n + 1, (size_t)(&t->notes[--t->n_notes] - n) * sizeof *n);
}

/* The note of this address as the latest; the oldest makes room. */
static struct note *renew(struct transfer *t, const char *host, uint16_t port)
{
    struct note *old = find(t, host, port), kept = { .port = port };

    snprintf(kept.host, sizeof kept.host, "%s", host);
    if (old)
        kept = *old;
    if (old || t->n_notes == TRANSFER_NOTES_MAX)
        remove_note(t, old ? old : t->notes);
    t->notes[t->n_notes] = kept;
    return &t->notes[t->n_notes++];
}

static void publish(struct transfer *t)
{
    uint32_t good = 0;
    const char *why = "";

    for (uint32_t i = 0; i < t->n_notes; i++)
        if (t->notes[i].matches)
            good++;
        else
            why = t->notes[i].why.text;
    pthread_mutex_lock(&t->lock);
    t->stats.matching = good;
    t->stats.mismatching = t->n_notes - good;
    snprintf(t->stats.mismatch, sizeof t->stats.mismatch, "%.*s", (int)sizeof t->stats.mismatch - 1,
             why);
    pthread_mutex_unlock(&t->lock);
}

void note_match(struct conn *c)
{
    struct note *n = renew(c->t, c->host, c->port);

    if (n->why.text[0])
        log_info("KV producer %s:%u matches now", c->host, c->port);
    n->matches = true;
    n->why.text[0] = '\0';
    publish(c->t);
}

void note_mismatch(struct conn *c, const char *why)
{
    struct transfer *t = c->t;
    struct note *n = renew(t, c->host, c->port);
    double first = t->opt.recheck_seconds > 0 ? t->opt.recheck_seconds : RECHECK_SECONDS;

    if (!n->why.text[0]) {
        n->recheck_seconds = first;
        n->recheck_at = clock_now() + first;
    }
    n->matches = false;
    err_set(&n->why, 0, "%s", why);
    c->noted = true;
    publish(t);
}

void note_unreachable(struct transfer *t, const char *host, uint16_t port)
{
    struct note *n = find(t, host, port);

    if (!n || n->matches)
        return;
    log_info("KV producer %s:%u, which did not match, has gone", host, port);
    remove_note(t, n);
    publish(t);
}

/* So that an instance that is not ready for its mismatches gets to know when they are mended: nobody sends
 * it requests meanwhile. */
void note_timers(struct transfer *t, double now)
{
    for (uint32_t i = 0; i < t->n_notes; i++) {
        struct note *n = &t->notes[i];

        if (n->matches || n->recheck_at > now)
            continue;
        /* Ever less often: what was configured so seldom changes by itself. */
        n->recheck_seconds = fmin(2 * n->recheck_seconds, RECHECK_SECONDS_MAX);
        n->recheck_at = now + n->recheck_seconds;
        if (calls_recheck(t, n->host, n->port) < 0)
            log_debug("KV producer %s:%u cannot be looked at now", n->host, n->port);
    }
}

double note_next(const struct transfer *t)
{
    double next = HUGE_VAL;

    for (uint32_t i = 0; i < t->n_notes; i++)
        if (!t->notes[i].matches)
            next = fmin(next, t->notes[i].recheck_at);
    return next;
}
