/* kernel_check [--bench|--some] ISA: checks one instruction set, with --some at a third of the sizes;
 * 77 if this CPU lacks it. */
#include "check.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

static int open_tables(struct check *c, const char *isa)
{
    struct k_options one = { .isa = isa, .threads = 1, .max_vocab = 70000 }, two = one;
    struct k_options ref = { .isa = "portable", .threads = 1 };
    struct err e = { 0 };
    int st;

    two.threads = 2;
    if ((st = kernels_open(&c->one, &one, &e)) < 0 || (st = kernels_open(&c->two, &two, &e)) < 0 ||
        (st = kernels_open(&c->ref, &ref, &e)) < 0)
        fprintf(stderr, "%s\n", e.text);
    return st;
}

int main(int argc, char **argv)
{
    struct check c = { .bench = argc > 2 && strcmp(argv[1], "--bench") == 0,
                       .some = argc > 2 && strcmp(argv[1], "--some") == 0 };
    int st;

    if (argc < 2) {
        fprintf(stderr,
                "usage: kernel_check [--bench|--some] portable|avx2[-base]|avx512[-base|-bf16]\n");
        return 2;
    }
    st = open_tables(&c, argv[argc - 1]);
    if (st < 0)
        return st == ERR_UNSUPPORTED ? 77 : 1;
    if (c.bench) {
        bench_all(&c);
    } else {
        check_types(&c);
        check_rows(&c);
        check_linear(&c);
        check_i8(&c);
        check_attend(&c);
        check_moe(&c);
        check_latent(&c);
        check_sample(&c);
        printf("%s: %u checks, %u failed\n", c.two->detail, c.checks, c.failures);
    }
    kernels_close(c.one);
    kernels_close(c.two);
    kernels_close(c.ref);
    return c.failures != 0;
}
