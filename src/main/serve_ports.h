/* The ports of an instance: what its options come to, said before anything listens. */
#ifndef SLUICE_MAIN_SERVE_PORTS_H
#define SLUICE_MAIN_SERVE_PORTS_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct serve_config;

#define PORT_USES_MAX 5

/* So many ports from the first on, at one address. */
struct port_use {
    const char *what;
    const char *host; /* NULL: all addresses */
    uint16_t first;   /* 0: any free one */
    uint32_t n;
};

/* The ports at which the processes of this host will listen, in use[0 .. returned). */
uint32_t serve_ports_plan(struct port_use use[PORT_USES_MAX], const struct serve_config *cfg);

/* Logs the plan (or prints it, where `print`), and looks whether two uses share a port and whether every
 * port is free: ERR_INVAL, ERR_BUSY; the sentence names use, port and, where it can be found out, the
 * process that has it. */
int serve_ports_check(const struct serve_config *cfg, bool print, struct err *e);

#endif
