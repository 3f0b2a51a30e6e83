/* The other side of a connection for tests: a thread with a blocking socket, while the loop runs in
 * the test's thread. Every wait has a limit, so that a test fails instead of hanging. */
#ifndef SLUICE_TESTS_NET_PEER_H
#define SLUICE_TESTS_NET_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;

/* Runs fn(arg) in a thread and the loop here until fn has returned and loop_stop was called by that. */
void peer_run(struct loop *l, void (*fn)(void *arg), void *arg);

/* In the thread. -1: refused. */
int peer_connect(uint16_t port);
/* A listening socket on 127.0.0.1 and its port; accept with a limit. */
int peer_listen(uint16_t *port);
int peer_accept(int listener);
void peer_send(int fd, const char *text);
void peer_send_bytes(int fd, const char *text); /* one a write, without Nagle */
/* Reads until the bytes so far contain `until`, or to the end if NULL. The text is NUL-terminated and
 * stays until the next call in the thread. */
const char *peer_read(int fd, const char *until);
/* One recv. */
const char *peer_recv(int fd);
bool peer_at_end(int fd); /* the next read finds the end of the stream or a reset */

#endif
