/* The inside of struct group. group_meet.c: how ranks find each other. group.c: what they send each
 * other. collective.c: what they do together. Internal to comm/. */
#ifndef SLUICE_COMM_GROUP_INTERNAL_H
#define SLUICE_COMM_GROUP_INTERNAL_H

#include "comm/group.h"
#include "comm/link_config.h"

#define GROUP_ADDRESS_MAX 4096 /* bytes of a UCX worker's address */
#define GROUP_WHY_MAX     256

/* What all parts of a group share. */
struct group_base {
    struct group_options o;
    ucp_context_h context;
    ucp_worker_h worker;
    int efd;   /* UCX's; borrowed */
    int epoll; /* over efd and the meeting connections */
    int *fd;   /* [size] rank 0: to each other one; else fd[0] only. -1: none */
    struct group_peer {
        ucp_ep_h ep; /* made at first use */
        void *address;
        size_t address_len;
    } * peer; /* [size] */
    struct group *parts;
    char *scratch;
    uint32_t n_tests; /* calls of group_test */
    int broken;       /* status; 0: whole */
    int lost;         /* the rank whose end broke it; -1 */
    bool settled;     /* it is broken, and UCX has come to rest */
    char why[GROUP_WHY_MAX];
};

struct group {
    struct group_base *base;
    struct group *next; /* part */
    uint16_t id;        /* 0: all ranks */
    uint32_t rank, size;
    uint32_t *ranks;     /* [size]: ranks of the whole group */
    uint32_t turn;       /* counts collectives: their tag */
    struct group_op *op; /* [2 * size]: of the collective in progress */
    uint32_t n_ops;
};

/* Meets the other ranks and fills fd and peer addresses; own is this rank's. */
int group_meet(struct group_base *b, const void *own, size_t own_len, struct err *e);
/* Tells the others that this rank leaves on purpose. */
void group_say_bye(struct group_base *b);
/* A meeting connection has something to say: another rank has gone, or knows of one. */
void group_heard(struct group_base *b, uint32_t rank);
#define GROUP_NAME_MAX 64
/* What a sentence calls a rank of the whole group. */
const char *group_name(const struct group_base *b, uint32_t rank, char out[GROUP_NAME_MAX]);
/* Breaks the group, tells the others. Returns status. */
int group_break(struct group_base *b, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
