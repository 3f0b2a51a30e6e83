/* Which of this host's addresses is used for everything that is not the API: what the environment
 * names, by address or by interface. */
#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "main/serve_flags.h"
#include "serve/config.h"
#include "sys/netif.h"

extern char **environ;

#define VALUE_MAX 256

/* Copies the i-th variable's name if it ends like that and has a value. */
static const char *value_of(char *name, size_t cap, const char *entry, const char *suffix)
{
    const char *eq = strchr(entry, '=');
    size_t n = eq ? (size_t)(eq - entry) : 0, len = strlen(suffix);

    if (n < len || n >= cap || !eq[1] || memcmp(eq - len, suffix, len) != 0)
        return NULL;
    memcpy(name, entry, n);
    name[n] = '\0';
    return eq + 1;
}

static bool is_numeric(const char *text)
{
    unsigned char raw[16];

    return inet_pton(AF_INET, text, raw) == 1 || inet_pton(AF_INET6, text, raw) == 1;
}

/* Names are left to the resolver: whether they are ours shows when they are bound. */
static int check_own(const char *name, const char *address, struct err *e)
{
    char own[NETIF_LIST_MAX];

    if (!is_numeric(address) || netif_has(NULL, address))
        return 0;
    netif_list(own);
    return err_set(e, ERR_INVAL, "%s: %s is not an address of this host; it has %s", name, address,
                   own);
}

/* One word of a list of interfaces: "eth0", "=eth0" (exactly), or the beginning of a name. */
static bool find_interface(char out[IFNAMSIZ], const char *word)
{
    bool exact = word[0] == '=', found = false;
    struct if_nameindex *list = if_nameindex();
    char address[NETIF_ADDRESS_MAX];

    word += exact;
    for (int pass = 0; list && !found && pass < (exact ? 1 : 2); pass++)
        for (struct if_nameindex *i = list; !found && i->if_index; i++) {
            bool fits = pass == 0 ? strcmp(i->if_name, word) == 0
                                  : strncmp(i->if_name, word, strlen(word)) == 0;

            if (fits && word[0] && netif_address(address, i->if_name) == 0) {
                snprintf(out, IFNAMSIZ, "%s", i->if_name);
                found = true;
            }
        }
    if (list)
        if_freenameindex(list);
    return found;
}

/* The first interface of a list that is there. ERR_NOTFOUND with a sentence. */
static int choose_interface(char out[IFNAMSIZ], const char *name, const char *list, struct err *e)
{
    char words[VALUE_MAX], own[NETIF_LIST_MAX], *save = NULL;

    if (list[0] == '^')
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: '%s' excludes interfaces; name the one that is to be used", name, list);
    snprintf(words, sizeof words, "%s", list);
    for (char *w = strtok_r(words, ", ", &save); w; w = strtok_r(NULL, ", ", &save))
        if (find_interface(out, w))
            return 0;
    netif_list(own);
    return err_set(e, ERR_NOTFOUND,
                   "%s: there is no interface '%s' with an address on this host; it has %s", name,
                   list, own);
}

static int take_addresses(struct serve_config *c, char *who, size_t cap, struct err *e)
{
    const char *first = getenv("VLLM_HOST_IP");
    char name[64];
    int st;

    if (first && first[0]) {
        if ((st = check_own("VLLM_HOST_IP", first, e)) < 0)
            return st;
        snprintf(c->address, sizeof c->address, "%s", first);
        snprintf(who, cap, "VLLM_HOST_IP");
    }
    for (char **v = environ; *v; v++) {
        const char *value = value_of(name, sizeof name, *v, "_IF_IP");

        if (!value)
            continue;
        if ((st = check_own(name, value, e)) < 0)
            return st;
        if (!c->address[0]) {
            snprintf(c->address, sizeof c->address, "%s", value);
            snprintf(who, cap, "%s", name);
        }
    }
    return 0;
}

static int take_interfaces(struct serve_config *c, char *who, size_t cap, struct err *e)
{
    char name[64], interface[IFNAMSIZ], address[NETIF_ADDRESS_MAX];
    int st;

    for (char **v = environ; *v; v++) {
        const char *value = value_of(name, sizeof name, *v, "_SOCKET_IFNAME");

        if (!value)
            continue;
        if ((st = choose_interface(interface, name, value, e)) < 0)
            return st;
        if (!c->address[0] && netif_address(address, interface) == 0) {
            snprintf(c->address, sizeof c->address, "%s", address);
            snprintf(who, cap, "%s", name);
        } else if (is_numeric(c->address) && !netif_has(interface, c->address)) {
            log_warning("%s names %s, but %s names %s, which another interface has: %s is used",
                        name, interface, who, c->address, c->address);
        }
    }
    return 0;
}

int serve_check_address(struct serve_config *c, struct err *e)
{
    char who[64] = "";
    int st;

    if ((st = take_addresses(c, who, sizeof who, e)) < 0 ||
        (st = take_interfaces(c, who, sizeof who, e)) < 0)
        return st;
    if (c->address[0])
        log_debug("%s: %s", who, c->address);
    return 0;
}

/* The first IPv4 address that a name stands for. */
static int resolve(char out[NETIF_ADDRESS_MAX], const char *name)
{
    struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_DGRAM }, *list;
    int st;

    if (is_numeric(name)) {
        snprintf(out, NETIF_ADDRESS_MAX, "%s", name);
        return 0;
    }
    if (getaddrinfo(name, NULL, &hints, &list) != 0)
        return ERR_NOTFOUND;
    st = getnameinfo(list->ai_addr, list->ai_addrlen, out, NETIF_ADDRESS_MAX, NULL, 0,
                     NI_NUMERICHOST) == 0
             ? 0
             : ERR_NOTFOUND;
    freeaddrinfo(list);
    return st;
}

/* Nothing is sent: the kernel only chooses the way, and with it our address. */
static int ask_kernel(char *out, size_t cap, const char *peer)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) }, own;
    socklen_t len = sizeof own;
    int fd, st = ERR_NOTFOUND;

    if (inet_pton(AF_INET, peer, &to.sin_addr) != 1)
        return ERR_NOTFOUND;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ERR_LIMIT;
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &len) == 0 &&
        inet_ntop(AF_INET, &own.sin_addr, out, (socklen_t)cap))
        st = 0;
    close(fd);
    return st;
}

int serve_route_address(char *out, size_t cap, const char *peer)
{
    char numeric[NETIF_ADDRESS_MAX];
    int st = resolve(numeric, peer);

    if (st < 0)
        return st;
    if (!netif_has(NULL, numeric))
        return ask_kernel(out, cap, numeric);
    snprintf(out, cap, "%s", numeric);
    return 0;
}
