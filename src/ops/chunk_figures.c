#include "ops/chunk_figures.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define PREFIX "sluice:chunk_"

/* A line "NAME{LABELS} VALUE", taken apart. */
struct sample {
    const char *name, *labels; /* after the prefix; without the braces */
    double value;
};

/* The value of a label into out. False if there is none. */
static bool find_label(char *out, size_t room, const char *labels, const char *key)
{
    size_t n = strlen(key);

    for (const char *p = labels; (p = strstr(p, key)); p += n) {
        const char *value = p + n + 2, *end;

        if ((p > labels && p[-1] != ',') || strncmp(p + n, "=\"", 2) != 0)
            continue;
        end = strchr(value, '"');
        if (!end || (size_t)(end - value) >= room)
            return false;
        snprintf(out, room, "%.*s", (int)(end - value), value);
        return true;
    }
    return false;
}

/* Takes a line of the page apart in place. */
static bool split(struct sample *out, char *line)
{
    char *value = strrchr(line, ' '), *open, *close, *end;

    if (strncmp(line, PREFIX, sizeof PREFIX - 1) != 0 || !value)
        return false;
    *value++ = '\0';
    out->value = strtod(value, &end);
    if (end == value || *end)
        return false;
    out->name = line + sizeof PREFIX - 1;
    out->labels = "";
    if ((open = strchr(line, '{')) && (close = strrchr(open, '}'))) {
        *open = *close = '\0';
        out->labels = open + 1;
    }
    return true;
}

static void take_coefficient(struct stage_time *f, const struct sample *s)
{
    const struct {
        const char *name;
        double *to;
    } rows[] = { { "a", &f->a }, { "b", &f->b },         { "g", &f->g },
                 { "c", &f->c }, { "kappa", &f->kappa }, { "w", &f->w } };
    char name[8];

    if (!find_label(name, sizeof name, s->labels, "coefficient"))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0)
            *rows[i].to = s->value;
}

static void take(struct chunk_figures *f, const struct sample *s)
{
    const struct {
        const char *name;
        double *to;
    } rows[] = {
        { "load", &f->load },
        { "fit_error", &f->error },
        { "steps_total", &f->steps },
        { "predicted_seconds_total", &f->predicted_seconds },
        { "measured_seconds_total", &f->measured_seconds },
        { "plans_total", &f->plans },
        { "plan_chunks", &f->plan_chunks },
        { "plan_first_tokens", &f->plan_first },
        { "plan_last_tokens", &f->plan_last },
        { "plan_seconds", &f->plan_seconds },
        { "bound_seconds", &f->bound_seconds },
    };

    if (strcmp(s->name, "mode") == 0)
        find_label(f->mode, sizeof f->mode, s->labels, "mode");
    else if (strcmp(s->name, "fit") == 0)
        take_coefficient(&f->fit, s);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, s->name) == 0)
            *rows[i].to = s->value;
}

int chunk_figures_read(struct chunk_figures *out, char *page, struct err *e)
{
    struct chunk_figures f = { .mode = "" };
    struct sample s;

    for (char *line; (line = strsep(&page, "\n"));)
        if (split(&s, line))
            take(&f, &s);
    if (!f.mode[0])
        return err_set(
            e, ERR_NOTFOUND,
            "the instance does not plan chunks: start it with scheduler_config."
            "profiling_chunk_config {\"enabled\": true} and two pipeline stages or more");
    *out = f;
    return 0;
}
