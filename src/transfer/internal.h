/* The inside of struct transfer, shared by the files of this folder.
 *
 * transfer.c   the object, its thread, mailbox, memory
 * conn.c       connections: handshake, dispatch of messages
 * serve.c      producer: reads in progress, one for each PULL granted
 * wait.c       producer: pulls by name whose lease is still to come
 * pull.c       consumer: jobs, one for each transfer_pull, _release_remote, _probe, and each part of a pull
 * parts.c      consumer: a pull as parts, one for each rank of the producer that has some of it
 * receive.c    consumer: what a producer grants and sends
 * notes.c      consumer: which producers match, and which do not
 * calls.c      the functions of transfer.h that other threads call, into the mailbox and the leases
 *
 * Everything here runs on the comm thread, except what says otherwise; what other threads reach
 * (inbox, leases, awaited names, stats, stop) is under `lock`, which is never held across a callback or a send. */
#ifndef SLUICE_TRANSFER_INTERNAL_H
#define SLUICE_TRANSFER_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/link.h"
#include "transfer/await.h"
#include "transfer/handshake.h"
#include "transfer/lease.h"
#include "transfer/message.h"
#include "transfer/plan.h"
#include "transfer/ranks.h"
#include "transfer/transfer.h"

#define TRANSFER_HOST_MAX   256
#define TRANSFER_JOBS_MAX   4096         /* pulls, releases and probes at a time */
#define TRANSFER_READS_MAX  4096         /* pulls served at a time, and pulls that wait */
#define TRANSFER_NOTES_MAX  64           /* producers whose match is remembered */
#define TRANSFER_TOUCH_MAX  (2ull << 30) /* bytes of a pool whose pages are all taken at the start */
#define TRANSFER_SENT_BYTES (512u << 10) /* of a DATA, unless one piece is larger */
#define TRANSFER_READ_BYTES (2u << 20)   /* that one DATA lets a consumer read in place */
#define TRANSFER_GROW_BYTES                                                                        \
    (128u << 10) /* that one DATA of a lease that grows has: a chunk need not wait for the next */
#define TRANSFER_CREDITS     4  /* DATA on their way for one pull */
#define TRANSFER_CREDITS_MAX 64 /* that a producer grants */
#define TRANSFER_SPARE_MAX   8  /* bulk buffers kept for reuse */
#define TRANSFER_ROUND       4  /* batches made between two looks at the link */

/* ---- conn.c ---- */

enum conn_state {
    CONN_GREETING, /* HELLO or WELCOME is due */
    CONN_PROVING,  /* PROVE or READY is due */
    CONN_MAPPING,  /* READY has come, a RANK is due */
    CONN_READY,
    CONN_REFUSED, /* the peer was told why; it may RELEASE leases if it is known, and should close */
};

struct conn {
    struct transfer *t;
    struct link_peer *link;
    struct conn *next;
    bool incoming; /* we are the producer on it, else the consumer */
    enum conn_state state;
    bool proved;  /* the peer knows the secret */
    bool parting; /* over but for what is still on its way out, until the deadline */
    struct handshake handshake;
    struct identity peer;
    char host[TRANSFER_HOST_MAX]; /* outgoing: whom it was made to */
    uint16_t port;
    double deadline;  /* of the handshake, or of the peer's leaving */
    double heard;     /* when the last message came */
    struct err why;   /* the sentence of the failure */
    bool noted;       /* that the producer does not match */
    const void *pool; /* the producer's, mapped; NULL: cannot be read in place */
    uint64_t pool_bytes;
    uint64_t bulk_expected; /* bytes that the jobs on it may receive at once */
    /* What the ranks of the producer hold, where this is its rank 0; owned. */
    struct transfer_rank *ranks;
    uint32_t n_ranks, n_known;
};

/* The connection to a producer: 1 if there was one, 0 if it was made now. */
int conn_get(struct conn **out, struct transfer *t, const char *host, uint16_t port, struct err *e);
int conn_send(struct conn *c, const struct message *m);
void conn_send_id(struct conn *c, enum message_kind kind, uint64_t id); /* CREDIT, STOP */
/* The peer broke the rules: logs, counts, closes. */
void conn_violation(struct conn *c, const char *what);
/* Closes; the jobs on it end with this status and sentence. */
void conn_fail(struct conn *c, int status, const char *text);
void conn_timers(struct transfer *t, double now);
double conn_next(const struct transfer *t);
extern const struct link_events conn_events; /* arg is the transfer */

