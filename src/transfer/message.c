#include "transfer/message.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"

/* One description of each message serves both directions: a cursor either writes the fields it is
 * shown, or reads into them. */
struct cursor {
    unsigned char *out;      /* writing */
    const unsigned char *in; /* reading; one of the two is NULL */
    size_t at, len;
    bool bad;
};

void message_put_u32(unsigned char out[4], uint32_t v)
{
    for (int i = 0; i < 4; i++)
        out[i] = (unsigned char)(v >> 8 * i);
}

uint32_t message_get_u32(const unsigned char in[4])
{
    return in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

void message_put_u64(unsigned char out[8], uint64_t v)
{
    message_put_u32(out, (uint32_t)v);
    message_put_u32(out + 4, (uint32_t)(v >> 32));
}

uint64_t message_get_u64(const unsigned char in[8])
{
    return message_get_u32(in) | (uint64_t)message_get_u32(in + 4) << 32;
}

/* Whether n more bytes are there, or fit. */
static bool room(struct cursor *c, size_t n)
{
    if (c->bad || n > c->len - c->at)
        c->bad = true;
    return !c->bad;
}

static void bytes(struct cursor *c, void *v, size_t n)
{
    if (!room(c, n))
        return;
    if (c->out)
        memcpy(c->out + c->at, v, n);
    else
        memcpy(v, c->in + c->at, n);
    c->at += n;
}

static void u32(struct cursor *c, uint32_t *v)
{
    unsigned char b[4];

    if (c->out)
        message_put_u32(b, *v);
    bytes(c, b, sizeof b);
    if (!c->out && !c->bad)
        *v = message_get_u32(b);
}

static void u64(struct cursor *c, uint64_t *v)
{
    unsigned char b[8];

    if (c->out)
        message_put_u64(b, *v);
    bytes(c, b, sizeof b);
    if (!c->out && !c->bad)
        *v = message_get_u64(b);
}

static void flag(struct cursor *c, bool *v)
{
    unsigned char b = *v;

    bytes(c, &b, 1);
    if (b > 1)
        c->bad = true;
    if (!c->bad)
        *v = b;
}

/* A length of two bytes, then the bytes, none of them NUL. cap: of the field, with the NUL. */
static void string(struct cursor *c, char *v, size_t cap)
{
    unsigned char b[2];
    size_t n = 0;

    if (c->out) {
        n = strlen(v);
        assert(n < cap);
        b[0] = (unsigned char)n;
        b[1] = (unsigned char)(n >> 8);
    }
    bytes(c, b, sizeof b);
    if (!c->out && !c->bad)
        n = b[0] | (size_t)b[1] << 8;
    if (n >= cap)
        c->bad = true;
    bytes(c, v, n);
    if (c->out || c->bad)
        return;
    v[n] = '\0';
    if (strlen(v) != n)
        c->bad = true;
}

static void layout(struct cursor *c, struct kv_layout *l)
{
    u32(c, &l->n_layers);
    u32(c, &l->first_layer);
    u32(c, &l->n_draft);
    u32(c, &l->planes);
    u32(c, &l->kv_heads);
    u32(c, &l->first_head);
    u32(c, &l->all_layers);
    u32(c, &l->all_heads);
    u32(c, &l->head_dim);
    u32(c, &l->elem_bytes);
    u32(c, &l->block_tokens);
    u32(c, &l->n_blocks);
}

static void shape(struct cursor *c, struct transfer_shape *s)
{
    u32(c, &s->pp);
    u32(c, &s->tp);
    u32(c, &s->dp);
}

static void identity(struct cursor *c, struct identity *id)
{
    string(c, id->engine_id, sizeof id->engine_id);
    bytes(c, id->boot, sizeof id->boot);
    string(c, id->fingerprint, sizeof id->fingerprint);
    string(c, id->kv_dtype, sizeof id->kv_dtype);
    layout(c, &id->layout);
    shape(c, &id->shape);
    u32(c, &id->rank);
    shape(c, &id->producers);
    shape(c, &id->consumers);
    flag(c, &id->produce);
    flag(c, &id->checksums);
}

static void hello(struct cursor *c, struct message *m)
{
    uint32_t magic = MESSAGE_MAGIC;

    u32(c, &magic);
    if (magic != MESSAGE_MAGIC)
        c->bad = true;
    u32(c, &m->u.hello.version);
    bytes(c, m->u.hello.nonce, sizeof m->u.hello.nonce);
    flag(c, &m->u.hello.secret);
}

static void prove(struct cursor *c, struct message *m)
{
    bytes(c, m->u.ready.proof, sizeof m->u.ready.proof);
    identity(c, &m->u.ready.identity);
}

static void ready(struct cursor *c, struct message *m)
{
    prove(c, m);
    bytes(c, m->u.ready.key.b, sizeof m->u.ready.key.b);
}

static void pull(struct cursor *c, struct message *m)
{
    struct message_pull *p = &m->u.pull;

    u64(c, &p->pull);
    string(c, p->lease, sizeof p->lease);
    u32(c, &p->range.first_layer);
    u32(c, &p->range.n_layers);
    u32(c, &p->range.first_head);
    u32(c, &p->range.n_heads);
    u32(c, &p->range.first_token);
    u32(c, &p->range.n_tokens);
    u32(c, &p->range.cell_tokens);
    flag(c, &p->in_place);
    u32(c, &p->batch_pieces);
    u32(c, &p->credits);
    u32(c, &p->wait_ms);
    bytes(c, p->prompt, sizeof p->prompt);
}

static void grant(struct cursor *c, struct message *m)
{
    u64(c, &m->u.grant.pull);
    u32(c, &m->u.grant.n_blocks);
    u32(c, &m->u.grant.batch_pieces);
    flag(c, &m->u.grant.checksums);
}

static void data(struct cursor *c, struct message *m)
{
    u64(c, &m->u.data.pull);
    u64(c, &m->u.data.piece);
    u32(c, &m->u.data.n);
}

static void name(struct cursor *c, struct message *m)
{
    u64(c, &m->u.name.id);
    string(c, m->u.name.lease, sizeof m->u.name.lease);
    flag(c, &m->u.name.keep);
    flag(c, &m->u.name.by_name);
    bytes(c, m->u.name.prompt, sizeof m->u.name.prompt);
}

static void rank(struct cursor *c, struct message *m)
{
    struct transfer_rank *r = &m->u.rank.is;
    uint32_t port = r->port;

    u32(c, &m->u.rank.rank);
    string(c, r->host, sizeof r->host);
    u32(c, &port);
    u32(c, &r->first_layer);
    u32(c, &r->n_layers);
    u32(c, &r->first_head);
    u32(c, &r->n_heads);
    if (port > UINT16_MAX)
        c->bad = true;
    r->port = (uint16_t)port;
}

static void result(struct cursor *c, struct message *m)
{
    uint32_t status = (uint32_t)m->u.result.status;

    u64(c, &m->u.result.id);
    u32(c, &status);
    m->u.result.status = (int32_t)status;
    string(c, m->u.result.text, sizeof m->u.result.text);
}

static void id(struct cursor *c, struct message *m)
{
    u64(c, &m->u.id);
}

static const struct {
    const char *name;
    void (*fields)(struct cursor *c, struct message *m);
} kinds[] = {
    [MESSAGE_HELLO] = { "HELLO", hello },
    [MESSAGE_WELCOME] = { "WELCOME", hello },
    [MESSAGE_PROVE] = { "PROVE", prove },
    [MESSAGE_READY] = { "READY", ready },
    [MESSAGE_REFUSED] = { "REFUSED", result },
    [MESSAGE_PULL] = { "PULL", pull },
    [MESSAGE_GRANT] = { "GRANT", grant },
    [MESSAGE_DATA] = { "DATA", data },
    [MESSAGE_CREDIT] = { "CREDIT", id },
    [MESSAGE_DONE] = { "DONE", name },
    [MESSAGE_RESULT] = { "RESULT", result },
    [MESSAGE_STOP] = { "STOP", id },
    [MESSAGE_RELEASE] = { "RELEASE", name },
    [MESSAGE_WAIT] = { "WAIT", id },
    [MESSAGE_MAP] = { "MAP", id },
    [MESSAGE_RANK] = { "RANK", rank },
};

static bool known(size_t kind)
{
    return kind < sizeof kinds / sizeof *kinds && kinds[kind].name;
}

const char *message_name(enum message_kind kind)
{
    return known(kind) ? kinds[kind].name : "unknown message";
}

/* Writing only reads through the pointers it is shown. */
size_t message_encode(unsigned char out[MESSAGE_MAX], const struct message *m)
{
    struct cursor c = { .out = out, .at = 1, .len = MESSAGE_MAX };
    struct message copy = *m;

    assert(known(m->kind));
    out[0] = (unsigned char)m->kind;
    kinds[m->kind].fields(&c, &copy);
    assert(!c.bad);
    return c.at;
}

int message_decode(struct message *m, const void *bytes_in, size_t len)
{
    struct cursor c = { .in = bytes_in, .at = 1, .len = len };

    if (len == 0 || !known(c.in[0]))
        return ERR_BADMSG;
    memset(m, 0, sizeof *m);
    m->kind = c.in[0];
    kinds[m->kind].fields(&c, m);
    return c.bad || c.at != len ? ERR_BADMSG : 0;
}

size_t identity_encode(unsigned char out[MESSAGE_MAX], const struct identity *v)
{
    struct cursor c = { .out = out, .len = MESSAGE_MAX };
    struct identity copy = *v;

    identity(&c, &copy);
    assert(!c.bad);
    return c.at;
}
