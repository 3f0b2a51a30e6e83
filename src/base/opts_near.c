/* Names that were meant, and the help text. */
#include <stdio.h>
#include <string.h>

#include "base/opts.h"
#include "base/opts_value.h"

/* Edit distance of two names (insert, delete, change, swap of neighbours), by three rows of the
 * usual table. Names longer than OPTS_MAX_NAME are far from everything. */
static int distance(const char *a, const char *b)
{
    int row[3][OPTS_MAX_NAME + 1];
    size_t na = strlen(a), nb = strlen(b);

    if (na > OPTS_MAX_NAME || nb > OPTS_MAX_NAME)
        return OPTS_MAX_NAME;
    for (size_t j = 0; j <= nb; j++)
        row[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int *now = row[i % 3], *up = row[(i - 1) % 3], *up2 = row[(i + 1) % 3];

        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);

            best = up[j] + 1 < best ? up[j] + 1 : best;
            best = now[j - 1] + 1 < best ? now[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[na % 3][nb];
}

/* A name further away than this is no typing error. */
static int limit_for(const char *name)
{
    return 3 + (int)strlen(name) / 5;
}

const char *opts_nearest_word(const char *const *words, size_t n, const char *name)
{
    const char *best_word = NULL;
    int best = limit_for(name);

    for (size_t i = 0; i < n; i++) {
        int d = distance(name, words[i]);

        if (d < best) {
            best = d;
            best_word = words[i];
        }
    }
    return best_word;
}

const char *opts_nearest(const struct opt_spec *specs, const char *name)
{
    static _Thread_local char best_name[OPTS_MAX_NAME];
    char plain[OPTS_MAX_NAME], w[OPTS_MAX_NAME];
    int best = limit_for(name);
    bool found = false;

    opts_normalize(plain, sizeof plain, name, strcspn(name, "="));
    for (const struct opt_spec *s = specs; s->kind != OPT_END; s++) {
        const char *at = s->names;

        while ((at = opts_next_word(at, w, sizeof w))) {
            int d = distance(plain, w);

            if (w[1] == '-' && d < best) {
                best = d;
                found = true;
                memcpy(best_name, w, sizeof w);
            }
        }
    }
    return found ? best_name : NULL;
}

void opts_help(const struct opt_spec *specs, const char *usage)
{
    printf("usage: %s\n\n", usage);
    for (const struct opt_spec *s = specs; s->kind != OPT_END; s++) {
        const char *effect = "";

        if (s->kind == OPT_IGNORED || s->kind == OPT_IGNORED_FLAG || s->kind == OPT_IGNORED_LIST)
            effect = "no effect: ";
        else if (s->kind == OPT_REFUSED || s->kind == OPT_REFUSED_FLAG)
            effect = "not supported: ";
        printf("  %s", s->names);
        if (s->choices)
            printf("  {%s}", s->choices);
        printf("\n        %s%s", effect, s->note ? s->note : "");
        if (s->def)
            printf(" (default %s)", s->def);
        printf("\n");
    }
}
