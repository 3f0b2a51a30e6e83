#include "comm/region.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

#define REGION_MAGIC  0x6e67526cu /* first bytes of a key */
#define BOOT_ID_BYTES 36

static struct region {
    void *p;
    size_t bytes;
    int fd;
} regions[REGION_MAX];
static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;

/* The inside of a key. It never leaves the host, so it is kept in the host's own byte order. */
struct key_body {
    uint32_t magic;
    int32_t pid;
    int32_t fd;
    uint32_t unused;
    uint64_t bytes, dev, ino;
    uint8_t host[16];
};
_Static_assert(sizeof(struct key_body) <= REGION_KEY_BYTES, "a key holds its body");

/* The running kernel's boot id, cut to 16 of its hex digits: equal in all containers of a host. */
static int host_id(uint8_t out[16])
{
    char text[BOOT_ID_BYTES];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return ERR_NOTFOUND;
    n = read(fd, text, sizeof text);
    close(fd);
    if (n != sizeof text)
        return ERR_NOTFOUND;
    memcpy(out, text, 8);
    memcpy(out + 8, text + BOOT_ID_BYTES - 8, 8);
    return 0;
}

static int remember(void *p, size_t bytes, int fd)
{
    int st = ERR_LIMIT;

    pthread_mutex_lock(&regions_lock);
    for (size_t i = 0; i < REGION_MAX && st < 0; i++)
        if (!regions[i].p) {
            regions[i] = (struct region){ .p = p, .bytes = bytes, .fd = fd };
            st = 0;
        }
    pthread_mutex_unlock(&regions_lock);
    return st;
}

/* The descriptor of the region at p, or -1; with forget it is no longer kept. */
static int find_region(const void *p, size_t *bytes, int forget)
{
    int fd = -1;

    pthread_mutex_lock(&regions_lock);
    for (size_t i = 0; i < REGION_MAX; i++)
        if (p && regions[i].p == p) {
            fd = regions[i].fd;
            *bytes = regions[i].bytes;
            if (forget)
                regions[i].p = NULL;
        }
    pthread_mutex_unlock(&regions_lock);
    return fd;
}

int region_alloc(void **out, size_t bytes, struct err *e)
{
    void *p = MAP_FAILED;
    int fd = memfd_create("sluice-kv", MFD_CLOEXEC);
    int st = ERR_NOMEM;

    if (bytes == 0 || fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
        (p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED ||
        (st = remember(p, bytes, fd)) < 0) {
        st = err_set(e, st, "cannot make %zu bytes of shared memory: %s", bytes,
                     p == MAP_FAILED ? strerror(errno) : "too many regions");
        if (p != MAP_FAILED)
            munmap(p, bytes);
        if (fd >= 0)
            close(fd);
        return st;
    }
    *out = p;
    return 0;
}

void region_free(void *p, size_t bytes)
{
    size_t have = bytes;
    int fd = find_region(p, &have, 1);

    if (!p)
        return;
    munmap(p, have);
    if (fd >= 0)
        close(fd);
}

int region_key(struct region_key *out, const void *p)
{
    struct key_body body = { .magic = REGION_MAGIC, .pid = (int32_t)getpid() };
    size_t bytes = 0;
    struct stat sb;

    body.fd = find_region(p, &bytes, 0);
    if (body.fd < 0 || fstat(body.fd, &sb) < 0 || host_id(body.host) < 0)
        return ERR_NOTFOUND;
    body.bytes = bytes;
    body.dev = sb.st_dev;
    body.ino = sb.st_ino;
    memset(out, 0, sizeof *out);
    memcpy(out->b, &body, sizeof body);
    return 0;
}

/* A user who has named UCX's transports, and no shared memory among them, means the pools as well. */
static int sharing_allowed(void)
{
    static const char *const names[] = { "all", "sm", "shm", "mm", "posix", "sysv", "cma" };
    const char *tls = getenv("UCX_TLS");

    if (!tls || tls[0] == '^')
        return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(tls, names[i]))
            return 1;
    return 0;
}

int region_open(const void **out, const struct region_key *key, size_t bytes)
{
    struct key_body body;
    uint8_t here[16];
    char path[64];
    struct stat sb;
    void *p;
    int fd;

    if (!sharing_allowed())
        return ERR_UNSUPPORTED;
    memcpy(&body, key->b, sizeof body);
    if (body.magic != REGION_MAGIC || host_id(here) < 0 || memcmp(here, body.host, 16) != 0)
        return ERR_NOTFOUND;
    if (body.bytes != bytes || bytes == 0)
        return ERR_MISMATCH;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", body.pid, body.fd);
    /* Of another container's key the same path may name anything, a pipe for one: do not wait on it. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == EACCES || errno == EPERM ? ERR_AUTH : ERR_NOTFOUND;
    if (fstat(fd, &sb) < 0 || sb.st_dev != body.dev || sb.st_ino != body.ino ||
        (uint64_t)sb.st_size != body.bytes) {
        close(fd);
        return ERR_MISMATCH;
    }
    p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return ERR_NOMEM;
    *out = p;
    return 0;
}

void region_close(const void *p, size_t bytes)
{
    if (p)
        munmap((void *)(uintptr_t)p, bytes);
}
