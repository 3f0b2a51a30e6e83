/* How UCX is set up: which interface, which transports, where its log goes. Internal to comm/. */
#ifndef SLUICE_COMM_LINK_CONFIG_H
#define SLUICE_COMM_LINK_CONFIG_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

struct err;

union link_address {
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_storage any;
};

#define LINK_NAME_MAX 80 /* "[address]:port" */

/* A numeric address, or also a name where `names` is true (which may block as long as the resolver
 * does); the first IPv4 answer, else the first. ERR_NOTFOUND with a sentence. */
int link_resolve(union link_address *out, const char *host, uint16_t port, bool names,
                 struct err *e);
/* UCX serves the loopback interface at 127.0.0.1 only: what stands for another address of
 * 127.0.0.0/8 there. Others stay as they are. */
void link_served_address(union link_address *a);
void link_address_host(char out[INET6_ADDRSTRLEN], const union link_address *a);
void link_address_name(char out[LINK_NAME_MAX], const union link_address *a);
uint16_t link_address_port(const union link_address *a);
socklen_t link_address_len(const union link_address *a);

/* A context with the UCP_FEATUREs, whose traffic uses the interface that owns addr. ERR_INVAL: it is no
 * address of this host. With `serve`, for contexts that listen at the address: ERR_UNSUPPORTED if it
 * is not one that UCX can serve; and UCX's own shared memory is left out. The sentence names the
 * address. */
int link_context_create(ucp_context_h *out, const union link_address *addr, uint64_t features,
                        bool serve, struct err *e);

/* The status that stands for a UCX one. */
int link_status(ucs_status_t st);

#endif
