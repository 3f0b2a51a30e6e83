/* Opens the CPU backend: memory, the team, and the table of the ISA that was asked for. */
#include "kernel/kernel.h"

#include "base/status.h"
#include "kernel/latent.h"
#include "sys/topo.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_THREADS       1024
#define DEFAULT_MAX_VOCAB 262144
/* From here on memory comes from the kernel directly, in huge pages where it has them: zeroed
 * lazily, and given back at once. */
#define MAP_BYTES (1u << 20)

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static void *mem_alloc(const struct kernels *k, size_t bytes)
{
    void *p;

    (void)k;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    if (bytes < MAP_BYTES) {
        bytes = round_up(bytes ? bytes : 1, 64);
        p = aligned_alloc(64, bytes);
        return p ? memset(p, 0, bytes) : NULL;
    }
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE); /* a wish: without it everything works, a little slower */
    return p;
}

static void mem_free(const struct kernels *k, void *p, size_t bytes)
{
    (void)k;
    if (!p)
        return;
    if (bytes < MAP_BYTES)
        free(p);
    else
        munmap(p, bytes);
}

static void mem_copy(const struct kernels *k, void *dst, const void *src, size_t bytes)
{
    (void)k;
    memcpy(dst, src, bytes);
}

static void mem_sync(const struct kernels *k)
{
    (void)k;
}

static void run(const struct kernels *k, void (*fn)(void *arg), void *arg)
{
    team_run(&cpu_of(k)->team, fn, arg);
}

/* What host() hands from the caller to the thread that comes to it. */
struct host_job {
    void (*fn)(void *job);
    _Alignas(8) unsigned char job[K_HOST_JOB];
};

static void host_item(void *job, uint32_t item, uint32_t thread)
{
    struct host_job *h = job;

    (void)item;
    (void)thread;
    h->fn(h->job);
}

static void host(const struct kernels *k, void (*fn)(void *job), const void *job, size_t bytes)
{
    struct host_job h = { .fn = fn };

    assert(bytes <= sizeof h.job);
    memcpy(h.job, job, bytes);
    team_items(&cpu_of(k)->team, 1, host_item, &h, sizeof h);
}

/* The instruction sets, the best first. Those that end in -base leave out what only newer CPUs
 * have, so that a machine can test what runs on older ones. */
struct isa {
    const char *name;
    const char *family; /* the table's name */
    uint32_t needs;     /* CPU flags */
    uint32_t likes;     /* flags that it makes use of where the CPU has them */
    void (*fill)(struct cpu_impl *f, uint32_t flags);
};

static void fill_portable(struct cpu_impl *f, uint32_t flags)
{
    (void)f;
    (void)flags;
}

static const struct isa isas[] = {
#if defined(__x86_64__)
    { "avx512", "avx512", CPU_AVX2 | CPU_AVX512, CPU_AVX512_VNNI | CPU_AVX512_BF16 | CPU_BF16_HALF,
      cpu_fill_avx512 },
    { "avx512-bf16", "avx512", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16,
      CPU_AVX512_VNNI | CPU_AVX512_BF16, cpu_fill_avx512 },
    { "avx512-base", "avx512", CPU_AVX2 | CPU_AVX512, 0, cpu_fill_avx512 },
    { "avx2", "avx2", CPU_AVX2, CPU_AVX_VNNI, cpu_fill_avx2 },
    { "avx2-base", "avx2", CPU_AVX2, 0, cpu_fill_avx2 },
#endif
    { "portable", "portable", 0, 0, fill_portable },
};
#define N_ISAS (sizeof isas / sizeof isas[0])

static const struct isa *isa_best(uint32_t flags)
{
    const struct isa *i = isas;

    while ((i->needs & flags) != i->needs)
        i++;
    return i;
}

