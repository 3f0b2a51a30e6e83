/* bench/load: how fast a checkpoint is loaded, and how much memory that takes at most, beside the rate
 * at which this machine reads the same files from the page cache in the same run. Called by the
 * script of the same name.
 *
 *     load MODEL... [--json FILE] [--threads N] [--runs N]
 *
 * Every measurement has a process of its own, so that peak memory is that of one load. Two rates are
 * measured: read(2) into one small buffer, which is what the page cache gives and no more than half
 * of what a loader does; and read(2) into new memory by all threads, which every loader has to do at
 * least. A figure is marked as noisy if its process waited for the CPU; then the rate by the CPU time
 * of its threads says more. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "figures.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "sys/clock.h"

#define MAX_RUNS    16
#define MAX_THREADS 64
#define MAX_FILES   4096
#define MAX_MODELS  8
#define EACH        6 /* figures of a model */
#define CHUNK       (1u << 20)
#define NOISE       0.15 /* share of the time that a process may wait on a quiet machine */

struct options {
    const char *models[MAX_MODELS], *model, *json;
    int n_models;
    uint32_t threads;
    int runs;
};

struct files {
    char path[MAX_FILES][512];
    uint64_t size[MAX_FILES], bytes;
    size_t n;
};

/* What one process found; sent through a pipe. */
struct result {
    double seconds, cpu;
    uint64_t bytes, peak, weights;
    int status;
};

/* ---- the files ---- */

static void add_file(struct files *f, const char *path)
{
    struct stat sb;

    if (f->n == MAX_FILES || stat(path, &sb) < 0 || !S_ISREG(sb.st_mode))
        return;
    snprintf(f->path[f->n], sizeof f->path[0], "%s", path);
    f->size[f->n++] = (uint64_t)sb.st_size;
    f->bytes += (uint64_t)sb.st_size;
}

