/* The part of a request that another instance has: prefills to be found, released or refused. */
#include <stdlib.h>

#include "base/log.h"
#include "serve/bootstrap.h"
#include "serve/gen.h"

/* ---- releasing ---- */

struct release {
    struct serve *s;
    struct kv_params kv;
};

static void on_release(void *arg, int st, const struct kv_bootstrap *found, const char *why)
{
    struct release *r = arg;

    if (st == 0) {
        bootstrap_fill(&r->kv, found);
        engine_kv_release_remote(r->s->engine, &r->kv);
    } else {
        log_debug("%s; the remote lease ends by itself", why);
    }
    free(r);
}

void remote_release(struct serve *s, const struct kv_params *kv)
{
    struct release *r;

    if (!kv->do_remote_prefill)
        return;
    if (!s->bootstrap || !bootstrap_needed(kv)) {
        engine_kv_release_remote(s->engine, kv);
        return;
    }
    r = calloc(1, sizeof *r);
    if (!r)
        return; /* the lease ends by itself */
    r->s = s;
    r->kv = *kv;
    r->kv.remote_block_ids = NULL;
    r->kv.n_blocks = 0;
    bootstrap_find(s->bootstrap, kv, on_release, r);
}

void remote_refuse(struct serve *s, const struct kv_params *kv)
{
    if (kv->do_remote_decode && kv->transfer_id[0])
        engine_kv_refuse(s->engine, kv);
}

/* ---- finding ---- */

/* Without the remote prefill: by kv_load_failure_policy. */
static void not_found(struct gen *g, const char *why)
{
    struct serve *s = g->s;

    log_warning("%s: %s", g->id, why);
    if (s->cfg->kv.fail_on_error) {
        gen_fail(g, 500, why);
    } else {
        g->req.has_kv = false;
        g->late_siblings = false;
    }
}

static void on_found(void *arg, int st, const struct kv_bootstrap *found, const char *why)
{
    struct gen *g = arg;

    g->finding = false;
    if (st == 0)
        bootstrap_fill(&g->req.kv, found);
    if (st == 0 && g->failed)
        remote_release(g->s, &g->req.kv);
    else if (st < 0 && !g->failed)
        not_found(g, why);
    gen_found(g);
}

bool remote_find(struct gen *g)
{
    struct serve *s = g->s;

    if (!g->req.has_kv || !s->bootstrap || !bootstrap_needed(&g->req.kv))
        return false;
    g->finding = true;
    bootstrap_find(s->bootstrap, &g->req.kv, on_found, g);
    return true;
}
