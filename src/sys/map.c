#include "sys/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

int map_open(struct map *m, const char *path, struct err *e)
{
    struct stat sb;
    void *p = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "%s: cannot open: %s", path,
                       strerror(errno));
    if (fstat(fd, &sb) < 0 || !S_ISREG(sb.st_mode)) {
        close(fd);
        return err_set(e, ERR_IO, "%s: not a regular file", path);
    }
    if (sb.st_size > 0) {
        p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            int st = err_set(e, errno == ENOMEM ? ERR_NOMEM : ERR_IO,
                             "%s: cannot map %lld bytes: %s", path, (long long)sb.st_size,
                             strerror(errno));
            close(fd);
            return st;
        }
    }
    close(fd);
    *m = (struct map){ .data = p, .size = (size_t)sb.st_size };
    return 0;
}

void map_drop(const struct map *m, size_t offset, size_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t from = (offset + page - 1) / page * page;
    size_t to = (offset + len) / page * page;

    if (to > from && to <= m->size)
        madvise((void *)(uintptr_t)(m->data + from), to - from, MADV_DONTNEED);
}

void map_close(struct map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    *m = (struct map){ 0 };
}
