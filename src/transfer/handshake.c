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

/* Layers that every token needs. A layout that says nonsense has none, and so fits nobody. */
static uint32_t main_layers(const struct kv_layout *l)
{
    return l->n_draft <= KV_LAYOUT_MAX_DRAFT && l->n_draft < l->n_layers ? l->n_layers - l->n_draft
                                                                         : 0;
}

int handshake_compare(const struct identity *p, const struct identity *c, struct err *e)
{
    const struct kv_layout *pl = &p->layout, *cl = &c->layout;
    int st;

    if ((st = differ_text(e, "model fingerprint", p->fingerprint, c->fingerprint)) < 0 ||
        (st = differ_text(e, "KV dtype", p->kv_dtype, c->kv_dtype)) < 0 ||
        (st = differ(e, "first layer", pl->first_layer, cl->first_layer)) < 0 ||
        (st = differ(e, "number of layers", main_layers(pl), main_layers(cl))) < 0 ||
        (st = differ(e, "KV planes of a layer", pl->planes, cl->planes)) < 0 ||
        (st = differ(e, "number of KV heads", pl->kv_heads, cl->kv_heads)) < 0 ||
        (st = differ(e, "head dimension", pl->head_dim, cl->head_dim)) < 0 ||
        (st = differ(e, "bytes of a KV element", pl->elem_bytes, cl->elem_bytes)) < 0 ||
        (st = blocks_fit(pl->block_tokens, cl->block_tokens, e)) < 0)
        return st;
    if (!p->produce)
        return err_set(e, ERR_MISMATCH, "'%s' is not a producer: it offers no KV", p->engine_id);
    return 0;
}

uint32_t handshake_layers(const struct identity *a, const struct identity *b)
{
    uint32_t n = a->layout.n_layers, m = b->layout.n_layers;

    return n < m ? n : m;
}