/* ---- serve.c ---- */

/* A bulk part on its way out. */
struct buffer {
    struct transfer *t;
    struct buffer *next;
    uint64_t read; /* serial of the read it belongs to */
    size_t cap;
    unsigned char data[];
};

/* One PULL being served. */
struct reader {
    struct reader *next;
    struct conn *conn;
    struct lease *lease; /* counts as one of its readers */
    struct plan plan;
    uint64_t serial;     /* ours, unique */
    uint64_t pull;       /* the consumer's name for it */
    uint64_t next_piece; /* all before it are sent */
    uint64_t *sent; /* a bit for each batch, where the lease grows: they go as they are ready */
    double note_at; /* while it grows: when the consumer is to hear that it does */
    double note_seconds;
    uint32_t batch_pieces, credits;
    bool in_place, checksums;
    bool granted; /* GRANT has gone: DATA may not overtake it */
    bool told;    /* that it must stop; STOP is due */
    double progress;
};

void serve_message(struct conn *c, const struct message *m);
/* A PULL, also one that has waited. */
void serve_pull(struct conn *c, const struct message_pull *m);
void serve_result(struct conn *c, uint64_t id, int status, const char *text);
void serve_conn_lost(struct conn *c);
/* Makes a bounded number of batches; whether there was anything to do. */
bool serve_step(struct transfer *t, double now);
/* Reads of ending leases and idle ones are stopped; ended leases are reported. */
void serve_timers(struct transfer *t, double now);
double serve_next(struct transfer *t);
void serve_finish(struct transfer *t); /* all leases end: shutdown */

/* ---- wait.c ---- */

/* A PULL by name whose lease is still to come. */
struct waiter {
    struct waiter *next;
    struct conn *conn;
    struct message_pull pull;
    double note_at; /* when the consumer is to hear that it still waits */
};

/* Parks it, or answers at once why not. */
void wait_ask(struct conn *c, const struct message_pull *m);
/* Whether this pull waits; then it is let go. */
bool wait_stop(struct conn *c, uint64_t pull);
bool wait_has(const struct conn *c, uint64_t pull);
void wait_conn_lost(struct conn *c);
/* Serves those whose lease has begun, tells those whose lease will not come. */
void wait_timers(struct transfer *t, double now);
double wait_next(struct transfer *t);
void wait_finish(struct transfer *t);

/* ---- pull.c ---- */

enum job_kind { JOB_PULL, JOB_PART, JOB_CANCEL, JOB_RELEASE, JOB_PROBE };
enum job_state {
    JOB_NEW,        /* a part that was not started yet */
    JOB_CONNECTING, /* the handshake is not over */
    JOB_SPLIT,      /* a pull whose parts run */
    JOB_ASKED,      /* PULL sent, GRANT is due */
    JOB_MOVING,     /* DATA comes */
    JOB_FINISHING,  /* DONE sent, its RESULT is due */
};

/* A thread that waits for a probe. It owns the struct; the comm thread fills it under `lock`. */
struct probe {
    pthread_cond_t over;
    bool is_over;
    int status;
    struct err e;
};

struct job {
    struct job *next;
    enum job_kind kind;
    enum job_state state;
    uint64_t id; /* on the wire */
    uint64_t user;
    char host[TRANSFER_HOST_MAX];
    uint16_t port;
    char engine_id[TRANSFER_ID_MAX];
    char lease[TRANSFER_ID_MAX];
    bool by_name;
    unsigned char prompt[TRANSFER_PROMPT_BYTES]; /* by name */
    uint32_t *src,
        n_src; /* the producer's block ids; owned by a pull, and by its parts if by name */
    uint32_t *dst, n_dst; /* owned by a pull */
    uint32_t src_tokens;  /* in a block of the producer */
    uint32_t first, n_tokens;
    struct conn *conn;
    bool reused, retried; /* the connection was there before; the job was moved to a new one */

    /* of a pull */
    bool keep;          /* the lease stays */
    bool fetched;       /* only DONE is to be said */
    bool granted;       /* some part was */
    uint32_t n_left;    /* parts that run */
    uint32_t end_layer; /* its parts have the layers before this one; the rest is cleared */

    /* of a part */
    struct job *whole;
    struct rank_part part;
    bool is_only; /* its DONE ends the lease */
    bool waits;   /* the lease may be still to come */
    struct plan from, to;
    bool in_place, checksums;
    uint32_t batch_pieces;
    uint64_t *seen; /* a bit for each batch that has come */
    uint64_t pieces_left, batches_left;
    uint64_t bulk_expected;
    double started, progress;
    uint64_t bytes;
    struct probe *probe; /* NULL: nobody waits for it */
};

