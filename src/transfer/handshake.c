#include "transfer/handshake.h"

#include <string.h>

#include "base/hash.h"
#include "base/rand.h"
#include "base/status.h"

static const char *const labels[] = {
    [HANDSHAKE_CONSUMER] = "sluice kv consumer",
    [HANDSHAKE_PRODUCER] = "sluice kv producer",
};

void handshake_init(struct handshake *h, enum handshake_role own, const char *secret)
{
    memset(h, 0, sizeof *h);
    h->secret = secret;
    rand_bytes(h->nonce[own], MESSAGE_NONCE_BYTES);
}

int handshake_hello(struct handshake *h, enum handshake_role own, const struct message_hello *peer,
                    struct err *e)
{
    if (peer->version != MESSAGE_VERSION)
        return err_set(
            e, ERR_MISMATCH,
            "KV transfer protocol version: %u here, %u at the peer; run the same release "
            "on both sides",
            MESSAGE_VERSION, peer->version);
    if (peer->secret != !!h->secret)
        return err_set(e, ERR_AUTH,
                       "KV transfer secret: %s here, %s at the peer; set the same on both sides",
                       h->secret ? "set" : "not set", peer->secret ? "set" : "not set");
    memcpy(h->nonce[1 - own], peer->nonce, MESSAGE_NONCE_BYTES);
    return 0;
}

void handshake_prove(const struct handshake *h, enum handshake_role role,
                     unsigned char out[MESSAGE_PROOF_BYTES], const struct identity *id)
{
    unsigned char text[MESSAGE_MAX];
    const char *secret = h->secret ? h->secret : "";
    struct hash256 proof;
    struct hash_part parts[] = {
        { labels[role], strlen(labels[role]) },
        { h->nonce[HANDSHAKE_CONSUMER], MESSAGE_NONCE_BYTES },
        { h->nonce[HANDSHAKE_PRODUCER], MESSAGE_NONCE_BYTES },
        { text, identity_encode(text, id) },
    };

    hash_hmac_sha256(&proof, secret, strlen(secret), parts, sizeof parts / sizeof *parts);
    memcpy(out, proof.b, MESSAGE_PROOF_BYTES);
}

int handshake_verify(const struct handshake *h, enum handshake_role role,
                     const struct message_ready *peer, struct err *e)
{
    struct hash256 want, got;

    handshake_prove(h, role, want.b, &peer->identity);
    memcpy(got.b, peer->proof, sizeof got.b);
    if (!hash_equal(&want, &got))
        return err_set(
            e, ERR_AUTH,
            "the peer's proof of the KV transfer secret is wrong; set the same secret on "
            "both sides");
    return 0;
}

static int differ_text(struct err *e, const char *what, const char *p, const char *c)
{
    if (strcmp(p, c) == 0)
        return 0;
    return err_set(e, ERR_MISMATCH, "%s: '%s' at the producer, '%s' at the consumer", what, p, c);
}

static int differ(struct err *e, const char *what, uint32_t p, uint32_t c)
{
    if (p == c)
        return 0;
    return err_set(e, ERR_MISMATCH, "%s: %u at the producer, %u at the consumer", what, p, c);
}

/* What one side's configuration says of the other, against what that is. */
static int expected(struct err *e, const char *who, const char *what, uint32_t said, uint32_t is)
{
    if (said == 0 || said == (is ? is : 1))
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "%s size: the configuration of the %s says %u, the other side has %u", what, who,
                   said, is ? is : 1);
}

static int shapes_are_as_said(const struct identity *p, const struct identity *c, struct err *e)
{
    const struct transfer_shape *ps = &c->producers, *cs = &p->consumers;
    int st;

    if ((st = expected(e, "consumer", "pipeline-parallel", ps->pp, p->shape.pp)) < 0 ||
        (st = expected(e, "consumer", "tensor-parallel", ps->tp, p->shape.tp)) < 0 ||
        (st = expected(e, "consumer", "data-parallel", ps->dp, p->shape.dp)) < 0 ||
        (st = expected(e, "producer", "pipeline-parallel", cs->pp, c->shape.pp)) < 0 ||
        (st = expected(e, "producer", "tensor-parallel", cs->tp, c->shape.tp)) < 0)
        return st;
    return expected(e, "producer", "data-parallel", cs->dp, c->shape.dp);
}

/* Whether the numbers can be a rank's at all. */
static int is_sound(const struct identity *id, struct err *e)
{
    const struct kv_layout *l = &id->layout;
    uint64_t pp = id->shape.pp ? id->shape.pp : 1, tp = id->shape.tp ? id->shape.tp : 1;

    if (!kv_layout_is_sound(l))
        return err_set(e, ERR_MISMATCH,
                       "'%s': %u layers from %u on, %u of them for drafts, and %u KV heads from %u "
                       "on are no part of a model of %u layers and %u KV heads",
                       id->engine_id, l->n_layers, l->first_layer, l->n_draft, l->kv_heads,
                       l->first_head, kv_layout_all_layers(l), kv_layout_all_heads(l));
    if (pp > TRANSFER_RANKS_MAX || tp > TRANSFER_RANKS_MAX || pp * tp > TRANSFER_RANKS_MAX ||
        id->rank >= pp * tp)
        return err_set(e, ERR_MISMATCH, "'%s': rank %u of %llu x %llu; at most %d ranks",
                       id->engine_id, id->rank, (unsigned long long)pp, (unsigned long long)tp,
                       TRANSFER_RANKS_MAX);
    return 0;
}

static int blocks_fit(uint32_t p, uint32_t c, struct err *e)
{
    if (p > 0 && c > 0 && p % KV_LAYOUT_GROUP == 0 && c % KV_LAYOUT_GROUP == 0 &&
        (p % c == 0 || c % p == 0))
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "block size: %u tokens at the producer, %u at the consumer; one must be a "
                   "multiple of the other",
                   p, c);
}

int handshake_compare(const struct identity *p, const struct identity *c, struct err *e)
{
    const struct kv_layout *pl = &p->layout, *cl = &c->layout;
    int st;

    if ((st = is_sound(p, e)) < 0 || (st = is_sound(c, e)) < 0 ||
        (st = differ_text(e, "model fingerprint", p->fingerprint, c->fingerprint)) < 0 ||
        (st = differ_text(e, "KV dtype", p->kv_dtype, c->kv_dtype)) < 0 ||
        (st = differ(e, "number of layers", kv_layout_all_layers(pl), kv_layout_all_layers(cl))) <
            0 ||
        (st = differ(e, "KV planes of a layer", pl->planes, cl->planes)) < 0 ||
        (st = differ(e, "number of KV heads", kv_layout_all_heads(pl), kv_layout_all_heads(cl))) <
            0 ||
        (st = differ(e, "head dimension", pl->head_dim, cl->head_dim)) < 0 ||
        (st = differ(e, "bytes of a KV element", pl->elem_bytes, cl->elem_bytes)) < 0 ||
        (st = blocks_fit(pl->block_tokens, cl->block_tokens, e)) < 0 ||
        (st = shapes_are_as_said(p, c, e)) < 0)
        return st;
    if (!p->produce)
        return err_set(e, ERR_MISMATCH, "'%s' is not a producer: it offers no KV", p->engine_id);
    return 0;
}
