/* The ranks of one instance: processes that were started to work together, on one host or several.
 * They meet at one address, exchange where UCX finds them, and from then on send each other tensors
 * and join in collective operations. Inside a host UCX goes through shared memory, between hosts
 * over TCP or RDMA.
 *
 * A group is used by one thread. Every wait has a timeout, and ends at once when a rank has died:
 * the connections over which the ranks met stay open to tell. After any failure a group is broken;
 * what is left to do is group_leave. Waiting threads sleep.
 *
 * When group_join returns, each two ranks have exchanged a message, so that UCX opens no descriptor
 * later: version 1.13 ends the process if one worker has closed a descriptor whose number another one
 * then gets.
 *
 * Sums are taken in order of ranks, so every rank gets the same bits, whatever the size. */
#ifndef SLUICE_COMM_GROUP_H
#define SLUICE_COMM_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct group;

#define GROUP_MAX_RANKS 1024

struct group_options {
    uint32_t rank, size;
    const char *host;        /* this rank's address: the interface that it uses */
    const char *master_host; /* where rank 0 waits for the others */
    uint16_t master_port;
    int listen_fd;       /* rank 0: of group_listen; it is the group's from then on. Others: -1 */
    const char *secret;  /* NULL: none. All ranks have the same one */
    uint64_t about;      /* hash of what all ranks must agree on (model, layout, version) */
    double meet_seconds; /* to meet; the others may come in any order */
    double op_seconds;   /* for each operation */
    size_t scratch;      /* bytes: the largest tensor of a collective sum */
    /* Not 0: the ranks are those of data-parallel instances, so many each, and sentences call them
     * "data-parallel rank 2", or "rank 1 of data-parallel rank 2" where there is more than one. */
    uint32_t instance_ranks;
};

/* A socket at which rank 0 will wait. port 0: any; *port_out says which. ERR_INVAL with the addresses of
 * this host if host is none of them; ERR_BUSY if the port is in use. */
int group_listen(int *fd, uint16_t *port_out, const char *host, uint16_t port, struct err *e);

/* Returns when all ranks are there. ERR_TIMEOUT names those that did not come; ERR_AUTH, ERR_MISMATCH. */
int group_join(struct group **out, const struct group_options *o, struct err *e);
/* Without waiting for the others. What they still wait for from this rank must have been sent. Where the
 * group is broken the others hear that this rank has ended. NULL is fine. Frees sub-groups too. */
void group_leave(struct group *g);

/* Some of the ranks, in this order, as a group of their own over the same connections. All its members
 * make it, with the same id (1 to 65535, one a sub-group). Freed with the whole group. ERR_INVAL if
 * this rank is not among them. */
int group_part(struct group **out, struct group *whole, uint16_t id, const uint32_t *ranks,
               uint32_t n, struct err *e);

uint32_t group_rank(const struct group *g);
uint32_t group_size(const struct group *g);
/* Why the group is broken; "" while it is not. */
const char *group_why(const struct group *g);
/* The rank whose end broke the group, -1 if none did. */
int group_lost(const struct group *g);
/* Whether a rank has left as it should. Known to rank 0 of all, to the others of rank 0. */
bool group_has_left(const struct group *g, uint32_t rank);
/* Breaks the group for all its ranks: their waits end with this sentence. */
void group_abandon(struct group *g, const char *why);

/* Sends and receives between two ranks, matched by tag in the order in which they were started. Buffers
 * stay untouched until the operation has ended. */
struct group_op {
    void *request; /* private */
    int status;
    uint32_t peer; /* rank of the whole group */
    bool started;
};
int group_start_send(struct group *g, struct group_op *op, uint32_t to, uint32_t tag,
                     const void *data, size_t bytes);
int group_start_recv(struct group *g, struct group_op *op, uint32_t from, uint32_t tag, void *data,
                     size_t bytes);
/* Has it ended? Moves things on. 1, 0, or why it failed. */
int group_test(struct group *g, struct group_op *op);
/* The same, but moves nothing on. */
int group_ended(struct group *g, struct group_op *op);
int group_wait(struct group *g, struct group_op *op);
int group_send(struct group *g, uint32_t to, uint32_t tag, const void *data, size_t bytes);
int group_recv(struct group *g, uint32_t from, uint32_t tag, void *data, size_t bytes);

/* For a thread that waits for several things: moves operations on, else sleeps until one may have ended,
 * the watched descriptor can be read, or the seconds are over. 0, or why the group is broken. */
int group_watch(struct group *g, int fd);
int group_sleep(struct group *g, double seconds);

/* Collectives: all ranks call the same one with fitting arguments. n counts floats, bytes bytes. */
int group_barrier(struct group *g);
int group_broadcast(struct group *g, uint32_t root, void *data, size_t bytes);
/* x[i] = sum over ranks of x[i] */
int group_all_reduce(struct group *g, float *x, size_t n);
/* out[i] = sum over ranks of x[rank * n + i], for i < n; x has size * n. out may be x + rank * n. */
int group_reduce_scatter(struct group *g, float *out, const float *x, size_t n);
/* all[r * bytes ...] = part of rank r; part may stand in its place in all. */
int group_all_gather(struct group *g, void *all, const void *part, size_t bytes);
/* Rank r gets send_bytes[r] bytes from send + send_at[r], and sends us recv_bytes[r]. */
int group_all_to_all(struct group *g, const void *send, const size_t *send_at,
                     const size_t *send_bytes, void *recv, const size_t *recv_at,
                     const size_t *recv_bytes);

#endif
