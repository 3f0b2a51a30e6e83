/* What the tests of the tools share: a scratch folder, and the golden checkpoints. */
#ifndef SLUICE_TESTS_OPS_RIG_H
#define SLUICE_TESTS_OPS_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"

/* A folder of this test's own, and the same for cmocka's group setup and teardown. */
int scratch_setup(void **state);
int scratch_teardown(void **state);
/* A path in it; eight of them are valid at a time. */
const char *scratch(const char *name);
void scratch_remove(const char *name); /* a file or a folder with everything in it */
void scratch_write(const char *name, const char *text);
bool scratch_has(const char *name);

/* Where golden/<name> stands, from the shared copy or from tests/data; NULL if it is in neither. */
const char *golden(const char *name);

/* Whether the two folders hold the same tensors: names, dtypes, shapes. Says where they do not. */
void assert_same_tensors(const char *got, const char *want);
/* Whether they also hold the same bytes. */
void assert_same_bytes(const char *a, const char *b);

#endif
