/* sluice launch: the ranks of a data-parallel group that run on this host, each started by a template
 * script, watched and ended together. */
#ifndef SLUICE_OPS_LAUNCH_H
#define SLUICE_OPS_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

struct err;

#define LAUNCH_MAX_RANKS 1024
#define LAUNCH_MAX_TP    1024
#define LAUNCH_ARGS      7

struct launch_options {
    uint32_t dp_size, tp_size;
    uint32_t n_local;      /* ranks to start here */
    uint32_t first_rank;   /* the first of them */
    uint32_t first_device; /* that the first of them sees */
    const char *address;   /* of rank 0: where the ranks meet */
    uint32_t rpc_port;     /* there */
    uint32_t first_port;   /* of the first local rank's API; the next one's is one higher */
    const char *template_path;
    const char *log_dir;     /* a file a rank there, beside the output; NULL: none */
    bool keep_going;         /* the death of one rank does not end the others */
    double shutdown_timeout; /* seconds from SIGTERM to SIGKILL */
};

/* What the template of one rank gets, in this order: devices, port, dp size, dp rank, dp address, dp rpc
 * port, tp size. */
struct launch_args {
    char devices[LAUNCH_MAX_TP * 8]; /* "4,5,6,7" */
    char number[LAUNCH_ARGS][12];
    const char *v[LAUNCH_ARGS]; /* into the two above, and the options */
};

/* Whether the values fit each other, the template can be read and the ports are free. ERR_INVAL with a
 * sentence that names the flag. */
int launch_check(const struct launch_options *o, struct err *e);

/* Of the i-th local rank. */
void launch_args_make(struct launch_args *out, const struct launch_options *o, uint32_t i);

/* Starts the ranks and returns when nothing of them is left: SIGINT, SIGTERM or SIGHUP ends them, a
 * second one kills them, and so does the death of one rank unless keep_going. Lines that they write
 * go to standard output and standard error with the rank before them. *exit_status is 0 if
 * they ended well after a signal, else the status of the first that did not (128 + signal). The
 * process must be single-threaded; the signal mask is changed. */
int launch_run(const struct launch_options *o, int *exit_status, struct err *e);

#endif
