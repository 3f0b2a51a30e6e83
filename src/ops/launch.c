/* Options to arguments; launch_run.c runs them. */
#include "ops/launch.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

#define MAX_PORT   65535
#define MAX_DEVICE 999999 /* seven bytes of launch_args.devices each, with the comma */

static int check_ranks(const struct launch_options *o, struct err *e)
{
    if (o->n_local < 1)
        return err_set(e, ERR_INVAL, "--dp-size-local 0: nothing to start");
    if (o->first_rank >= o->dp_size || o->n_local > o->dp_size - o->first_rank)
        return err_set(e, ERR_INVAL,
                       "--dp-rank-start %u and --dp-size-local %u make ranks %u to %u, but "
                       "--dp-size %u has ranks 0 to %u only",
                       o->first_rank, o->n_local, o->first_rank, o->first_rank + o->n_local - 1,
                       o->dp_size, o->dp_size - 1);
    if (o->n_local > LAUNCH_MAX_RANKS || o->tp_size > LAUNCH_MAX_TP)
        return err_set(e, ERR_INVAL,
                       "%u ranks of --tp-size %u: at most %d ranks of %d are started on a host",
                       o->n_local, o->tp_size, LAUNCH_MAX_RANKS, LAUNCH_MAX_TP);
    if ((uint64_t)o->first_device + (uint64_t)o->n_local * o->tp_size > MAX_DEVICE)
        return err_set(e, ERR_INVAL,
                       "--local-dp-start-rank %u with %u x %u devices goes beyond device %d",
                       o->first_device, o->n_local, o->tp_size, MAX_DEVICE);
    return 0;
}

/* A server that listens on every address leaves the port free on none, not even on one that nobody
 * uses. One that listens on another address only is no conflict: which address the rank will listen
 * on, its template knows. */
static bool taken_everywhere(uint32_t port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    bool taken;

    if (fd < 0)
        return false;
    inet_pton(AF_INET, "127.255.255.254", &a.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    taken = bind(fd, (struct sockaddr *)&a, sizeof a) < 0 && errno == EADDRINUSE;
    close(fd);
    return taken;
}

static int check_ports(const struct launch_options *o, struct err *e)
{
    uint32_t last = o->first_port + o->n_local - 1;

    if (last > MAX_PORT)
        return err_set(e, ERR_INVAL,
                       "--vllm-start-port %u with %u ranks makes ports up to %u; the last port is "
                       "%d",
                       o->first_port, o->n_local, last, MAX_PORT);
    if (o->first_rank == 0 && o->dp_size > 1 && o->rpc_port >= o->first_port && o->rpc_port <= last)
        return err_set(e, ERR_INVAL,
                       "--dp-rpc-port %u is also the port of rank %u's API (--vllm-start-port %u, "
                       "one port a rank up to %u)",
                       o->rpc_port, o->rpc_port - o->first_port, o->first_port, last);
    for (uint32_t i = 0; i < o->n_local; i++)
        if (taken_everywhere(o->first_port + i))
            return err_set(e, ERR_INVAL,
                           "port %u of rank %u is in use; end the server there, or choose other "
                           "ports with --vllm-start-port",
                           o->first_port + i, o->first_rank + i);
    return 0;
}

/* An address or a host name; what a lost blank or line continuation makes of them is neither. */
static bool is_host(const char *s)
{
    unsigned char to[sizeof(struct in6_addr)];

    if (inet_pton(AF_INET, s, to) == 1 || inet_pton(AF_INET6, s, to) == 1)
        return true;
    if (!*s || s[0] == '-' || strstr(s, "--") || strspn(s, "0123456789.") == strlen(s))
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("-._", *s))
            return false;
    return true;
}

static int check_template(const char *path, struct err *e)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return err_set(e, ERR_INVAL, "the template %s: %s; --template names another one", path,
                       strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_INVAL, "the template %s is not a file", path);
    if (access(path, R_OK) < 0)
        return err_set(e, ERR_INVAL, "the template %s cannot be read: %s", path, strerror(errno));
    return 0;
}

int launch_check(const struct launch_options *o, struct err *e)
{
    int st;

    if ((st = check_ranks(o, e)) < 0)
        return st;
    if (!is_host(o->address))
        return err_set(e, ERR_INVAL,
                       "--dp-address '%s' is not a host; is a blank missing behind it?",
                       o->address);
    if ((st = check_template(o->template_path, e)) < 0)
        return st;
    return check_ports(o, e);
}

void launch_args_make(struct launch_args *out, const struct launch_options *o, uint32_t i)
{
    const uint32_t number[LAUNCH_ARGS] = {
        [1] = o->first_port + i, [2] = o->dp_size, [3] = o->first_rank + i,
        [5] = o->rpc_port,       [6] = o->tp_size,
    };
    size_t len = 0;

    for (uint32_t d = 0; d < o->tp_size; d++)
        len += (size_t)snprintf(out->devices + len, sizeof out->devices - len, "%s%u", d ? "," : "",
                                o->first_device + i * o->tp_size + d);
    for (int k = 0; k < LAUNCH_ARGS; k++) {
        snprintf(out->number[k], sizeof out->number[k], "%u", number[k]);
        out->v[k] = out->number[k];
    }
    out->v[0] = out->devices;
    out->v[4] = o->address;
}
