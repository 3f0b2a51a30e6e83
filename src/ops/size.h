/* Sizes as HuggingFace writes them. */
#ifndef SLUICE_OPS_SIZE_H
#define SLUICE_OPS_SIZE_H

#include <stdint.h>

struct err;

/* "5GB" (powers of 1000), "5GiB" (powers of 1024), "500MB", "123456" (bytes). ERR_INVAL with the
 * option's name. */
int size_parse(uint64_t *out, const char *option, const char *text, struct err *e);

#endif
