/* Who listens on a TCP port, read from /proc: the socket's inode, then the process that has it open. */
#include "net/port_owner.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TCP_STATE_LISTEN 0x0a

/* The inode of the socket that listens on the port, by one table of /proc/net; 0: none. */
static unsigned long listening_inode(const char *table, uint16_t port)
{
    FILE *f = fopen(table, "re");
    char line[512];
    unsigned long found = 0;

    while (f && !found && fgets(line, sizeof line, f)) {
        unsigned local_port, state;
        unsigned long inode;

        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*s %*s %lu",
                   &local_port, &state, &inode) == 3 &&
            local_port == port && state == TCP_STATE_LISTEN)
            found = inode;
    }
    if (f)
        fclose(f);
    return found;
}

static bool has_socket(const char *pid, unsigned long inode)
{
    char path[300], want[64], link[64];
    struct dirent *de;
    bool found = false;
    DIR *d;

    snprintf(path, sizeof path, "/proc/%s/fd", pid);
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    d = opendir(path);
    while (d && !found && (de = readdir(d))) {
        char fd_path[600];
        ssize_t n;

        snprintf(fd_path, sizeof fd_path, "%s/%s", path, de->d_name);
        n = readlink(fd_path, link, sizeof link - 1);
        if (n > 0) {
            link[n] = '\0';
            found = strcmp(link, want) == 0;
        }
    }
    if (d)
        closedir(d);
    return found;
}

static void describe(char *out, size_t size, const char *pid)
{
    char path[300], name[64] = "?";
    FILE *f;

    snprintf(path, sizeof path, "/proc/%s/comm", pid);
    f = fopen(path, "re");
    if (f) {
        if (fgets(name, sizeof name, f))
            name[strcspn(name, "\n")] = '\0';
        fclose(f);
    }
    snprintf(out, size, "pid %.16s, %s", pid, name);
}

void http_port_owner(char *out, size_t size, uint16_t port)
{
    unsigned long inode = listening_inode("/proc/net/tcp", port);
    struct dirent *de;
    DIR *d;

    out[0] = '\0';
    if (!inode)
        inode = listening_inode("/proc/net/tcp6", port);
    if (!inode || !(d = opendir("/proc")))
        return;
    while (!out[0] && (de = readdir(d)))
        if (isdigit((unsigned char)de->d_name[0]) && has_socket(de->d_name, inode))
            describe(out, size, de->d_name);
    closedir(d);
}