static void find_files(struct files *f, const char *model)
{
    static const char tail[] = ".safetensors";
    DIR *d = opendir(model);
    struct dirent *de;
    char path[512];

    if (!d)
        add_file(f, model);
    while (d && (de = readdir(d))) {
        size_t n = strlen(de->d_name);

        if (n < sizeof tail || strcmp(de->d_name + n - (sizeof tail - 1), tail) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", model, de->d_name);
        add_file(f, path);
    }
    if (d)
        closedir(d);
}

/* ---- the three measurements ---- */

static double cpu_seconds(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static uint64_t peak_bytes(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (uint64_t)r.ru_maxrss << 10;
}

static uint64_t read_range(const char *path, uint64_t from, uint64_t to, char *out, bool advance)
{
    int fd = open(path, O_RDONLY);
    uint64_t at = from;

    while (fd >= 0 && at < to) {
        ssize_t n = pread(fd, out, to - at < CHUNK ? (size_t)(to - at) : CHUNK, (off_t)at);

        if (n <= 0)
            break;
        at += (uint64_t)n;
        out += advance ? n : 0;
    }
    if (fd >= 0)
        close(fd);
    return at - from;
}

static void measure_read(struct result *r, const struct files *f, const struct options *o)
{
    char *buffer = malloc(CHUNK);

    (void)o;
    for (size_t i = 0; buffer && i < f->n; i++)
        r->bytes += read_range(f->path[i], 0, f->size[i], buffer, false);
    free(buffer);
}

/* One thread's share of a file, into new memory. */
struct share {
    const char *path;
    uint64_t from, to, bytes;
    char *out;
};

static void *read_share(void *arg)
{
    struct share *s = arg;

    s->bytes = read_range(s->path, s->from, s->to, s->out, true);
    return NULL;
}

static void measure_copy(struct result *r, const struct files *f, const struct options *o)
{
    pthread_t thread[MAX_THREADS];
    struct share share[MAX_THREADS];

    for (size_t i = 0; i < f->n; i++) {
        char *out = mmap(NULL, f->size[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                         0);
        uint32_t n = 0;

        if (out == MAP_FAILED)
            return;
        madvise(out, f->size[i], MADV_HUGEPAGE);
        for (; n < o->threads; n++) {
            uint64_t from = f->size[i] * n / o->threads, to = f->size[i] * (n + 1) / o->threads;

            share[n] = (struct share){ f->path[i], from, to, 0, out + from };
            if (pthread_create(&thread[n], NULL, read_share, &share[n]) != 0)
                break;
        }
        while (n-- > 0) {
            pthread_join(thread[n], NULL);
            r->bytes += share[n].bytes;
        }
    }
}

static void measure_load(struct result *r, const struct files *f, const struct options *o)
{
    struct model_options mo = { .path = o->model };
    struct k_options ko = { .threads = o->threads };
    struct kernels *k;
    struct model *m;
    struct err e = { 0 };

    if ((r->status = kernels_open(&k, &ko, &e)) < 0 ||
        (r->status = model_open(&m, k, &mo, &e)) < 0) {
        fprintf(stderr, "load: %s\n", e.text);
        return;
    }
    r->bytes = f->bytes;
    r->weights = model_weight_bytes(m);
    r->peak = peak_bytes();
}

typedef void measure_fn(struct result *r, const struct files *f, const struct options *o);

/* In a process of its own. */
static struct result measure(measure_fn *fn, const struct files *f, const struct options *o)
{
    struct result r = { 0 };
    double t0, cpu0;
    int p[2];
    pid_t child;

    fflush(NULL);
    if (pipe(p) < 0 || (child = fork()) < 0)
        return (struct result){ .status = ERR_IO };
    if (child == 0) {
        t0 = clock_now();
        cpu0 = cpu_seconds();
        fn(&r, f, o);
        r.seconds = clock_now() - t0;
        r.cpu = cpu_seconds() - cpu0;
        _exit(write(p[1], &r, sizeof r) == sizeof r ? 0 : 1);
    }
    close(p[1]);
    if (read(p[0], &r, sizeof r) != sizeof r)
        r = (struct result){ .status = ERR_IO };
    close(p[0]);
    waitpid(child, NULL, 0);
    return r;
}

/* The best of the runs: what is in the way is other processes. */
static struct result best(measure_fn *fn, const struct files *f, const struct options *o)
{
    struct result all = { .seconds = -1 };

    for (int i = 0; i < o->runs; i++) {
        struct result r = measure(fn, f, o);
        uint64_t peak = r.peak > all.peak ? r.peak : all.peak;

        if (r.status < 0)
            return r;
        if (all.seconds < 0 || r.seconds < all.seconds)
            all = r;
        all.peak = peak;
    }
    return all;
}

/* ---- figures ---- */

static double rate(struct result r)
{
    return (double)r.bytes / r.seconds / 1e9;
}

/* The rate if its threads had had the CPUs for themselves. */
static double cpu_rate(struct result r, uint32_t threads)
{
    return (double)r.bytes * threads / r.cpu / 1e9;
}

static bool waited(struct result r, uint32_t threads)
{
    return r.cpu < (1 - NOISE) * r.seconds * threads;
}

static void print(const struct figure *f, int n)
{
    for (int i = 0; i < n; i++)
        printf("%-36s %9.3f %-5s %6.2f of %s%s\n", f[i].name, f[i].value, f[i].unit, f[i].ratio,
               f[i].against, f[i].noisy ? "  (noisy)" : "");
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static void add(struct figure *f, const char *model, const char *what, double value,
                const char *unit, const char *against, double ratio, bool noisy)
{
    *f = (struct figure){
        .unit = unit, .against = against, .value = value, .ratio = ratio, .noisy = noisy
    };
    snprintf(f->name, sizeof f->name, "%.24s: %s", last_part(model), what);
}

/* EACH figures of o->model. */
static int run(struct figure *f, const struct options *o)
{
    static struct files files;
    struct result warm, read, copy, load;
    const char *m = o->model;
    bool noisy;

    files = (struct files){ 0 };
    find_files(&files, m);
    warm = measure(measure_read, &files, o);
    if (warm.bytes == 0) {
        fprintf(stderr, "load: %s: no weights to read\n", m);
        return ERR_NOTFOUND;
    }
    read = best(measure_read, &files, o);
    copy = best(measure_copy, &files, o);
    load = best(measure_load, &files, o);
    if (read.status < 0 || copy.status < 0 || load.status < 0)
        return ERR_IO;
    noisy = waited(read, 1) || waited(copy, o->threads);
    add(f++, m, "page cache", rate(read), "GB/s", "itself", 1, waited(read, 1));
    add(f++, m, "page cache to new memory", rate(copy), "GB/s", "page cache",
        rate(copy) / rate(read), noisy);
    add(f++, m, "load", rate(load), "GB/s", "page cache", rate(load) / rate(read), noisy);
    add(f++, m, "load", rate(load), "GB/s", "page cache to new memory", rate(load) / rate(copy),
        noisy);
    add(f++, m, "load, by CPU time", cpu_rate(load, o->threads), "GB/s", "page cache, by CPU time",
        cpu_rate(load, o->threads) / cpu_rate(read, 1), false);
    add(f++, m, "peak memory", (double)load.peak / 1e9, "GB", "weights x 1.1 + 200 MB",
        (double)load.peak / (1.1 * (double)load.weights + 200e6), false);
    return 0;
}

static int parse(struct options *o, int argc, char **argv)
{
    *o = (struct options){ .threads = 2, .runs = 5 };
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;

        if (argv[i][0] != '-') {
            if (o->n_models == MAX_MODELS)
                return ERR_INVAL;
            o->models[o->n_models++] = argv[i];
            continue;
        }
        if (!next)
            return ERR_INVAL;
        if (strcmp(argv[i], "--json") == 0)
            o->json = next;
        else if (strcmp(argv[i], "--threads") == 0)
            o->threads = (uint32_t)strtoul(next, NULL, 10);
        else if (strcmp(argv[i], "--runs") == 0)
            o->runs = atoi(next);
        else
            return ERR_INVAL;
        i++;
    }
    return o->n_models && o->runs > 0 && o->runs <= MAX_RUNS && o->threads > 0 &&
                   o->threads <= MAX_THREADS
               ? 0
               : ERR_INVAL;
}

int main(int argc, char **argv)
{
    struct figure figures[MAX_MODELS * EACH];
    struct options o;
    int n = 0;

    if (parse(&o, argc, argv) < 0) {
        fprintf(stderr, "usage: load MODEL... [--json FILE] [--threads N] [--runs N]\n");
        return 2;
    }
    for (int i = 0; i < o.n_models; i++, n += EACH) {
        o.model = o.models[i];
        if (run(figures + n, &o) < 0)
            return 1;
        print(figures + n, EACH);
    }
    return o.json && figures_write(o.json, figures, (size_t)n) < 0 ? 1 : 0;
}
