/* Reading the reference cases of chunk planning. */
#ifndef SLUICE_TESTS_GOLDEN_CPP_CASES_H
#define SLUICE_TESTS_GOLDEN_CPP_CASES_H

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sched/stage_time.h"

static inline json_t *cases_load(const char *file)
{
    char path[4096];
    json_error_t e;
    json_t *j;

    snprintf(path, sizeof path, "%s/tests/data/golden/cpp/%s", TEST_ROOT, file);
    j = json_load_file(path, 0, &e);
    if (!j)
        fail_msg("%s: %s", path, e.text);
    return j;
}

/* A number; NaN if there is none of that name. */
static inline double num(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static inline double item(const json_t *a, size_t i)
{
    const json_t *v = json_array_get(a, i);

    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static inline uint64_t count(const json_t *o, const char *key)
{
    double v = num(o, key);

    return v > 0 ? (uint64_t)v : 0;
}

static inline const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static inline struct stage_time stage_of(const json_t *o)
{
    double floor = num(o, "floor_ms"), kappa = num(o, "kappa");

    return (struct stage_time){ .a = num(o, "a"),
                                .b = num(o, "b"),
                                .g = num(o, "g"),
                                .c = num(o, "c"),
                                .kappa = kappa > 0 ? kappa : 0.5,
                                .w = floor > 0 ? floor : 0 };
}

#endif
