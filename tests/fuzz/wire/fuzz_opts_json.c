/* Command lines: arguments split at newlines against a table with every kind of option. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/log.h"
#include "base/opts.h"
#include "base/status.h"

#define MAX_ARGS 32

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct values {
    bool on;
    int64_t n, len;
    double x;
    const char *text;
    struct opt_list list;
    json_t *json;
};

#define AT(m) offsetof(struct values, m)

static const struct opt_spec specs[] = {
    { "--on", OPT_BOOL, AT(on), "true", NULL, 0, 0, "" },
    { "--num -n", OPT_INT, AT(n), "1", NULL, 0, 100, "" },
    { "--max-len", OPT_SIZE, AT(len), "4K", "auto", -1, 1 << 30, "" },
    { "--ratio", OPT_FLOAT, AT(x), NULL, NULL, 0, 1, "" },
    { "--text", OPT_STRING, AT(text), "a", "a b", 0, 0, "" },
    { "--list", OPT_LIST, AT(list), NULL, NULL, 0, 0, "" },
    { "--json", OPT_JSON, AT(json), NULL, NULL, 0, 0, "" },
    { "--idle", OPT_IGNORED, 0, NULL, NULL, 0, 0, "idle" },
    { "--no-way", OPT_REFUSED, 0, "0", NULL, 0, 0, "no" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *line = malloc(size + 1), *argv[MAX_ARGS], *save = NULL;
    struct opt_list rest;
    struct opts_seen seen;
    struct values v;
    struct err e = { "" };
    int argc = 0;

    if (!line)
        return 0;
    log_set_level(LOG_OFF);
    memcpy(line, data, size);
    line[size] = '\0';
    for (char *p = strtok_r(line, "\n", &save); p && argc < MAX_ARGS;
         p = strtok_r(NULL, "\n", &save))
        argv[argc++] = p;
    if (opts_parse(specs, &v, argc, argv, &rest, &seen, &e) == 0) {
        if (v.n < 0 || v.n > 100 || v.len < -1)
            abort();
        free(rest.v);
        opts_finish(specs, &v, &seen);
    } else if (!e.text[0]) {
        abort();
    }
    free(line);
    return 0;
}
