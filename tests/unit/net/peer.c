#include "peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/loop.h"

static _Thread_local char text[1 << 20];
static _Thread_local size_t text_len;

struct run {
    struct loop *loop;
    void (*fn)(void *arg);
    void *arg;
};

static void stop(void *arg)
{
    loop_stop(arg);
}

static void *body(void *arg)
{
    struct run *r = arg;

    r->fn(r->arg);
    loop_post(r->loop, stop, r->loop);
    return NULL;
}

void peer_run(struct loop *l, void (*fn)(void *arg), void *arg)
{
    struct run r = { l, fn, arg };
    pthread_t t;

    if (pthread_create(&t, NULL, body, &r) != 0)
        abort();
    loop_run(l);
    pthread_join(t, NULL);
}

static void set_limits(int fd)
{
    struct timeval limit = { 10, 0 };
    int one = 1;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static struct sockaddr_in local(uint16_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET,
                                 .sin_port = htons(port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

int peer_connect(uint16_t port)
{
    struct sockaddr_in sa = local(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    set_limits(fd);
    if (connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int peer_listen(uint16_t *port)
{
    struct sockaddr_in sa = local(0);
    socklen_t len = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    set_limits(fd);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) < 0 || listen(fd, 16) < 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) < 0)
        abort();
    *port = ntohs(sa.sin_port);
    return fd;
}

int peer_accept(int listener)
{
    int fd = accept(listener, NULL, NULL);

    if (fd >= 0)
        set_limits(fd);
    return fd;
}

void peer_send(int fd, const char *bytes)
{
    size_t left = strlen(bytes);

    while (left) {
        ssize_t n = send(fd, bytes, left, MSG_NOSIGNAL);

        if (n < 0)
            return;
        bytes += n;
        left -= (size_t)n;
    }
}

void peer_send_bytes(int fd, const char *bytes)
{
    for (; *bytes; bytes++)
        if (send(fd, bytes, 1, MSG_NOSIGNAL) < 0)
            return;
}

static ssize_t read_more(int fd)
{
    ssize_t n = recv(fd, text + text_len, sizeof text - 1 - text_len, 0);

    if (n > 0)
        text_len += (size_t)n;
    text[text_len] = '\0';
    return n;
}

const char *peer_read(int fd, const char *until)
{
    text_len = 0;
    text[0] = '\0';
    while (!(until && strstr(text, until)) && read_more(fd) > 0)
        ;
    return text;
}

const char *peer_recv(int fd)
{
    text_len = 0;
    read_more(fd);
    return text;
}

bool peer_at_end(int fd)
{
    struct timeval limit = { 10, 0 };
    char c;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return recv(fd, &c, 1, 0) <= 0;
}
