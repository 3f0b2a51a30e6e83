#include "sys/netif.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

static bool to_text(char out[NETIF_ADDRESS_MAX], const struct sockaddr *sa)
{
    struct sockaddr_in in;
    struct sockaddr_in6 in6;

    if (!sa)
        return false;
    if (sa->sa_family == AF_INET) {
        memcpy(&in, sa, sizeof in);
        return inet_ntop(AF_INET, &in.sin_addr, out, NETIF_ADDRESS_MAX) != NULL;
    }
    if (sa->sa_family != AF_INET6)
        return false;
    memcpy(&in6, sa, sizeof in6);
    return inet_ntop(AF_INET6, &in6.sin6_addr, out, NETIF_ADDRESS_MAX) != NULL;
}

int netif_address(char out[NETIF_ADDRESS_MAX], const char *interface)
{
    static const sa_family_t families[] = { AF_INET, AF_INET6 };
    struct ifaddrs *list = NULL;
    int st = ERR_NOTFOUND;

    if (getifaddrs(&list) < 0)
        return ERR_NOTFOUND;
    for (size_t f = 0; st < 0 && f < 2; f++)
        for (struct ifaddrs *i = list; st < 0 && i; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_addr->sa_family == families[f] &&
                strcmp(i->ifa_name, interface) == 0 && to_text(out, i->ifa_addr))
                st = 0;
    freeifaddrs(list);
    return st;
}

bool netif_has(const char *interface, const char *address)
{
    bool loopback = strncmp(address, "127.", 4) == 0, found = false;
    struct ifaddrs *list = NULL;
    char own[NETIF_ADDRESS_MAX];

    if (getifaddrs(&list) < 0)
        return false;
    for (struct ifaddrs *i = list; !found && i; i = i->ifa_next) {
        if ((interface && strcmp(i->ifa_name, interface) != 0) || !to_text(own, i->ifa_addr))
            continue;
        found = strcmp(own, address) == 0 || (loopback && strncmp(own, "127.", 4) == 0);
    }
    freeifaddrs(list);
    return found;
}

void netif_list(char out[NETIF_LIST_MAX])
{
    struct ifaddrs *list = NULL;
    char own[NETIF_ADDRESS_MAX];
    size_t n = 0;

    out[0] = '\0';
    if (getifaddrs(&list) < 0)
        return;
    for (struct ifaddrs *i = list; i && n + 72 < NETIF_LIST_MAX; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && to_text(own, i->ifa_addr))
            n += (size_t)snprintf(out + n, NETIF_LIST_MAX - n, "%s%s (%s)", n ? ", " : "", own,
                                  i->ifa_name);
    freeifaddrs(list);
}
