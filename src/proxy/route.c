#include "proxy/route.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"

const char *route_state_name(enum route_state s)
{
    static const char *const names[] = { "pending", "active", "failed", "draining" };

    return names[s];
}

double route_score(size_t body_bytes)
{
    return (double)body_bytes / 4.0 + ROUTE_REQUEST_TOKENS;
}

int route_add(struct route *r, struct route_node *n)
{
    if (r->n == ROUTE_MAX_NODES)
        return ERR_LIMIT;
    r->node[r->n++] = n;
    return 0;
}

void route_remove(struct route *r, struct route_node *n)
{
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->node[i] != n)
            continue;
        r->n--;
        memmove(&r->node[i], &r->node[i + 1], (r->n - i) * sizeof r->node[0]);
        return;
    }
    assert(!"the node is in the list");
}

static double load(const struct route_node *n)
{
    return n->tokens + ROUTE_KV_WEIGHT * n->kv;
}

static bool was_tried(const struct route_node *n, const uint64_t *tried, size_t n_tried)
{
    for (size_t i = 0; i < n_tried; i++)
        if (tried[i] == n->id)
            return true;
    return false;
}

struct route_node *route_pick(struct route *r, double score, const uint64_t *tried, size_t n_tried)
{
    struct route_node *best = NULL;
    uint32_t at = 0;

    for (uint32_t i = 0; i < r->n; i++) {
        uint32_t k = (r->turn + i) % r->n;
        struct route_node *n = r->node[k];

        if (n->state != ROUTE_ACTIVE || was_tried(n, tried, n_tried))
            continue;
        if (!best || load(n) < load(best)) {
            best = n;
            at = k;
        }
    }
    if (!best)
        return NULL;
    r->turn = at + 1; /* the next of equals */
    best->tokens += score;
    best->requests++;
    return best;
}

/* Sums of many additions and subtractions drift: an idle node's load is nothing, exactly. */
void route_release(struct route_node *n, double score)
{
    assert(n->requests > 0);
    n->requests--;
    n->tokens = n->requests ? n->tokens - score : 0;
}

void route_hold(struct route_node *n, double score)
{
    n->holds++;
    n->kv += score;
}

void route_unhold(struct route_node *n, double score)
{
    assert(n->holds > 0);
    n->holds--;
    n->kv = n->holds ? n->kv - score : 0;
}

static bool move(struct route_node *n, enum route_state to)
{
    if (n->state == to || n->state == ROUTE_DRAINING)
        return false;
    n->state = to;
    n->fails = n->probe_fails = n->oks = 0;
    return true;
}

bool route_report(const struct route *r, struct route_node *n, enum route_outcome o)
{
    if (o == ROUTE_OK) {
        n->fails = 0;
        return false;
    }
    n->fails++;
    if (n->state == ROUTE_ACTIVE && (o == ROUTE_NO_CONNECT || n->fails >= r->fail_limit))
        return move(n, ROUTE_FAILED);
    return false;
}

bool route_report_probe(const struct route *r, struct route_node *n, enum route_outcome o)
{
    if (o == ROUTE_OK) {
        n->probe_fails = 0;
        if (n->state == ROUTE_PENDING || (n->state == ROUTE_FAILED && ++n->oks >= r->ok_limit))
            return move(n, ROUTE_ACTIVE);
        return false;
    }
    n->oks = 0;
    n->probe_fails++;
    if (n->state == ROUTE_PENDING)
        return n->probe_fails >= r->wait_limit && move(n, ROUTE_FAILED);
    if (o == ROUTE_NO_CONNECT || n->probe_fails >= r->fail_limit)
        return move(n, ROUTE_FAILED);
    return false;
}

uint32_t route_count(const struct route *r, enum route_state s)
{
    uint32_t c = 0;

    for (uint32_t i = 0; i < r->n; i++)
        c += r->node[i]->state == s;
    return c;
}
