/* What the machine has: CPUs this process may use, and memory that is free for it. */
#ifndef SLUICE_SYS_TOPO_H
#define SLUICE_SYS_TOPO_H

#include <stdint.h>

uint32_t topo_cpus(void); /* CPUs in this process's affinity mask, at least 1 */

/* Bytes that can be allocated without swapping: MemAvailable, or what the cgroup's limit leaves if
 * that is less. 0 if neither can be read. */
uint64_t topo_memory_available(void);
uint64_t topo_memory_total(void);

#endif
