/* Runs a fuzz target over files and folders of inputs as a plain test, each input also cut short at
 * every 1/8 of its length: what a fuzzer once found stays found. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int runs;

/* A copy of exactly `size` bytes, so that a sanitizer sees the first byte too many. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *p = malloc(size ? size : 1);

    if (!p)
        exit(1);
    if (size)
        memcpy(p, data, size);
    LLVMFuzzerTestOneInput(p, size);
    free(p);
    runs++;
}

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data;
    long size;

    if (!f || fseek(f, 0, SEEK_END) < 0 || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET) < 0) {
        fprintf(stderr, "%s: cannot read\n", path);
        exit(1);
    }
    data = malloc((size_t)size + 1);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size)
        exit(1);
    fclose(f);
    for (int i = 0; i <= 8; i++)
        run(data, (size_t)size * (size_t)i / 8);
    free(data);
}

static void run_path(const char *path)
{
    struct stat sb;
    struct dirent *de;
    DIR *d;

    if (stat(path, &sb) < 0) {
        fprintf(stderr, "%s: not found\n", path);
        exit(1);
    }
    if (!S_ISDIR(sb.st_mode)) {
        run_file(path);
        return;
    }
    d = opendir(path);
    while (d && (de = readdir(d))) {
        char sub[4096];

        if (de->d_name[0] == '.')
            continue;
        snprintf(sub, sizeof sub, "%s/%s", path, de->d_name);
        run_path(sub);
    }
    if (d)
        closedir(d);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        run_path(argv[i]);
    printf("%d inputs\n", runs);
    return runs > 0 ? 0 : 1;
}
