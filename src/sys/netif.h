/* The network interfaces of this host and their addresses. */
#ifndef SLUICE_SYS_NETIF_H
#define SLUICE_SYS_NETIF_H

#include <stdbool.h>
#include <stddef.h>

#define NETIF_ADDRESS_MAX 46 /* bytes of a numeric address, with the NUL */
#define NETIF_LIST_MAX    512

/* The first IPv4 address of an interface, else its first IPv6 one. ERR_NOTFOUND: there is no such
 * interface, or it has no address. */
int netif_address(char out[NETIF_ADDRESS_MAX], const char *interface);

/* Whether a numeric address is one of this host: assigned to the interface (NULL: to any), or within
 * the loopback network 127.0.0.0/8 of one that has an address there. */
bool netif_has(const char *interface, const char *address);

/* "127.0.0.1 (lo), 10.0.0.3 (eth0)": what there is, for a message; cut at the end of out. */
void netif_list(char out[NETIF_LIST_MAX]);

#endif
