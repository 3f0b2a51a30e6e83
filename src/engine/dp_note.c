#include "engine/dp_note.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/hash.h"
#include "base/status.h"

#define MAGIC 0x736c756964703031ull

/* A host without a sign of life for some 30 s is gone. */
#define ALIVE_IDLE_SECONDS 10
#define ALIVE_EACH_SECONDS 5
#define ALIVE_TRIES        4

int dp_note_take(struct dp_line *l, struct dp_note *out)
{
    char *at = (char *)&l->in + l->have;
    ssize_t n = recv(l->fd, at, sizeof l->in - l->have, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return ERR_CLOSED;
    l->have += (size_t)n;
    if (l->have < sizeof l->in)
        return 0;
    l->have = 0;
    if (l->in.magic != MAGIC)
        return ERR_BADMSG;
    *out = l->in;
    out->text[sizeof out->text - 1] = '\0';
    return 1;
}

int dp_note_give(int fd, const struct dp_note *n)
{
    struct dp_note whole = *n;

    whole.magic = MAGIC;
    return send(fd, &whole, sizeof whole, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof whole
               ? 0
               : ERR_CLOSED;
}

void dp_note_prove(struct hash256 *out, const char *secret, const unsigned char *nonce,
                   uint32_t rank)
{
    const struct hash_part parts[] = { { nonce, DP_NONCE_BYTES }, { &rank, sizeof rank } };

    hash_hmac_sha256(out, secret ? secret : "", secret ? strlen(secret) : 0, parts, 2);
}

void dp_socket_settle(int fd)
{
    const int one = 1, idle = ALIVE_IDLE_SECONDS, each = ALIVE_EACH_SECONDS, tries = ALIVE_TRIES;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &each, sizeof each);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}
