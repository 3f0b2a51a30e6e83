/* Who has a port, for the message that says it is taken. */
#ifndef SLUICE_NET_PORT_OWNER_H
#define SLUICE_NET_PORT_OWNER_H

#include <stddef.h>
#include <stdint.h>

/* "pid 12, name" of who listens on the TCP port; "" if that cannot be found out. */
void http_port_owner(char *out, size_t size, uint16_t port);

#endif