static int isa_choose(const struct isa **out, const char *name, uint32_t flags, struct err *e)
{
    if (!name || !*name || strcmp(name, "auto") == 0) {
        *out = isa_best(flags);
        return 0;
    }
    for (const struct isa *i = isas; i < isas + N_ISAS; i++) {
        if (strcmp(i->name, name) != 0)
            continue;
        if ((i->needs & flags) != i->needs)
            return err_set(e, ERR_UNSUPPORTED,
                           "this CPU has no %s; the best that it has is %s (SLUICE_ISA)", name,
                           isa_best(flags)->name);
        *out = i;
        return 0;
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "unknown instruction set \"%s\" (SLUICE_ISA): use portable, avx2 or avx512",
                   name);
}

static uint32_t thread_count(uint32_t wanted)
{
    const char *env = getenv("OMP_NUM_THREADS");
    long n = wanted;

    if (n == 0 && env)
        n = strtol(env, NULL, 10);
    if (n <= 0)
        n = (long)topo_cpus();
    return n > MAX_THREADS ? MAX_THREADS : (uint32_t)n;
}

static void describe(struct cpu *c, const struct isa *isa, uint32_t flags)
{
    uint32_t used = flags & isa->likes;

    snprintf(c->detail, sizeof c->detail, "%s%s%s", isa->family,
             used & (CPU_AVX512_VNNI | CPU_AVX_VNNI) ? "+vnni" : "",
             used & CPU_AVX512_BF16 ? "+bf16" : "");
    c->table.isa = isa->family;
    c->table.detail = c->detail;
}

static void table_fill(struct cpu *c)
{
    struct kernels *k = &c->table;

    k->threads = c->team.threads;
    k->host_memory = true;
    k->self = c;
    k->alloc = mem_alloc;
    k->free = mem_free;
    k->copy = mem_copy;
    k->sync = mem_sync;
    k->run = run;
    k->host = host;
    k->pack = matrix_pack;
    k->pack_bytes = matrix_pack_bytes;
    k->unpack_free = matrix_free;
    k->matrix_form = matrix_form;
    k->matrix_bytes = matrix_bytes;
    k->matrix_static = matrix_static;
    k->act_create = act_create;
    k->act_destroy = act_destroy;
    ops_fill(k);
}

int kernels_open(struct kernels **out, const struct k_options *opt, struct err *e)
{
    static const struct k_options none;
    uint32_t flags = cpu_flags();
    const struct isa *isa = NULL;
    struct cpu *c;
    int st;

    opt = opt ? opt : &none;
    st = isa_choose(&isa, opt->isa ? opt->isa : getenv("SLUICE_ISA"), flags, e);
    if (st < 0)
        return st;
    c = mem_alloc(NULL, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "out of memory for the kernel table");
    st = team_create(&c->team, thread_count(opt->threads));
    if (st < 0) {
        mem_free(NULL, c, sizeof *c);
        return err_set(e, st, "cannot start %u threads (OMP_NUM_THREADS)",
                       thread_count(opt->threads));
    }
    c->max_vocab = opt->max_vocab ? opt->max_vocab : DEFAULT_MAX_VOCAB;
    cpu_fill_ref(&c->impl);
    isa->fill(&c->impl, flags & isa->likes);
    describe(c, isa, flags);
    table_fill(c);
    c->attend = mem_alloc(NULL, c->team.threads * sizeof *c->attend);
    c->parts = mem_alloc(NULL, ATTEND_PARTS * sizeof *c->parts);
    c->latent = mem_alloc(NULL, c->team.threads * sizeof *c->latent);
    if (!c->attend || !c->latent || !c->parts || sample_scratch_create(c) < 0) {
        kernels_close(&c->table);
        return err_set(e, ERR_NOMEM, "out of memory for the scratch of %u threads",
                       thread_count(opt->threads));
    }
    *out = &c->table;
    return 0;
}

void kernels_close(struct kernels *k)
{
    struct cpu *c;

    if (!k)
        return;
    c = cpu_of(k);
    mem_free(NULL, c->parts, ATTEND_PARTS * sizeof *c->parts);
    mem_free(NULL, c->latent, c->team.threads * sizeof *c->latent);
    mem_free(NULL, c->attend, c->team.threads * sizeof *c->attend);
    sample_scratch_destroy(c);
    team_destroy(&c->team);
    k_arena_finish(&c->arena);
    mem_free(NULL, c, sizeof *c);
}