void job_free(struct job *j);
/* Connects a job that is in the list: it goes on as soon as the connection stands, or fails. */
void job_start(struct transfer *t, struct job *j);
/* Ends a job with an error; a producer that serves it hears that its blocks are read no more. With a part
 * its whole ends, and all other parts: the caller's pointers to jobs are no longer good. */
void job_fail(struct transfer *t, struct job *j, int status, const char *why);
/* The only way out of t->jobs. text: why, where status < 0. */
void job_finish(struct transfer *t, struct job *j, int status, const char *text);
/* Out of the list and freed, without a word to anybody but the producer that serves it. */
void job_drop(struct transfer *t, struct job *j);
/* A DONE or RELEASE of the job's lease. */
void job_send_lease(struct job *j, enum message_kind kind);
void pull_take(struct transfer *t, struct job *j, double now); /* from the mailbox; owns j */
void pull_message(struct conn *c, const struct message *m, const void *bulk, size_t bulk_len);
void pull_conn_ready(struct conn *c);
void pull_conn_refused(struct conn *c); /* c is parting if anything was sent */
void pull_conn_lost(struct conn *c, int status, const char *text);
void pull_timers(struct transfer *t, double now);
double pull_next(const struct transfer *t);
void pull_finish(struct transfer *t); /* all jobs end: ERR_CANCELED */

/* ---- parts.c ---- */

/* The connection to rank 0 of the producer stands: makes and starts the parts of a pull. */
void parts_begin(struct transfer *t, struct job *whole);
/* A part has ended, and is gone. was_done: the lease has ended with it. */
void parts_ended(struct transfer *t, struct job *whole, bool was_done);
/* Ends those that are left. */
void parts_drop(struct transfer *t, struct job *whole);

/* ---- receive.c ---- */

void receive_grant(struct transfer *t, struct job *j, const struct message_grant *g,
                   const unsigned char *ids, size_t len);
void receive_data(struct transfer *t, struct job *j, const struct message_data *d,
                  const unsigned char *bulk, size_t len);

/* ---- notes.c ---- */

/* What became of a handshake with a producer, where that went to its rank 0. */
struct note {
    char host[TRANSFER_HOST_MAX];
    uint16_t port;
    bool matches;
    double recheck_at, recheck_seconds; /* where it does not match */
    struct err why;
};

void note_match(struct conn *c);
void note_mismatch(struct conn *c, const char *why);
/* Nobody answers there any more: a mismatch of the past says nothing. */
void note_unreachable(struct transfer *t, const char *host, uint16_t port);
void note_timers(struct transfer *t, double now);
double note_next(const struct transfer *t);

/* ---- calls.c ---- */

/* A probe that nobody waits for. */
int calls_recheck(struct transfer *t, const char *host, uint16_t port);

/* ---- transfer.c ---- */

struct transfer {
    struct transfer_options opt; /* its strings are owned */
    struct transfer_rank *ranks; /* rank 0 of a producer: of all n_ranks; owned */
    uint32_t n_ranks;
    struct identity identity;
    struct region_key key;
    transfer_event_fn *fn;
    void *arg;
    struct link *link;
    pthread_t thread;
    bool running; /* the thread was started */

    pthread_mutex_t lock;
    bool stop;
    struct job *inbox, **inbox_end;
    uint32_t n_jobs; /* in the inbox or running */
    struct lease_table leases;
    struct await_table awaits;
    bool awaits_changed; /* since wait_timers looked last */
    struct transfer_stats stats;

    struct conn *conns;
    struct reader *readers;
    uint32_t n_readers;
    uint64_t next_serial;
    struct waiter *waiters;
    uint32_t n_waiters;
    struct note notes[TRANSFER_NOTES_MAX];
    uint32_t n_notes;
    struct job *jobs;
    uint64_t next_job; /* id of the next */
    struct buffer *spare;
    uint32_t n_spare;
};

/* Adds to a counter of t->stats. */
void transfer_count(struct transfer *t, uint64_t *counter, uint64_t n);
void transfer_emit(struct transfer *t, const struct transfer_event *ev);
/* A buffer of at least `bytes`, or NULL. */
struct buffer *transfer_buffer(struct transfer *t, size_t bytes);
void transfer_buffer_return(struct buffer *b);

#endif
