/* A page of metrics as `sluice calibrate` reads it: any bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "ops/chunk_figures.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *page = malloc(size + 1);
    struct chunk_figures f;
    struct err e = { "" };

    if (!page)
        return 0;
    memcpy(page, data, size);
    page[size] = '\0';
    if (chunk_figures_read(&f, page, &e) < 0 ? !e.text[0] : !memchr(f.mode, '\0', sizeof f.mode))
        abort();
    free(page);
    return 0;
}
