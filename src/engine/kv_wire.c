#include "engine/kv_wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static int is_asked(uint32_t kind)
{
    return kind < KV_OPENED;
}

void *kv_wire_make(size_t *n, const struct kv_wire *m, const uint32_t *src, const uint32_t *dst)
{
    size_t n_src = is_asked(m->kind) ? m->u.ask.n_src : 0;
    size_t n_dst = is_asked(m->kind) ? m->u.ask.n_dst : 0;
    uint32_t *ids;
    char *out;

    *n = sizeof *m + (n_src + n_dst) * sizeof *ids;
    out = malloc(*n);
    if (!out)
        return NULL;
    memcpy(out, m, sizeof *m);
    ids = (uint32_t *)(void *)(out + sizeof *m);
    if (n_src)
        memcpy(ids, src, n_src * sizeof *ids);
    if (n_dst)
        memcpy(ids + n_src, dst, n_dst * sizeof *ids);
    return out;
}

static int is_text(const char *s, size_t cap)
{
    return memchr(s, '\0', cap) != NULL;
}

static int texts_are_sound(const struct kv_wire *m)
{
    if (!is_text(m->name, sizeof m->name) || !is_text(m->engine_id, sizeof m->engine_id))
        return 0;
    if (is_asked(m->kind))
        return is_text(m->u.ask.host, sizeof m->u.ask.host);
    return is_text(m->u.tell.why, sizeof m->u.tell.why) &&
           is_text(m->u.tell.place.host, sizeof m->u.tell.place.host);
}

int kv_wire_read(struct kv_wire *m, const uint32_t **src, const uint32_t **dst, const void *data,
                 size_t n)
{
    const char *ids = (const char *)data + sizeof *m;
    uint64_t blocks = 0;

    if (n < sizeof *m)
        return ERR_BADMSG;
    if ((uintptr_t)ids % sizeof **src != 0)
        return ERR_MISMATCH;
    memcpy(m, data, sizeof *m);
    if (m->kind >= KV_WIRE_KINDS || !texts_are_sound(m))
        return ERR_BADMSG;
    if (is_asked(m->kind))
        blocks = (uint64_t)m->u.ask.n_src + m->u.ask.n_dst;
    if ((n - sizeof *m) / sizeof **src != blocks || (n - sizeof *m) % sizeof **src != 0)
        return ERR_BADMSG;
    *src = (const uint32_t *)(const void *)ids;
    *dst = *src + (is_asked(m->kind) ? m->u.ask.n_src : 0);
    return 0;
}
