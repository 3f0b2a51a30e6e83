#include "sys/topo.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

uint32_t topo_cpus(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 1;
    return CPU_COUNT(&set) > 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

static uint64_t meminfo(const char *key)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[256];
    unsigned long long kib = 0;

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), ": %llu", &kib) == 1)
            break;
    fclose(f);
    return kib << 10;
}

/* A number from a one-line file; UINT64_MAX for "max" or a missing file. */
static uint64_t file_number(const char *path)
{
    FILE *f = fopen(path, "r");
    unsigned long long v;
    uint64_t out = UINT64_MAX;

    if (!f)
        return out;
    if (fscanf(f, "%llu", &v) == 1)
        out = v;
    fclose(f);
    return out;
}

static uint64_t cgroup_limit(void)
{
    uint64_t v2 = file_number("/sys/fs/cgroup/memory.max");

    return v2 != UINT64_MAX ? v2 : file_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

static uint64_t cgroup_used(void)
{
    uint64_t v2 = file_number("/sys/fs/cgroup/memory.current");

    return v2 != UINT64_MAX ? v2 : file_number("/sys/fs/cgroup/memory/memory.usage_in_bytes");
}

/* Pages of files count as used in a cgroup, but are given back when memory is wanted. */
static uint64_t cgroup_cache(void)
{
    FILE *f = fopen("/sys/fs/cgroup/memory.stat", "r");
    unsigned long long v, sum = 0;
    char key[64];

    if (!f)
        f = fopen("/sys/fs/cgroup/memory/memory.stat", "r");
    if (!f)
        return 0;
    while (fscanf(f, "%63s %llu", key, &v) == 2)
        if (strcmp(key, "active_file") == 0 || strcmp(key, "inactive_file") == 0)
            sum += v;
    fclose(f);
    return sum;
}

uint64_t topo_memory_available(void)
{
    uint64_t avail = meminfo("MemAvailable"), limit = cgroup_limit(), used = cgroup_used();

    if (limit != UINT64_MAX && used != UINT64_MAX) {
        uint64_t cache = cgroup_cache(), left;

        used = used > cache ? used - cache : 0;
        left = limit > used ? limit - used : 0;

        if (left < avail)
            avail = left;
    }
    return avail;
}

uint64_t topo_memory_total(void)
{
    uint64_t total = meminfo("MemTotal"), limit = cgroup_limit();

    return limit < total ? limit : total;
}
